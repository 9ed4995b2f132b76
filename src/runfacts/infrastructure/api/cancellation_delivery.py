"""Deliver a Run's cancellation: find what is due, claim the delivery, settle it (R7)."""

from __future__ import annotations

from runfacts.domain.actors import Actor, ActorType
from runfacts.domain.cancellation.dispatch import (
    CancellationDispatch,
    ClaimAnswer,
    Exhausted,
    Grant,
    Times,
    backoff_ms,
    decide_claim,
    eligible_attempt,
    limit_key,
    settle_key,
    takeover_key,
)
from runfacts.domain.cancellation.results import (
    FACT_AFTER,
    SETTLED,
    STATUS_AFTER,
    DispatchResult,
    DispatchStatus,
)
from runfacts.domain.cancellation.terms import (
    CandidatePage,
    Cursor,
    DispatchAlreadySettled,
    DispatchClaimed,
    DispatchFenced,
    DispatchNotClaimed,
    DispatchSettled,
)
from runfacts.domain.errors import InvalidValue, RunNotFound
from runfacts.domain.history import Draft, History
from runfacts.domain.ids import canonical_id
from runfacts.domain.leases import TokenPurpose, digest, matches
from runfacts.domain.measures import CLAIMED, CLAIMS, SETTLES, TAKEN_OVER
from runfacts.domain.payloads import (
    Escalation,
    RunCancelDispatchBlocked,
    RunCancelDispatched,
    RunCancelDispatchTakenOver,
)
from runfacts.domain.texts import NAME_MAX
from runfacts.infrastructure.api.core import LedgerCore, plain
from runfacts.infrastructure.commands import Command, Moment, Plan
from runfacts.infrastructure.database.transactions import Change
from runfacts.infrastructure.stores import dispatches
from runfacts.infrastructure.stores.dispatch_queue import read_due
from runfacts.infrastructure.stores.ground import require_current
from runfacts.infrastructure.stores.writes import fence
from runfacts.infrastructure.tokens import new_token

ClaimOfDispatch = DispatchClaimed | DispatchNotClaimed
SettleAnswer = DispatchSettled | DispatchAlreadySettled | DispatchFenced


class CancellationDelivery(LedgerCore):
    """Deliver that Runs are to stop: the ledger as ``runfacts.domain.cancellation.ports.CancellationDispatches``."""

    def due_dispatches(
        self,
        served: tuple[tuple[str, str], ...],
        *,
        cutoff_ms: int | None = None,
        after: Cursor | None = None,
        limit: int,
    ) -> tuple[CandidatePage, int]:
        """See ``CancellationDispatches``. A page has 64 at most (R9.1)."""
        limit = self._within("cancel_page", limit, "limit")
        with self._database.reading() as reading:
            now_ms = reading.now_ms()
            cutoff_ms = now_ms if cutoff_ms is None else cutoff_ms
            page = read_due(reading, served, now_ms=now_ms, cutoff_ms=cutoff_ms, after=after, limit=limit)
        return page, cutoff_ms

    def claim_dispatch(
        self,
        run_id: str,
        attempt_id: str,
        requested_at_ms: int,
        *,
        owner: str,
        served: frozenset[tuple[str, str]],
        lease_ms: int | None = None,
    ) -> ClaimOfDispatch:
        """Claim the delivery of one Run's cancellation for a time (R7.2).

        ``owner`` is the worker's incarnation, drawn anew for every start of a process; ``served`` are the executor
        types and scopes that it can prove processes of. Only one lease is valid at a time; it lasts ``lease_ms``
        milliseconds, ``cancel_lease_ms`` of the settings where it is None. Taking over an expired one records who held
        it (R1.5), and the claim that would be one try too many blocks the row instead (R7.5). An ordinary claim writes
        no fact. Raises ``InvalidValue`` and ``MalformedId``.
        """
        plain("owner", owner, NAME_MAX)
        lease_ms = self._within("cancel_lease_ms", lease_ms)
        attempt_id = canonical_id("attempt id", attempt_id)
        token = new_token()
        call = self._call(run_id, Actor(ActorType.SUPERVISOR, owner))

        def decide(moment: Moment, history: History) -> Plan[ClaimOfDispatch]:
            found = dispatches.read_to_claim(moment.reading, history.run_id, attempt_id)
            if found is None:
                return _not_claimed(ClaimAnswer.NOT_ELIGIBLE)
            target, stored = found
            if eligible_attempt(history, attempt_id, requested_at_ms, served, target.scope) is None:
                return _not_claimed(ClaimAnswer.NOT_ELIGIBLE)
            now_ms = moment.now_ms
            row = None if stored is None else stored.dispatch
            times = Times.DUE if stored is None else stored.times(moment.reading, now_ms)
            if row is not None and times is Times.LEASE_VALID and _is_held_with(row, owner, token):
                # The connection broke while this very claim was committed (R4.6).
                expires_at_ms = now_ms + lease_ms if row.lease_expires_at_ms is None else row.lease_expires_at_ms
                own = DispatchClaimed(
                    target, owner, row.version, row.dispatch_count, expires_at_ms, token, taken_over=False
                )
                return Plan(lambda _, __: own)
            decision = decide_claim(row, attempt_id, times, self._settings.dispatch_limit)
            if isinstance(decision, ClaimAnswer):
                return _not_claimed(decision)
            if isinstance(decision, Exhausted):
                if row is None:
                    return _not_claimed(ClaimAnswer.NOT_ELIGIBLE)
                return _exhausted(row, now_ms, self._look_for_the_end(row, now_ms))
            lease = self._lease(now_ms, lease_ms)
            claim = DispatchClaimed(
                target,
                owner,
                1 if row is None else row.version + 1,
                1 if row is None else row.dispatch_count + 1,
                lease.expires_at_ms,
                token,
                taken_over=decision.taken_over_from is not None,
            )
            token_digest = digest(TokenPurpose.DISPATCH, token)
            if row is None:
                anew = dispatches.claimed_anew(target, owner, token_digest, lease, now_ms)
                return Plan(lambda _, __: claim, (), (anew, fence(history)))
            change = dispatches.claimed(row, owner, token_digest, lease, now_ms)
            return Plan(lambda _, __: claim, _taken_over(decision, claim), (change,))

        try:
            answer = self._commands.run(call, Command(decide))
        except RunNotFound:
            answer = DispatchNotClaimed(call.run_id, ClaimAnswer.NOT_ELIGIBLE)
        self._measures.record(CLAIMS, answer=_word(answer))
        return answer

    def settle_dispatch(
        self,
        claim: DispatchClaimed,
        result: DispatchResult,
        *,
        escalation: Escalation = Escalation.NONE,
    ) -> SettleAnswer:
        """Record what came of a term (R7.4): the row's next status and one fact, together or not at all.

        Only the very term may settle: owner, token and version must match a leased row, else ``DispatchFenced`` and
        nothing changes. A term whose lease has expired but was not taken over is accepted: refusing the truth would
        only cause a second signal.

        Raises ``InvalidValue`` for a result that only a claim or an operator's verb writes.
        """
        if result not in SETTLED:
            raise InvalidValue("result", f"is none of {', '.join(sorted(SETTLED))}")
        run_id = claim.target.run_id
        attempt_id = claim.target.attempt_id
        key = settle_key(attempt_id, claim.dispatch_count)
        call = self._call(run_id, Actor(ActorType.SUPERVISOR, claim.owner))

        def decide(moment: Moment, history: History) -> Plan[SettleAnswer]:
            stored = dispatches.read_dispatch(moment.reading, run_id)
            recorded = history.recorded_with(key)
            if recorded is not None and getattr(recorded.payload, "result", None) == result.value:
                return Plan(lambda _, __: DispatchAlreadySettled(run_id))
            if recorded is not None or stored is None or not _is_term(stored.dispatch, claim):
                # It may be this very settle that was faster, sent twice.
                require_current(moment.reading, history)
                return Plan(lambda _, __: DispatchFenced(run_id))
            row = stored.dispatch
            status = STATUS_AFTER[result]
            next_at = None
            if status is DispatchStatus.RETRY_WAIT:
                next_at = moment.now_ms + self._backoff_ms(row.tries_since_rearm)
            token_digest = digest(TokenPurpose.DISPATCH, claim.token)
            change = dispatches.settled(row, token_digest, result, next_at, moment.now_ms)
            fields: dict[str, object] = {
                "attempt_id": attempt_id,
                "dispatch_count": claim.dispatch_count,
                "result": result.value,
            }
            payload_type = FACT_AFTER[status]
            if payload_type is RunCancelDispatched:
                fields["escalation"] = escalation
            draft = Draft(payload_type.model_validate(fields), attempt_id, key)
            settled = DispatchSettled(run_id, status, row.version + 1, next_at)
            finished = status is not DispatchStatus.RETRY_WAIT and not history.run.terminal
            changes = (change, self._look_for_the_end(row, moment.now_ms)) if finished else (change,)
            return Plan(lambda _, __: settled, (draft,), changes)

        answer = self._commands.run(call, Command(decide))
        if isinstance(answer, DispatchFenced):
            self._count_refused("dispatch_term", attempt_id)
        elif isinstance(answer, DispatchSettled):
            self._measures.record(SETTLES, result=result.value)
        return answer

    def _backoff_ms(self, tries: int) -> int:
        return backoff_ms(
            tries,
            base_ms=self._settings.backoff_base_ms,
            max_ms=self._settings.backoff_max_ms,
            exponent_cap=self._settings.backoff_exponent_cap,
        )


def _word(answer: ClaimOfDispatch) -> str:
    if isinstance(answer, DispatchNotClaimed):
        return answer.answer.value
    return TAKEN_OVER if answer.taken_over else CLAIMED


def _is_term(row: CancellationDispatch, claim: DispatchClaimed) -> bool:
    """Whether a row is leased to exactly this term (R7.4)."""
    return (
        row.status is DispatchStatus.LEASED
        and row.attempt_id == claim.target.attempt_id
        and row.version == claim.version
        and _is_held_with(row, claim.owner, claim.token)
    )


def _is_held_with(row: CancellationDispatch, owner: str, token: str) -> bool:
    """Whether a row's lease was given to this owner with this token."""
    return (
        row.lease_owner == owner
        and row.lease_token_digest is not None
        and matches(TokenPurpose.DISPATCH, token, row.lease_token_digest)
    )


def _taken_over(grant: Grant, claim: DispatchClaimed) -> tuple[Draft, ...]:
    if grant.taken_over_from is None:
        return ()
    attempt_id = claim.target.attempt_id
    payload = RunCancelDispatchTakenOver(
        attempt_id=attempt_id, dispatch_count=claim.dispatch_count, previous_owner=grant.taken_over_from
    )
    return (Draft(payload, attempt_id, takeover_key(attempt_id, claim.dispatch_count)),)


def _exhausted(row: CancellationDispatch, now_ms: int, sooner: Change) -> Plan[ClaimOfDispatch]:
    """Block a row whose tries are used up, instead of claiming it (R7.5)."""
    payload = RunCancelDispatchBlocked(
        attempt_id=row.attempt_id, dispatch_count=row.dispatch_count, result=DispatchResult.LIMIT.value
    )
    key = limit_key(row.attempt_id, row.dispatch_count)
    change = dispatches.changed(row, DispatchStatus.BLOCKED, DispatchResult.LIMIT, now_ms, tries=row.tries_since_rearm)
    answer = DispatchNotClaimed(row.run_id, ClaimAnswer.BLOCKED)
    return Plan(lambda _, __: answer, (Draft(payload, row.attempt_id, key),), (change, sooner))


def _not_claimed(answer: ClaimAnswer) -> Plan[ClaimOfDispatch]:
    return Plan(lambda history, _: DispatchNotClaimed(history.run_id, answer))

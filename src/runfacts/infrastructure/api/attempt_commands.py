"""Commands of the one who executes: claim an Attempt, pass its start barrier, renew its lease (R2.8, R6.4, R10.3)."""

from __future__ import annotations

from typing import TypeVar

from runfacts.domain import decisions
from runfacts.domain.actors import Actor
from runfacts.domain.answers import (
    AttemptClaim,
    Claimed,
    NotClaimable,
    RenewalRefused,
    Renewed,
    Started,
    StartRefused,
)
from runfacts.domain.decisions import Refusal
from runfacts.domain.errors import (
    AttemptNotFound,
    Contended,
    InvalidValue,
    LegacyRun,
    OutcomeUnknown,
    TokenRefused,
)
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.domain.ids import canonical_id
from runfacts.domain.leases import TokenPurpose, digest, matches
from runfacts.domain.lifecycle import ACTIVE_ATTEMPT, AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.payloads import AttemptClaimed
from runfacts.domain.recovery.claims import ClaimState
from runfacts.domain.texts import KEY_MAX, NAME_MAX
from runfacts.infrastructure.api.claim_changes import closing, end_of_cancellation, end_of_retry
from runfacts.infrastructure.api.core import LedgerCore, plain
from runfacts.infrastructure.commands import Caller, Command, Moment, Plan
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.transactions import Change, hit_one
from runfacts.infrastructure.stores.executions import (
    INSERT_EXECUTION,
    RENEW_EXECUTION,
    START_EXECUTION,
    STOP_EXECUTION,
    Execution,
    Holding,
    read_holding,
)
from runfacts.infrastructure.stores.recovery_rows import recovery_resolved
from runfacts.infrastructure.tokens import new_id, new_token

Held = TypeVar("Held", Execution, Holding)
_PATH_MAX = 4_096
_TIMEOUT_MAX_MS = 366 * 24 * 60 * 60 * 1_000


class AttemptCommands(LedgerCore):
    """Claim, start and keep Attempts."""

    def claim(
        self,
        run_id: str,
        *,
        actor: Actor,
        executor_type: str,
        gated: bool = False,
        scope: str = "",
        worker_id: str | None = None,
        lease_ms: int | None = None,
        queue: bool = False,
        expected_version: int | None = None,
        dedupe_key: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Claimed | NotClaimable:
        """Take up a queued Run: its next Attempt is the caller's until the lease expires (R2.8).

        ``gated`` says that this executor lets no process run before its handle is recorded (R10.1); ``scope`` is the
        place from which its processes can be proven (R8.2). A lease lasts ``lease_ms``, or ``execution_lease_ms`` of
        the settings. With ``queue`` a Run that was only created, or whose retry is due, is queued by the same
        transaction, so that nobody else can take it in between.
        """
        claimed = AttemptClaimed(
            number=1,
            executor_type=plain("executor_type", executor_type, NAME_MAX),
            gated=gated,
            worker_id=None if worker_id is None else plain("worker_id", worker_id, NAME_MAX),
        )
        if scope:
            plain("scope", scope, KEY_MAX)
        lease_ms = self._lease_ms(lease_ms)
        attempt_id, lease_token, callback_token = new_id(), new_token(), new_token()
        call = self._call(
            run_id,
            actor,
            expected_version=expected_version,
            dedupe_key=dedupe_key,
            correlation_id=correlation_id,
            causation_id=causation_id,
            connection=connection,
        )

        def decide(moment: Moment, history: History) -> Plan[Claimed | NotClaimable]:
            decisions.require_runtime(history)
            number = decisions.next_number(history)
            decision = decisions.claim(
                history,
                attempt_id,
                claimed.model_copy(update={"number": number}),
                moment.now_ms if queue else None,
            )
            if decision.refusal is not None:
                answer = NotClaimable(history.run_id, history.run.status, decision.refusal)
                return Plan(lambda _, __: answer)
            lease = self._lease(moment.now_ms, lease_ms)
            execution = {
                "attempt_id": attempt_id,
                "run_id": history.run_id,
                "executor_type": executor_type,
                "gated": int(gated),
                "scope": scope,
                "worker_id": worker_id,
                "handle": None,
                "pid": None,
                "lease_token_digest": digest(TokenPurpose.LEASE, lease_token),
                "callback_sequence": 0,
                "callback_token_digest": digest(TokenPurpose.CALLBACK, callback_token),
                "deadline_at_ms": None,
                "log_path": None,
                "receipt_path": None,
                "closed_at_ms": None,
                **lease.columns(moment.now_ms),
            }
            claim = AttemptClaim(history.run_id, attempt_id, number, lease_token, callback_token)
            return Plan(
                lambda history, _: Claimed(claim, lease.expires_at_ms, history.version),
                decision.drafts,
                (*end_of_retry(moment, history), Change(INSERT_EXECUTION, execution)),
            )

        def same(fact: Fact) -> bool:
            payload = fact.payload
            return isinstance(payload, AttemptClaimed) and payload == claimed.model_copy(
                update={"number": payload.number}
            )

        return self._commands.run(call, Command(decide, _not_claimable_again, same))

    def start(
        self,
        claim: AttemptClaim,
        *,
        actor: Actor,
        timeout_ms: int | None = None,
        log_path: str | None = None,
        receipt_path: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Started | StartRefused:
        """Pass the start barrier: from here on a process may exist (R6.4).

        Refused once a cancellation was requested: Attempt and Run are ended and no process may be created. Also
        refused where it was passed before: ``Started`` is answered once. ``timeout_ms``, or what the Run was created
        with, becomes the Attempt's deadline (R10.4). The paths, of the executor's logs and completion receipt, are
        kept beside the lease, never in facts.
        """
        if timeout_ms is not None and (type(timeout_ms) is not int or not 0 < timeout_ms <= _TIMEOUT_MAX_MS):
            raise InvalidValue("timeout_ms", f"is not a whole number between 1 and {_TIMEOUT_MAX_MS}")
        for name, path in (("log_path", log_path), ("receipt_path", receipt_path)):
            if path is not None:
                plain(name, path, _PATH_MAX)
        attempt_id = canonical_id("attempt id", claim.attempt_id)
        call = self._call_on(claim, actor, correlation_id, causation_id, connection)

        def decide(moment: Moment, history: History) -> Plan[Started | StartRefused]:
            decisions.require_runtime(history)
            self._require_own(claim, call.run_id, moment.execution)
            deadline = _deadline(history, moment.now_ms, timeout_ms)
            decision = decisions.start(history, attempt_id, deadline)
            key = {
                "key_attempt_id": attempt_id,
                "key_lease_token_digest": digest(TokenPurpose.LEASE, claim.lease_token),
            }
            if decision.refusal is not None:
                reason = decision.refusal
                ending = (*end_of_cancellation(moment, history), Change(STOP_EXECUTION, key | closing(moment, history)))
                changes = ending if decision.drafts else ()
                return Plan(lambda history, _: start_refused(history, attempt_id, reason), decision.drafts, changes)
            paths = {"deadline_at_ms": deadline, "log_path": log_path, "receipt_path": receipt_path}
            return Plan(
                lambda history, _: Started(deadline, history.version),
                decision.drafts,
                (Change(START_EXECUTION, paths | key),),
            )

        return self._commands.run(call, Command(decide))

    def renew(self, claim: AttemptClaim, *, lease_ms: int | None = None) -> Renewed | RenewalRefused:
        """Make the execution lease last ``lease_ms`` from now, also where it had expired (R10.3).

        Refused where the Attempt has ended, and while recovery finds out what became of it: then the same may be
        answered otherwise a little later. Writes no fact (R1.5). The answer says whether somebody asked the Run to
        stop. Raises ``TokenRefused``,
        ``AttemptNotFound``, ``LegacyRun``, ``Contended`` and ``OutcomeUnknown``.
        """
        lease_ms = self._lease_ms(lease_ms)
        run_id, attempt_id = canonical_id("run id", claim.run_id), canonical_id("attempt id", claim.attempt_id)
        tries = self._settings.decide_retries + 1
        unanswered: OutcomeUnknown | None = None
        for _ in range(tries):
            try:
                return self._renewed(claim, run_id, attempt_id, lease_ms)
            except LostRace:
                continue
            except OutcomeUnknown as error:
                # Renewing twice is as good as once, so it is done again instead of looked up (R4.6).
                unanswered = error
        raise unanswered or Contended(run_id, tries)

    def _renewed(self, claim: AttemptClaim, run_id: str, attempt_id: str, lease_ms: int) -> Renewed | RenewalRefused:
        """Try to renew once."""
        with self._database.transaction() as transaction:
            execution = self._require_own(claim, run_id, read_holding(transaction, attempt_id))
            if execution.execution_owner != ExecutionOwner.RUNTIME:
                raise LegacyRun(run_id)
            run_status, attempt_status = RunStatus(execution.run_status), AttemptStatus(execution.attempt_status)
            if attempt_status not in ACTIVE_ATTEMPT:
                return RenewalRefused(run_status, attempt_status)
            now_ms = transaction.now_ms()
            if execution.recovering(transaction, now_ms):
                return RenewalRefused(run_status, attempt_status, Refusal.RECOVERING)
            version = execution.recovery_version
            if version is not None and execution.recovery_state != ClaimState.RESOLVED:
                # Whoever held it, or was to look at it, has nothing to find out any more.
                hit_one(transaction, recovery_resolved(attempt_id, version, now_ms))
            lease = self._lease(now_ms, lease_ms)
            renewal = {
                **lease.columns(now_ms, asked_to_stop=execution.intent_kind is not None),
                "key_attempt_id": attempt_id,
                "key_lease_token_digest": execution.lease_token_digest,
                "expected_recover_at_ms": execution.recover_at_ms,
            }
            hit_one(transaction, Change(RENEW_EXECUTION, renewal))
            intent = None if execution.intent_kind is None else IntentKind(execution.intent_kind)
            return Renewed(lease.expires_at_ms, attempt_status, intent)

    def _require_own(self, claim: AttemptClaim, run_id: str, held: Held | None) -> Held:
        """Give what is held, if the lease token is its own (``AttemptNotFound``, ``TokenRefused``)."""
        if held is None or held.run_id != run_id:
            raise AttemptNotFound(claim.attempt_id)
        if not matches(TokenPurpose.LEASE, claim.lease_token, held.lease_token_digest):
            self._count_refused("token", claim.attempt_id)
            raise TokenRefused(claim.attempt_id)
        return held


def start_refused(history: History, attempt_id: str, reason: Refusal) -> StartRefused:
    """Answer that no process may be created or let through its gate."""
    return StartRefused(history.run.status, history.attempts[attempt_id].status, reason)


def _deadline(history: History, now_ms: int, timeout_ms: int | None) -> int | None:
    """Fix the Attempt's deadline at its start barrier.

    The sooner of its time-out and the Run's own deadline (R10.4).
    """
    length = history.run.timeout_ms if timeout_ms is None else timeout_ms
    ends = [None if length is None else now_ms + length, history.run.deadline_at_ms]
    return min((end for end in ends if end is not None), default=None)


def _not_claimable_again(history: History) -> Claimed | NotClaimable:
    """Answer a repeated claim: its token existed once, in the memory of whoever claimed."""
    return NotClaimable(history.run_id, history.run.status, Refusal.REPEATED)

"""What operators read and do about recovery: a queue and two verbs (R13)."""

from __future__ import annotations

from collections.abc import Callable

from runfacts.domain import decisions
from runfacts.domain.actors import Actor
from runfacts.domain.errors import RecoveryVersionConflict, StillRunning, VerbRefused
from runfacts.domain.facts import Fact
from runfacts.domain.history import Draft, History
from runfacts.domain.lifecycle import RUN_WITH_ATTEMPT, RunStatus
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.payloads import RunRecoveryAttested, RunRecoveryReleased
from runfacts.domain.recovery.claims import ClaimState, ItemKind, Purpose, RecoveryKey
from runfacts.domain.recovery.evidence import EvidenceProvider
from runfacts.domain.recovery.lost import lost
from runfacts.domain.recovery.operators import (
    ATTEST,
    RELEASE,
    AttestedLost,
    ManualRecovery,
    Released,
    attest_key,
    item_of,
    items_ever,
    release_key,
)
from runfacts.domain.views import Page
from runfacts.infrastructure.api.operator_verbs import reason_of, require_same
from runfacts.infrastructure.api.operators import Operators
from runfacts.infrastructure.commands import Command, Moment, Plan
from runfacts.infrastructure.database.transactions import Change
from runfacts.infrastructure.stores import recovery_rows, recovery_verbs
from runfacts.infrastructure.stores.dispatches import read_target
from runfacts.infrastructure.stores.ground import require_current
from runfacts.infrastructure.stores.recovery_queue import read_manual
from runfacts.infrastructure.stores.recovery_verbs import StoredRecovery
from runfacts.infrastructure.stores.view import read_leases


class RecoveryOperators(Operators):
    """Look after what no worker can find out."""

    def manual(self, *, limit: int | None = None, after: str | None = None) -> Page[ManualRecovery]:
        """Give a page of what waits for an operator in recovery, with a diagnosis in words (R13.1).

        What no program can decide, oldest first: whether a Run still runs, whether it has stopped, whether it may be
        tried again. Then what is long due and nobody of its executor type looks at (R8.2).
        """
        with self._database.reading() as reading:
            before_ms = reading.now_ms() - self._settings.unserved_after_ms
            return read_manual(reading, unserved_before_ms=before_ms, limit=self._page(limit), after=after)

    def release(self, run_id: str, *, actor: Actor, because: str, version: int) -> Released:
        """Let workers look again at what waits for an operator, at once (R13.2).

        Of a Run that was asked to stop that is its stop confirmation, of one that is lost or waits for its retry the
        retry, of any other its recovery. ``version`` is that claim row's. Raises ``RecoveryVersionConflict``,
        ``VerbRefused`` where it does not wait for an operator and, where the same verb is recorded for this version
        with another reason, ``DedupeConflict``.
        """
        reason = reason_of(because)
        call = self._call(run_id, actor)

        def decide(moment: Moment, history: History) -> Plan[Released]:
            item = item_of(history)
            recorded = history.recorded_with(release_key(item, version))
            if recorded is not None:
                return _released_before(recorded, call.run_id, reason, version)
            decisions.require_runtime(history)
            row = recovery_verbs.read_row(moment.reading, item)
            if row is None or row.state is not ClaimState.MANUAL or row.version != version:
                recorded = _recorded_ever(history, lambda item: release_key(item, version))
                if recorded is not None:
                    return _released_before(recorded, call.run_id, reason, version)
                raise _refusal(moment, history, RELEASE, row, version)
            payload = RunRecoveryReleased.model_validate({"purpose": item.purpose.value} | reason)
            draft = Draft(payload, row.attempt_id, release_key(item, version))
            answer = Released(history.run_id, item.purpose, version + 1)
            return Plan(lambda _, __: answer, (draft,), recovery_verbs.released(row, moment.now_ms))

        return self._commands.run(call, Command(decide))

    def attest_not_running(
        self,
        run_id: str,
        *,
        actor: Actor,
        because: str,
        version: int,
        provider: EvidenceProvider | None = None,
        force: bool = False,
    ) -> AttestedLost:
        """Declare Attempt and Run lost on an operator's word (R13.2, R11.5).

        For a Run that nobody asked to stop, whose recovery waits for an operator, or for anybody for so long that
        ``manual`` lists it. ``version`` is the claim row's, 0 where there is none. The ``provider`` of the executor
        type, if there is one, is asked first, outside of any transaction; if it says that the process runs, the verb is
        refused (``StillRunning``) unless ``force`` says so, which is recorded; one that fails refuses nothing. Whether
        the Run is tried again is decided as after any loss (R12.1); ``unproven`` lists it from then on. Raises as
        ``release`` does.
        """
        reason = reason_of(because)
        call = self._call(run_id, actor)
        running = provider is not None and self._seems_to_run(call.run_id, provider)

        def decide(moment: Moment, history: History) -> Plan[AttestedLost]:
            item = item_of(history)
            recorded = history.recorded_with(attest_key(item, version))
            if recorded is not None:
                return _attested_before(recorded, call.run_id, reason, version)
            decisions.require_runtime(history)
            row = recovery_verbs.read_row(moment.reading, item)
            actual = 0 if row is None else row.version
            if not _may_be_lost(history) or actual != version:
                recorded = _recorded_ever(history, lambda item: attest_key(item, version))
                if recorded is not None:
                    return _attested_before(recorded, call.run_id, reason, version)
            if not _may_be_lost(history):
                raise VerbRefused(ATTEST, history.run_id, _why_not_lost(history))
            if actual != version or not self._waits_for_a_person(moment, item, row):
                raise _refusal(moment, history, ATTEST, row, version)
            drafts, changes = _lost_on_a_word(moment, history, row)
            if running and not force:
                raise StillRunning(history.run_id)
            payload = RunRecoveryAttested.model_validate(reason | ({"forced": True} if running else {}))
            attempt_id = drafts[0].attempt_id
            first = Draft(payload, attempt_id, attest_key(item, version))
            answer = AttestedLost(history.run_id, attempt_id, RunStatus.LOST, version + 1)
            return Plan(lambda _, __: answer, (first, *drafts), changes)

        return self._commands.run(call, Command(decide))

    def _waits_for_a_person(self, moment: Moment, item: RecoveryKey, row: StoredRecovery | None) -> bool:
        """Whether a recovery is an operator's item: no program can decide it, or none has come for so long (R8.2)."""
        if row is not None and row.state is ClaimState.MANUAL:
            return True
        if item.kind is not ItemKind.ATTEMPT or (row is not None and row.held(moment.reading, moment.now_ms)):
            return False
        due_at_ms = recovery_verbs.read_recover_at(moment.reading, item.item_id)
        return due_at_ms is not None and due_at_ms <= moment.now_ms - self._settings.unserved_after_ms


def _may_be_lost(history: History) -> bool:
    run = history.run
    return run.intent is None and run.status in RUN_WITH_ATTEMPT


def _why_not_lost(history: History) -> str:
    run = history.run
    if run.terminal or run.intent is None:
        return f"it is {run.status}"
    return "somebody asked it to stop; confirm-stopped is for that"


def _lost_on_a_word(
    moment: Moment, history: History, row: StoredRecovery | None
) -> tuple[tuple[Draft, ...], tuple[Change, ...]]:
    """Give what a loss records and changes, in the order of the locks (R4.4)."""
    run_id, now_ms = history.run_id, moment.now_ms
    attempt = history.latest_attempt
    target = None if attempt is None else read_target(moment.reading, run_id, attempt.id)
    if attempt is None or target is None:
        raise VerbRefused(ATTEST, run_id, "it has no attempt; cancel ends it")
    expires_at_ms, valid = read_leases(moment.reading, run_id)[attempt.id]
    if attempt.active and valid:
        raise VerbRefused(ATTEST, run_id, "its worker holds a valid lease")
    decision = lost(history, attempt.id, EvidenceKind.ATTESTED, None)
    if decision.refusal is not None:
        raise VerbRefused(ATTEST, run_id, f"its attempt is {attempt.status}; cancel ends it")
    ended = recovery_verbs.resolved_anew(target, now_ms) if row is None else recovery_verbs.resolved(row, now_ms)
    changes = [ended, recovery_rows.to_be_retried(target, now_ms, now_ms)]
    if attempt.active:
        changes.append(recovery_verbs.closed(attempt.id, expires_at_ms, now_ms))
    return decision.drafts, tuple(changes)


def _refusal(moment: Moment, history: History, verb: str, row: StoredRecovery | None, version: int) -> Exception:
    """Say why a verb does not apply to a row as it is."""
    # It may be this very verb that was faster, by another hand.
    require_current(moment.reading, history)
    actual = 0 if row is None else row.version
    if actual != version:
        return RecoveryVersionConflict(history.run_id, version, actual)
    if history.run.terminal:
        return VerbRefused(verb, history.run_id, f"it is {history.run.status}")
    if row is not None and row.held(moment.reading, moment.now_ms):
        return VerbRefused(verb, history.run_id, "a worker looks at it right now")
    return VerbRefused(verb, history.run_id, "it does not wait for an operator")


def _recorded_ever(history: History, key_of: Callable[[RecoveryKey], str]) -> Fact | None:
    """Find a verb by the version that it named, on whatever it was about then."""
    found = (history.recorded_with(key_of(item)) for item in items_ever(history))
    return next((fact for fact in found if fact is not None), None)


def _released_before(recorded: Fact, run_id: str, reason: dict[str, str | int], version: int) -> Plan[Released]:
    require_same(recorded, run_id, reason)
    payload = recorded.payload
    purpose = payload.purpose if isinstance(payload, RunRecoveryReleased) else Purpose.RECOVERY.value
    answer = Released(run_id, Purpose(purpose), version + 1)
    return Plan(lambda _, __: answer)


def _attested_before(recorded: Fact, run_id: str, reason: dict[str, str | int], version: int) -> Plan[AttestedLost]:
    require_same(recorded, run_id, reason)
    answer = AttestedLost(run_id, recorded.attempt_id, RunStatus.LOST, version + 1)
    return Plan(lambda _, __: answer)

"""What operators read and do about cancellations: two queues and three verbs (R6.2, R13)."""

from __future__ import annotations

from threading import Event
from typing import Final

from runfacts.domain import decisions
from runfacts.domain.actors import Actor
from runfacts.domain.cancellation.dispatch import CancellationDispatch, Times, verb_key
from runfacts.domain.cancellation.operators import (
    REARMABLE,
    Abandoned,
    BlockedDispatch,
    Rearmed,
    StopConfirmed,
    UnprovenStop,
)
from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.domain.errors import (
    DispatchVersionConflict,
    RunVersionConflict,
    StillRunning,
    VerbRefused,
)
from runfacts.domain.facts import Fact
from runfacts.domain.history import Draft, History
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.payloads import (
    RunCancelDispatchAbandoned,
    RunCancelDispatchRearmed,
    RunStopConfirmed,
)
from runfacts.domain.recovery.evidence import Evidence, EvidenceProvider, EvidenceTarget
from runfacts.domain.views import ExecutionView, Page
from runfacts.infrastructure.api.claim_changes import closing, end_of_cancellation
from runfacts.infrastructure.api.core import log
from runfacts.infrastructure.api.operator_verbs import reason_of, require_same
from runfacts.infrastructure.api.reads import Reads
from runfacts.infrastructure.commands import Command, Moment, Plan
from runfacts.infrastructure.database.transactions import Change
from runfacts.infrastructure.stores import dispatches
from runfacts.infrastructure.stores.executions import CLOSE_EXECUTION
from runfacts.infrastructure.stores.ground import require_current
from runfacts.infrastructure.stores.operator_queues import read_blocked, read_unproven
from runfacts.infrastructure.stores.recovery_rows import PlacedRun, stop_put_off

_REARM: Final = "rearm"
_ABANDON: Final = "abandon"
_CONFIRM: Final = "confirm-stopped"


class Operators(Reads):
    """Look after cancellations that no worker can finish."""

    def blocked(self, *, limit: int | None = None, after: str | None = None) -> Page[BlockedDispatch]:
        """Give a page of dispatches that wait for an operator, with a diagnosis in words (R13.1).

        Those that are blocked, oldest first, then those that are long due and that nobody of their scope claims
        (R8.2). Rows of ended Runs are in neither.
        """
        with self._database.reading() as reading:
            before_ms = reading.now_ms() - self._settings.unserved_after_ms
            return read_blocked(reading, unserved_before_ms=before_ms, limit=self._page(limit), after=after)

    def unproven(self, *, limit: int | None = None, after: str | None = None) -> Page[UnprovenStop]:
        """Give a page of Runs whose stop is not proven (R6.2).

        Those that were asked to stop after an Attempt had passed the start barrier, with no end recorded yet; then
        those that an operator's word ended.
        """
        with self._database.reading() as reading:
            return read_unproven(reading, limit=self._page(limit), after=after)

    def rearm(self, run_id: str, *, actor: Actor, because: str, version: int, delay_ms: int | None = None) -> Rearmed:
        """Give a blocked or delivered dispatch new tries, the first after ``delay_ms`` milliseconds (R13.2).

        ``version`` is the dispatch's. Raises ``DispatchVersionConflict``, ``VerbRefused`` and, where the same verb is
        recorded for this version with another reason or delay, ``DedupeConflict``.
        """
        delay_ms = self._within("rearm_delay_ms", delay_ms)
        reason = reason_of(because)
        call = self._call(run_id, actor)
        key = verb_key(_REARM, call.run_id, version)

        def decide(moment: Moment, history: History) -> Plan[Rearmed]:
            recorded = history.recorded_with(key)
            if recorded is not None:
                require_same(recorded, call.run_id, reason, delay_ms=delay_ms)
                stored = dispatches.read_dispatch(moment.reading, history.run_id)
                next_at: int | None = recorded.recorded_at_ms + delay_ms
                if stored is not None and stored.dispatch.version == version + 1:
                    # The fact's own time is later than it was where a clock had stepped back (R3.4).
                    next_at = stored.dispatch.next_attempt_at_ms
                again = Rearmed(call.run_id, version + 1, next_at)
                return Plan(lambda _, __: again)
            row = _require_row(moment, history, _REARM, version)
            if row.status not in REARMABLE:
                raise VerbRefused(_REARM, history.run_id, f"its dispatch is {row.status}")
            next_at = moment.now_ms + delay_ms
            change = dispatches.changed(
                row, DispatchStatus.RETRY_WAIT, row.last_result, moment.now_ms, tries=0, next_attempt_at_ms=next_at
            )
            payload = RunCancelDispatchRearmed.model_validate(
                {"attempt_id": row.attempt_id, "delay_ms": delay_ms} | reason
            )
            answer = Rearmed(history.run_id, row.version + 1, next_at)
            changes = (change, *_confirmed_later(moment, row))
            return Plan(lambda _, __: answer, (Draft(payload, row.attempt_id, key),), changes)

        return self._commands.run(call, Command(decide))

    def abandon(self, run_id: str, *, actor: Actor, because: str, version: int) -> Abandoned:
        """End the delivery of a Run's cancellation: no more signals, out of the queue (R13.2).

        ``version`` is the dispatch's, 0 where there is none yet. The Run still ends by its own report, its receipt or
        a confirmation. Raises as ``rearm`` does; refused while a worker holds a valid lease.
        """
        reason = reason_of(because)
        call = self._call(run_id, actor)
        key = verb_key(_ABANDON, call.run_id, version)

        def decide(moment: Moment, history: History) -> Plan[Abandoned]:
            recorded = history.recorded_with(key)
            if recorded is not None:
                require_same(recorded, call.run_id, reason)
                return Plan(lambda _, __: Abandoned(call.run_id, version + 1))
            decisions.require_runtime(history)
            place, change = _abandoned(moment, history, version)
            payload = RunCancelDispatchAbandoned.model_validate({"attempt_id": place.attempt_id} | reason)
            answer = Abandoned(history.run_id, version + 1)
            changes = (change, self._look_for_the_end(place, moment.now_ms))
            return Plan(lambda _, __: answer, (Draft(payload, place.attempt_id, key),), changes)

        return self._commands.run(call, Command(decide))

    def confirm_stopped(
        self,
        run_id: str,
        *,
        actor: Actor,
        because: str,
        version: int,
        provider: EvidenceProvider | None = None,
        force: bool = False,
    ) -> StopConfirmed:
        """End a Run that was asked to stop, on an operator's word (R13.2).

        ``version`` is the Run's. The ``provider`` of the executor type, if there is one, is asked first, outside of
        any transaction; if it says that the process runs, the verb is refused (``StillRunning``) unless ``force``
        says so, which is recorded. One that fails could not be asked, and refuses nothing (R11.3). The Run is listed
        by ``unproven`` from then on.

        Raises ``RunVersionConflict``, ``VerbRefused`` and, where the verb is recorded for this version with another
        reason, ``DedupeConflict``.
        """
        reason = reason_of(because)
        call = self._call(run_id, actor)
        key = verb_key(_CONFIRM, call.run_id, version)
        running = provider is not None and self._seems_to_run(call.run_id, provider)
        if running and not force:
            raise StillRunning(call.run_id)

        def decide(moment: Moment, history: History) -> Plan[StopConfirmed]:
            recorded = history.recorded_with(key)
            if recorded is not None:
                require_same(recorded, call.run_id, reason)
                return Plan(_confirmed)
            decisions.require_runtime(history)
            if history.version != version:
                raise RunVersionConflict(history.run_id, version, history.version)
            fields = {"evidence": EvidenceKind.ATTESTED} | reason | ({"forced": True} if running else {})
            decision = decisions.confirm_stopped(history, RunStopConfirmed.model_validate(fields))
            if decision.refusal is not None:
                why = f"it is {history.run.status}" if history.run.terminal else "nobody asked it to stop"
                raise VerbRefused(_CONFIRM, history.run_id, why)
            first, *rest = decision.drafts
            drafts = (Draft(first.payload, first.attempt_id, key), *rest)
            changes = [*end_of_cancellation(moment, history)]
            attempt = history.active_attempt
            if attempt is not None:
                changes.append(Change(CLOSE_EXECUTION, {"key_attempt_id": attempt.id} | closing(moment, history)))
            return Plan(_confirmed, drafts, tuple(changes))

        return self._commands.run(call, Command(decide))

    def _seems_to_run(self, run_id: str, provider: EvidenceProvider) -> bool:
        """Ask the provider about the Run's active Attempt, if it is of its executor type."""
        attempt = self.run(run_id).active_attempt
        if attempt is None or attempt.executor_type != provider.executor_type:
            return False
        target = _evidence_target(self.execution(attempt.attempt_id))
        try:
            answer = provider.inspect(target, timeout_ms=self._settings.evidence_timeout_ms, cancelled=Event())
        except Exception as error:  # noqa: BLE001 - the embedder's; who fails knows nothing (R11.3), and only running refuses
            log.warning("run %s: who looks for its process failed: %s", run_id, type(error).__name__)
            return False
        return answer == Evidence.running()


def _evidence_target(execution: ExecutionView) -> EvidenceTarget:
    return EvidenceTarget(
        execution.run_id,
        execution.attempt_id,
        execution.attempt_status,
        execution.executor_type,
        execution.scope,
        execution.worker_id,
        execution.handle,
        execution.pid,
        execution.lease_expires_at_ms,
        execution.seen_at_ms,
    )


def _require_row(moment: Moment, history: History, verb: str, version: int) -> CancellationDispatch:
    """Give the Run's dispatch at the version that the operator saw, if the Run has not ended."""
    decisions.require_runtime(history)
    stored = dispatches.read_dispatch(moment.reading, history.run_id)
    actual = 0 if stored is None else stored.dispatch.version
    if actual != version:
        # It may be this very verb that was faster, by another hand.
        require_current(moment.reading, history)
        raise DispatchVersionConflict(history.run_id, version, actual)
    if history.run.terminal:
        raise VerbRefused(verb, history.run_id, f"it is {history.run.status}")
    if stored is None:
        raise VerbRefused(verb, history.run_id, "it has no dispatch")
    return stored.dispatch


def _confirmed_later(moment: Moment, row: CancellationDispatch) -> tuple[Change, ...]:
    """Let the confirmation of a stop wait again until the lease expires, because it is delivered once more (R12.2)."""
    found = dispatches.read_target_and_lease(moment.reading, row.run_id, row.attempt_id)
    return () if found is None else (stop_put_off(row, found[1], moment.now_ms),)


def _abandoned(moment: Moment, history: History, version: int) -> tuple[PlacedRun, Change]:
    """Give the Attempt and the change that ends the delivery."""
    now_ms = moment.now_ms
    stored = dispatches.read_dispatch(moment.reading, history.run_id)
    attempt = history.active_attempt
    if stored is None and version == 0 and history.run.intent is not None and attempt is not None:
        target = dispatches.read_target(moment.reading, history.run_id, attempt.id)
        if target is not None:
            return target, dispatches.abandoned_anew(target, now_ms)
    row = _require_row(moment, history, _ABANDON, version)
    if stored is not None and stored.times(moment.reading, now_ms) is Times.LEASE_VALID:
        raise VerbRefused(_ABANDON, history.run_id, "a worker holds its dispatch right now")
    change = dispatches.changed(
        row, DispatchStatus.BLOCKED, DispatchResult.ABANDONED, now_ms, tries=row.tries_since_rearm
    )
    return row, change


def _confirmed(history: History, _: tuple[Fact, ...]) -> StopConfirmed:
    return StopConfirmed(history.run_id, history.run.status, history.version)

"""
What was true then: the state of a Run as of one of its facts (R14.2).

It is computed from the facts up to that one and from nothing else, so it says what was *recorded* at that moment.
Claims write no facts (R1.5): who held a lease then, and when somebody would look next, is not known any more and not
made up. Where the delivery of a cancellation and a recovery stood is known as far as facts say it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from runfacts.domain.attempt import Attempt
from runfacts.domain.cancellation.results import DispatchStatus
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.domain.lifecycle import IntentKind
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    RunCancelDispatchAbandoned,
    RunCancelDispatchBlocked,
    RunCancelDispatched,
    RunCancelDispatchFailed,
    RunCancelDispatchRearmed,
    RunCancelDispatchTakenOver,
    RunRecoveryManual,
    RunRecoveryReleased,
)
from runfacts.domain.recovery.claims import ClaimState
from runfacts.domain.run import RUN_STATUS_AFTER
from runfacts.domain.views import RecordedAttempt, RecordedRun


@dataclass(frozen=True, slots=True)
class PastAttempt(RecordedAttempt):
    """One Attempt as it stood."""

    evidence: Evidence | None
    deadline_at_ms: int | None
    claimed_at_ms: int
    started_at_ms: int | None
    running_at_ms: int | None
    finished_at_ms: int | None


@dataclass(frozen=True, slots=True)
class PastDispatch:
    """Where the delivery of a cancellation stood, as far as facts say."""

    status: DispatchStatus
    dispatch_count: int
    last_result: str | None


@dataclass(frozen=True, slots=True)
class PastCancellation:
    """That the Run had been asked to stop, and how far that had come."""

    requested_at_ms: int
    kind: IntentKind
    reason: str | None
    dispatch: PastDispatch | None
    """None while no fact says anything of a delivery."""


@dataclass(frozen=True, slots=True)
class PastRecovery:
    """What recovery had left to an operator, or an operator had given back to it."""

    state: ClaimState
    purpose: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class PastRun(RecordedRun):
    """One Run as it stood when its fact number ``version`` had been recorded."""

    attempts: tuple[PastAttempt, ...]
    cancellation: PastCancellation | None
    recovery: PastRecovery | None
    unknown_types: tuple[str, ...] = ()
    """Types among these facts that this release does not know: what they did is not in this state (R3.7)."""


@dataclass(slots=True)
class Replay:
    """Takes a Run's facts one by one and says how it stood after the latest."""

    history: History
    _dispatch: PastDispatch | None = None
    _recovery: PastRecovery | None = None
    _unknown: dict[str, None] = field(default_factory=dict)

    @classmethod
    def begun_by(cls, fact: Fact) -> Replay:
        """Begin with the Run that a first fact is of; the fact itself is yet to be taken in."""
        return cls(History(fact.run_id, fact.project))

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> Replay:
        """Replay facts, which are a Run's from the first, in order of ``sequence``."""
        replay = cls.begun_by(facts[0])
        for fact in facts:
            replay.take(fact)
        return replay

    def take(self, fact: Fact) -> None:
        """Take in the next fact."""
        # Without its key a history does not remember the whole fact, and a replay of any length fits into memory.
        self.history.take(fact if fact.dedupe_key is None else replace(fact, dedupe_key=None))
        if not fact.known:
            self._unknown[fact.type] = None
        elif not fact.of_attempt:
            self._dispatch = _dispatch_after(self._dispatch, fact)
            self._recovery = _recovery_after(self._recovery, fact)

    def state(self) -> PastRun:
        """Give the state after the facts so far."""
        run = self.history.run
        intent = run.intent
        return PastRun(
            run_id=run.id,
            project=run.project,
            task=run.task,
            status=run.status,
            version=self.history.version,
            execution_owner=run.execution_owner,
            policy=run.policy,
            idempotency_key=run.idempotency_key,
            retry_of_run_id=run.retry_of_run_id,
            created_at_ms=run.created_at_ms,
            updated_at_ms=self.history.recorded_at_ms,
            finished_at_ms=run.finished_at_ms,
            deadline_at_ms=run.deadline_at_ms,
            attempts=tuple(map(_attempt, self.history.attempts.values())),
            cancellation=None
            if intent is None
            else PastCancellation(intent.requested_at_ms, intent.kind, intent.reason, self._dispatch),
            recovery=self._recovery,
            unknown_types=tuple(self._unknown),
        )


def _attempt(attempt: Attempt) -> PastAttempt:
    return PastAttempt(
        attempt_id=attempt.id,
        number=attempt.number,
        status=attempt.status,
        executor_type=attempt.executor_type,
        worker_id=attempt.worker_id,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        error_code=attempt.error_code,
        error_summary=attempt.error_summary,
        observed=None if attempt.observed is None else attempt.observed.value,
        evidence=attempt.evidence,
        deadline_at_ms=attempt.deadline_at_ms,
        claimed_at_ms=attempt.claimed_at_ms,
        started_at_ms=attempt.started_at_ms,
        running_at_ms=attempt.running_at_ms,
        finished_at_ms=attempt.finished_at_ms,
    )


def _dispatch_after(dispatch: PastDispatch | None, fact: Fact) -> PastDispatch | None:
    """Say where the delivery stands after a fact of the Run (R7)."""
    count = 0 if dispatch is None else dispatch.dispatch_count
    result = None if dispatch is None else dispatch.last_result
    match fact.payload:
        case RunCancelDispatched(dispatch_count=tries, result=word):
            return PastDispatch(DispatchStatus.DISPATCHED, tries, word)
        case RunCancelDispatchFailed(dispatch_count=tries, result=word):
            return PastDispatch(DispatchStatus.RETRY_WAIT, tries, word)
        case RunCancelDispatchBlocked(dispatch_count=tries, result=word):
            return PastDispatch(DispatchStatus.BLOCKED, tries, word)
        case RunCancelDispatchTakenOver(dispatch_count=tries):
            return PastDispatch(DispatchStatus.LEASED, tries, result)
        case RunCancelDispatchRearmed():
            return PastDispatch(DispatchStatus.RETRY_WAIT, count, result)
        case RunCancelDispatchAbandoned():
            return PastDispatch(DispatchStatus.BLOCKED, count, "abandoned")
        case _:
            return dispatch


def _recovery_after(recovery: PastRecovery | None, fact: Fact) -> PastRecovery | None:
    """Say what recovery has left to an operator after a fact of the Run (R11.10, R13.2)."""
    match fact.payload:
        case RunRecoveryManual(purpose=purpose, reason=reason):
            return PastRecovery(ClaimState.MANUAL, purpose, reason)
        case RunRecoveryReleased(purpose=purpose):
            return PastRecovery(ClaimState.AVAILABLE, purpose, None)
        case payload if type(payload) in RUN_STATUS_AFTER:
            # The Run moved on: what was waited for has been decided.
            return None
        case _:
            return recovery

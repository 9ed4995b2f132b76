"""
What facts say: one closed, frozen model for each type (R3.6, R3.8).

These are storage formats. Names of types and fields are stored for ever: rename none; add fields only with a default;
anything else is a new version of the type and an upcaster (``facts.py``). Every text is bounded and went through
``texts.bounded`` before, and no field has room for a handle, a PID, a command, an environment, a secret or a raw
token.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

from runfacts.domain.lifecycle import ExecutionOwner, IntentKind
from runfacts.domain.payload_parts import (
    AtMs,
    Count,
    ExitCode,
    Id,
    Name,
    Signal,
    WithEvidence,
    WithIntent,
    WithOutcome,
    WithReason,
)
from runfacts.domain.retry import RetryPolicy


class Escalation(StrEnum):
    """The strongest signal that a delivered cancellation needed (R7.4)."""

    NONE = "none"
    TERM = "term"
    KILL = "kill"


class Payload(BaseModel):
    """What one type of fact says."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    TYPE: ClassVar[str] = ""
    """The stable name of the type (R3.7)."""
    VERSION: ClassVar[int] = 1
    """The schema version that this release writes."""


class RunPayload(Payload):
    """What a fact about a Run says."""


class AttemptPayload(Payload):
    """What a fact about an Attempt says."""


class RunCreated(RunPayload):
    """A Run was created."""

    TYPE: ClassVar[str] = "run.created"

    task: Name
    """What is run, in the caller's words."""
    policy: RetryPolicy
    """When the Run may be tried again; frozen here (R12.1)."""
    execution_owner: ExecutionOwner = ExecutionOwner.RUNTIME
    """Who executes the Run (R2.10)."""
    idempotency_key: Name | None = None
    """The name of this creation, once per project (R2.11)."""
    retry_of_run_id: Id | None = None
    """The Run that this one repeats by hand (R2.9)."""
    deadline_at_ms: AtMs | None = None
    """Until when the Run as a whole may take (R10.4)."""
    timeout_ms: Annotated[int, Field(ge=1, lt=1 << 53)] | None = None
    """How long each Attempt may run from its start barrier, in milliseconds (R10.4)."""


class RunImported(RunPayload):
    """A Run that had not ended came in with an archive: its facts are kept, nobody here executes it (R14.2)."""

    TYPE: ClassVar[str] = "run.imported"

    execution_owner: ExecutionOwner = ExecutionOwner.LEGACY
    """Who executes the Run from here on: nobody here (R2.10)."""


class RunQueued(RunPayload):
    """The Run waits to be claimed."""

    TYPE: ClassVar[str] = "run.queued"


class RunDispatching(RunPayload):
    """An Attempt of the Run was claimed."""

    TYPE: ClassVar[str] = "run.dispatching"

    number: Count
    """The Attempt's number."""


class RunRunning(RunPayload):
    """The Run's process is confirmed, or the Run goes on after an approval."""

    TYPE: ClassVar[str] = "run.running"


class RunWaitingApproval(RunPayload, WithReason):
    """The Run waits for somebody's approval; its Attempt stays active."""

    TYPE: ClassVar[str] = "run.waiting_approval"


class RunRetryWait(RunPayload):
    """The Run will be tried again when it is due."""

    TYPE: ClassVar[str] = "run.retry_wait"

    due_at_ms: AtMs
    """When it may be queued again (R12.1)."""
    group_left: bool | None = None
    """True where the last Attempt left members of its process group behind (R12.1)."""


class RunSucceeded(RunPayload, WithOutcome):
    """The Run ended well."""

    TYPE: ClassVar[str] = "run.succeeded"


class RunFailed(RunPayload, WithOutcome):
    """The Run ended badly and is not tried again."""

    TYPE: ClassVar[str] = "run.failed"


class RunCancelled(RunPayload, WithIntent):
    """The Run ended because it was cancelled."""

    TYPE: ClassVar[str] = "run.cancelled"


class RunTimedOut(RunPayload, WithIntent):
    """The Run ended because its time was over."""

    TYPE: ClassVar[str] = "run.timed_out"


class RunLost(RunPayload, WithEvidence):
    """The Run's Attempt is proven gone without an outcome (R11.5)."""

    TYPE: ClassVar[str] = "run.lost"


class RunCancelRequested(RunPayload, WithReason):
    """Somebody asked the Run to stop. Nothing has stopped yet (R6.1)."""

    TYPE: ClassVar[str] = "run.cancel_requested"

    kind: IntentKind
    """Why it shall stop."""


class _Dispatch(Payload):
    attempt_id: Id
    """The Attempt that the dispatch belongs to."""
    dispatch_count: Count
    """How often the dispatch had been claimed by then."""


class _DispatchResult(_Dispatch):
    result: Name
    """What came of it, a word from R7.4's table."""


class RunCancelDispatched(RunPayload, _DispatchResult):
    """The cancellation was delivered, or there was nothing left to deliver it to (R7.4)."""

    TYPE: ClassVar[str] = "run.cancel_dispatched"

    escalation: Escalation
    """The strongest signal that it needed."""


class RunCancelDispatchFailed(RunPayload, _DispatchResult):
    """The cancellation could not be delivered this time; it is tried again (R7.4)."""

    TYPE: ClassVar[str] = "run.cancel_dispatch_failed"


class RunCancelDispatchBlocked(RunPayload, _DispatchResult):
    """The cancellation cannot be delivered; an operator must look (R7.4)."""

    TYPE: ClassVar[str] = "run.cancel_dispatch_blocked"


class RunCancelDispatchTakenOver(RunPayload, _Dispatch):
    """A worker took over a dispatch whose holder's lease had expired (R1.5)."""

    TYPE: ClassVar[str] = "run.cancel_dispatch_taken_over"

    previous_owner: Name
    """The worker whose lease had expired."""


class RunCancelDispatchRearmed(RunPayload, WithReason):
    """An operator gave a dispatch new tries (R13.2)."""

    TYPE: ClassVar[str] = "run.cancel_dispatch_rearmed"

    attempt_id: Id
    """The Attempt that the dispatch belongs to."""
    delay_ms: AtMs
    """How long to wait before the next try, in milliseconds."""


class RunCancelDispatchAbandoned(RunPayload, WithReason):
    """An operator ended the delivery of a cancellation; no more signals (R13.2)."""

    TYPE: ClassVar[str] = "run.cancel_dispatch_abandoned"

    attempt_id: Id
    """The Attempt that the dispatch belongs to."""


class RunStopConfirmed(RunPayload, WithReason, WithEvidence):
    """A cancelled Run is known to have stopped (R12.2)."""

    TYPE: ClassVar[str] = "run.stop_confirmed"

    forced: bool | None = None
    """True where an operator insisted although the process seemed to run (R13.2)."""


class RunRecoveryManual(RunPayload):
    """Recovery cannot decide; an operator must (R11.10)."""

    TYPE: ClassVar[str] = "run.recovery_manual"

    purpose: Name
    """What the claim was for: ``recovery``, ``stop`` or ``retry`` (R11.2)."""
    reason: Name
    """Why no program can decide, a word from a fixed list."""


class RunRecoveryReleased(RunPayload, WithReason):
    """An operator let recovery try again (R13.2)."""

    TYPE: ClassVar[str] = "run.recovery_released"

    purpose: Name
    """What the claim is for: ``recovery``, ``stop`` or ``retry`` (R11.2)."""


class RunRecoveryAttested(RunPayload, WithReason):
    """An operator attested that the Run's Attempt does not run (R13.2)."""

    TYPE: ClassVar[str] = "run.recovery_attested"

    forced: bool | None = None
    """True where an operator insisted although the process seemed to run (R13.2)."""


class AttemptClaimed(AttemptPayload):
    """A worker took the Run up: one actual try of it begins."""

    TYPE: ClassVar[str] = "attempt.claimed"

    number: Count
    """The Attempt's number: 1, 2, 3 … (R2.8)."""
    executor_type: Name
    """The name of the way of executing."""
    gated: bool = False
    """True where the executor lets no process run before its handle is recorded (R10.1)."""
    worker_id: Name | None = None
    """The incarnation of the worker that claimed it, where it has an id (R3.5)."""


class AttemptStarting(AttemptPayload):
    """The start barrier was passed: from here on a process may exist."""

    TYPE: ClassVar[str] = "attempt.starting"

    deadline_at_ms: AtMs | None = None
    """When the Attempt's time is over (R10.4)."""


class AttemptRunning(AttemptPayload):
    """The Attempt's process is confirmed."""

    TYPE: ClassVar[str] = "attempt.running"


class AttemptSucceeded(AttemptPayload, WithOutcome):
    """The Attempt ended well."""

    TYPE: ClassVar[str] = "attempt.succeeded"


class AttemptFailed(AttemptPayload, WithOutcome):
    """The Attempt ended badly."""

    TYPE: ClassVar[str] = "attempt.failed"


class AttemptCancelled(AttemptPayload, WithIntent):
    """The Attempt ended because its Run was cancelled."""

    TYPE: ClassVar[str] = "attempt.cancelled"


class AttemptTimedOut(AttemptPayload, WithIntent):
    """The Attempt ended because its time was over."""

    TYPE: ClassVar[str] = "attempt.timed_out"


class AttemptLost(AttemptPayload, WithEvidence):
    """The Attempt is proven gone without an outcome (R11.5)."""

    TYPE: ClassVar[str] = "attempt.lost"


class AttemptLateCallbackIgnored(AttemptPayload):
    """A report came after the Attempt had ended; it changed no status (R2.7)."""

    TYPE: ClassVar[str] = "attempt.late_callback_ignored"

    sequence: Count
    """The callback's own number."""
    reported: Name
    """What it reported: an outcome, ``running``, ``waiting_approval`` or ``going_on``."""
    exit_code: ExitCode | None = None
    """The reported exit code."""
    signal: Signal | None = None
    """The reported signal."""


FACT_TYPES: Final[dict[str, type[Payload]]] = {
    model.TYPE: model
    for model in (
        RunCreated,
        RunImported,
        RunQueued,
        RunDispatching,
        RunRunning,
        RunWaitingApproval,
        RunRetryWait,
        RunSucceeded,
        RunFailed,
        RunCancelled,
        RunTimedOut,
        RunLost,
        RunCancelRequested,
        RunCancelDispatched,
        RunCancelDispatchFailed,
        RunCancelDispatchBlocked,
        RunCancelDispatchTakenOver,
        RunCancelDispatchRearmed,
        RunCancelDispatchAbandoned,
        RunStopConfirmed,
        RunRecoveryManual,
        RunRecoveryReleased,
        RunRecoveryAttested,
        AttemptClaimed,
        AttemptStarting,
        AttemptRunning,
        AttemptSucceeded,
        AttemptFailed,
        AttemptCancelled,
        AttemptTimedOut,
        AttemptLost,
        AttemptLateCallbackIgnored,
    )
}
"""Every type of fact by its stable name (R3.8).

Types are looked up here only, never by an import that a database names.
"""

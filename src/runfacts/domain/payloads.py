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

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from runfacts.domain.lifecycle import ExecutionOwner, IntentKind
from runfacts.domain.retry import RetryPolicy
from runfacts.domain.texts import ERROR_CODE_MAX, ERROR_SUMMARY_MAX, NAME_MAX, REASON_MAX

Id = Annotated[str, StringConstraints(min_length=36, max_length=36)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_MAX)]
Sha256 = Annotated[str, StringConstraints(min_length=64, max_length=64)]
Count = Annotated[int, Field(ge=1, lt=1 << 53)]
AtMs = Annotated[int, Field(ge=0, lt=1 << 53)]
ErrorCode = Annotated[str, StringConstraints(max_length=ERROR_CODE_MAX)]
ErrorSummary = Annotated[str, StringConstraints(max_length=ERROR_SUMMARY_MAX)]
ReasonText = Annotated[str, StringConstraints(max_length=REASON_MAX)]


class Evidence(StrEnum):
    """By what an end is known, where nobody reported it (R3.6)."""

    PRE_START = "pre_start"
    """It never ran: no process was ever let through the gate."""
    NOT_RUNNING = "not_running"
    """An evidence provider proved that nothing of it runs."""
    ATTESTED = "attested"
    """An operator's word."""


class OutcomeKind(StrEnum):
    """What an executor can report of an Attempt that ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


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


class _Outcome(Payload):
    exit_code: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None
    """How the command ended by itself."""
    signal: Annotated[int, Field(ge=1, le=64)] | None = None
    """The number of the signal that ended the command."""
    error_code: ErrorCode | None = None
    error_code_length: Count | None = None
    error_code_sha256: Sha256 | None = None
    error_summary: ErrorSummary | None = None
    error_summary_length: Count | None = None
    error_summary_sha256: Sha256 | None = None
    group_left: bool | None = None
    """True where other members of the command's process group were left behind (R6.5)."""


class _EndedByIntent(_Outcome):
    reason: IntentKind | None = None
    """The kind of the cancellation that ended it; ``timeout`` also where the table has no timed_out (R2.5)."""
    observed: OutcomeKind | None = None
    """What was reported although a cancellation had been requested first (R6.5)."""


class _WithReason(Payload):
    reason: ReasonText | None = None
    reason_length: Count | None = None
    reason_sha256: Sha256 | None = None


class _Lost(Payload):
    evidence: Evidence
    provider_type: Name | None = None
    """The executor type whose evidence provider answered, where one was asked."""


class RunCreated(RunPayload):
    """A Run was created."""

    TYPE: ClassVar[str] = "run.created"

    task: Name
    policy: RetryPolicy
    execution_owner: ExecutionOwner = ExecutionOwner.RUNTIME
    idempotency_key: Name | None = None
    retry_of_run_id: Id | None = None
    """The Run that this one repeats by hand (R2.9)."""
    deadline_at_ms: AtMs | None = None
    timeout_ms: Annotated[int, Field(ge=1, lt=1 << 53)] | None = None
    """How long each Attempt may run from its start barrier, in milliseconds (R10.4)."""


class RunImported(RunPayload):
    """A finished history of another ledger was taken in; its Run is kept, never executed (R14.2)."""

    TYPE: ClassVar[str] = "run.imported"

    execution_owner: ExecutionOwner = ExecutionOwner.LEGACY


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


class RunWaitingApproval(RunPayload, _WithReason):
    """The Run waits for somebody's approval; its Attempt stays active."""

    TYPE: ClassVar[str] = "run.waiting_approval"


class RunRetryWait(RunPayload):
    """The Run will be tried again when it is due."""

    TYPE: ClassVar[str] = "run.retry_wait"

    due_at_ms: AtMs
    group_left: bool | None = None
    """True where the last Attempt left members of its process group behind (R12.1)."""


class RunSucceeded(RunPayload, _Outcome):
    """The Run ended well."""

    TYPE: ClassVar[str] = "run.succeeded"


class RunFailed(RunPayload, _Outcome):
    """The Run ended badly and is not tried again."""

    TYPE: ClassVar[str] = "run.failed"


class RunCancelled(RunPayload, _EndedByIntent):
    """The Run ended because it was cancelled."""

    TYPE: ClassVar[str] = "run.cancelled"


class RunTimedOut(RunPayload, _EndedByIntent):
    """The Run ended because its time was over."""

    TYPE: ClassVar[str] = "run.timed_out"


class RunLost(RunPayload, _Lost):
    """The Run's Attempt is proven gone without an outcome (R11.5)."""

    TYPE: ClassVar[str] = "run.lost"


class RunCancelRequested(RunPayload, _WithReason):
    """Somebody asked the Run to stop. Nothing has stopped yet (R6.1)."""

    TYPE: ClassVar[str] = "run.cancel_requested"

    kind: IntentKind


class _Dispatch(Payload):
    attempt_id: Id
    dispatch_count: Count


class _DispatchResult(_Dispatch):
    result: Name


class RunCancelDispatched(RunPayload, _DispatchResult):
    """The cancellation was delivered, or there was nothing left to deliver it to (R7.4)."""

    TYPE: ClassVar[str] = "run.cancel_dispatched"

    escalation: Escalation


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


class RunCancelDispatchRearmed(RunPayload, _WithReason):
    """An operator gave a dispatch new tries (R13.2)."""

    TYPE: ClassVar[str] = "run.cancel_dispatch_rearmed"

    attempt_id: Id
    delay_ms: AtMs


class RunCancelDispatchAbandoned(RunPayload, _WithReason):
    """An operator ended the delivery of a cancellation; no more signals (R13.2)."""

    TYPE: ClassVar[str] = "run.cancel_dispatch_abandoned"

    attempt_id: Id


class RunStopConfirmed(RunPayload, _WithReason, _Lost):
    """A cancelled Run is known to have stopped (R12.2)."""

    TYPE: ClassVar[str] = "run.stop_confirmed"

    forced: bool | None = None
    """True where an operator insisted although the process seemed to run (R13.2)."""


class RunRecoveryManual(RunPayload):
    """Recovery cannot decide; an operator must (R11.10)."""

    TYPE: ClassVar[str] = "run.recovery_manual"

    purpose: Name
    reason: Name


class RunRecoveryReleased(RunPayload, _WithReason):
    """An operator let recovery try again (R13.2)."""

    TYPE: ClassVar[str] = "run.recovery_released"

    purpose: Name


class RunRecoveryAttested(RunPayload, _WithReason):
    """An operator attested that the Run's Attempt does not run (R13.2)."""

    TYPE: ClassVar[str] = "run.recovery_attested"

    forced: bool | None = None
    """True where an operator insisted although the process seemed to run (R13.2)."""


class AttemptClaimed(AttemptPayload):
    """A worker took the Run up: one actual try of it begins."""

    TYPE: ClassVar[str] = "attempt.claimed"

    number: Count
    executor_type: Name
    gated: bool = False
    """True where the executor lets no process run before its handle is recorded (R10.1)."""
    worker_id: Name | None = None


class AttemptStarting(AttemptPayload):
    """The start barrier was passed: from here on a process may exist."""

    TYPE: ClassVar[str] = "attempt.starting"

    deadline_at_ms: AtMs | None = None


class AttemptRunning(AttemptPayload):
    """The Attempt's process is confirmed."""

    TYPE: ClassVar[str] = "attempt.running"


class AttemptSucceeded(AttemptPayload, _Outcome):
    """The Attempt ended well."""

    TYPE: ClassVar[str] = "attempt.succeeded"


class AttemptFailed(AttemptPayload, _Outcome):
    """The Attempt ended badly."""

    TYPE: ClassVar[str] = "attempt.failed"


class AttemptCancelled(AttemptPayload, _EndedByIntent):
    """The Attempt ended because its Run was cancelled."""

    TYPE: ClassVar[str] = "attempt.cancelled"


class AttemptTimedOut(AttemptPayload, _EndedByIntent):
    """The Attempt ended because its time was over."""

    TYPE: ClassVar[str] = "attempt.timed_out"


class AttemptLost(AttemptPayload, _Lost):
    """The Attempt is proven gone without an outcome (R11.5)."""

    TYPE: ClassVar[str] = "attempt.lost"


class AttemptLateCallbackIgnored(AttemptPayload):
    """A report came after the Attempt had ended; it changed no status (R2.7)."""

    TYPE: ClassVar[str] = "attempt.late_callback_ignored"

    sequence: Count
    """The callback's own number."""
    reported: Name
    """What it reported: an outcome, ``running``, ``waiting_approval`` or ``going_on``."""
    exit_code: Annotated[int, Field(ge=0, le=0xFFFFFFFF)] | None = None
    signal: Annotated[int, Field(ge=1, le=64)] | None = None


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

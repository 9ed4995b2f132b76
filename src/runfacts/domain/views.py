"""
What reads give: the current state of Runs and Attempts, and pages of things (R1.4).

Views are plain frozen values. They hold no token and no secret; the handle and the PID of a process are only in
``ExecutionView``, which is for whoever looks after processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import ClaimState, ManualReason, Purpose
from runfacts.domain.retry import RetryPolicy

Item = TypeVar("Item")


class LeaseState(StrEnum):
    """What an Attempt's execution lease is worth now (R5.3)."""

    VALID = "valid"
    EXPIRED = "expired"
    NONE = "none"
    """The Attempt has ended; its lease means nothing any more."""


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A page of items, and the cursor of the next one; None where there is none."""

    items: tuple[Item, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedAttempt:
    """What facts say of one Attempt, now or at some moment."""

    attempt_id: str
    number: int
    status: AttemptStatus
    executor_type: str
    worker_id: str | None
    exit_code: int | None
    signal: int | None
    error_code: str | None
    error_summary: str | None
    observed: str | None
    """What was reported, where a cancellation had been requested first (R6.5)."""


@dataclass(frozen=True, slots=True)
class AttemptView(RecordedAttempt):
    """One Attempt as it stands."""

    lease: LeaseState
    lease_expires_at_ms: int
    deadline_at_ms: int | None
    claimed_at_ms: int
    started_at_ms: int | None
    running_at_ms: int | None
    finished_at_ms: int | None
    evidence: Evidence | None = None
    """What it rests on that it is lost, where it is (R11.5)."""


@dataclass(frozen=True, slots=True)
class DispatchView:
    """Where the delivery of a Run's cancellation stands (R7.1). ``version`` is what ``rearm`` and ``abandon`` take."""

    status: DispatchStatus
    version: int
    dispatch_count: int
    """How often somebody claimed it."""
    last_result: DispatchResult | None
    next_attempt_at_ms: int | None


@dataclass(frozen=True, slots=True)
class CancellationView:
    """That a Run was asked to stop (R6.1), and how far that has come."""

    requested_at_ms: int
    kind: IntentKind
    reason: str | None
    dispatch: DispatchView | None
    """None where there was nothing to deliver, or nobody has claimed it yet and no row was made."""


@dataclass(frozen=True, slots=True)
class RecoveryView:
    """Where it stands to find out about a Run: whether it runs, has stopped, or may be tried again (R11.2).

    It is the one claim that matters for the Run as it is now.
    """

    state: ClaimState
    purpose: Purpose
    version: int
    """What ``release`` and ``attest_not_running`` take."""
    reason: ManualReason | None
    """Why it waits for an operator, where it does."""
    next_claim_at_ms: int | None
    """When somebody looks again, where that is set."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One Run as a board lists it."""

    run_id: str
    project: str
    task: str
    status: RunStatus
    version: int
    created_at_ms: int
    intent_at_ms: int | None
    """When somebody asked it to stop."""
    dispatch: DispatchStatus | None
    """Where the delivery of that stands."""
    recovery: RecoveryView | None = None
    """Where it stands to find out about the Run; None where nobody has, or needs to."""
    retry_due_at_ms: int | None = None
    """When it is tried again, where it waits for that."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What facts say of one Run, now or at some moment."""

    run_id: str
    project: str
    task: str
    status: RunStatus
    version: int
    execution_owner: ExecutionOwner
    policy: RetryPolicy
    idempotency_key: str | None
    retry_of_run_id: str | None
    created_at_ms: int
    updated_at_ms: int
    """When the last of these facts was recorded."""
    finished_at_ms: int | None
    deadline_at_ms: int | None


@dataclass(frozen=True, slots=True)
class RunView(RecordedRun):
    """One Run as it stands, with its Attempts."""

    retry_due_at_ms: int | None
    attempts: tuple[AttemptView, ...]
    cancellation: CancellationView | None
    recovery: RecoveryView | None = None
    """Where it stands to find out about it; None where nobody has, or needs to."""

    @property
    def active_attempt(self) -> AttemptView | None:
        """The Attempt that is under way, if one is."""
        return next((item for item in self.attempts if item.finished_at_ms is None), None)


@dataclass(frozen=True, slots=True)
class ExecutionView:
    """Where and how an Attempt is executed (R1.2). For whoever looks after processes; holds no token.

    Handle and number are not shown when it is printed.
    """

    attempt_id: str
    run_id: str
    executor_type: str
    gated: bool
    scope: str
    worker_id: str | None
    handle: str | None = field(repr=False)
    pid: int | None = field(repr=False)
    lease_expires_at_ms: int
    seen_at_ms: int | None
    """When its executor was heard of last: the claim, the handle or the latest renewal (R12.3)."""
    callback_sequence: int
    deadline_at_ms: int | None
    log_path: str | None
    receipt_path: str | None
    attempt_status: AttemptStatus
    cancellation_requested: bool


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that ``verify`` recomputed and found otherwise than it is recorded."""

    run_id: str
    kind: str
    field: str
    recorded: str | None
    recomputed: str | None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The last fact of a Run: kept elsewhere, it shows any later rewriting of the facts up to it (R14.2)."""

    run_id: str
    version: int
    hash: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What ``verify`` looked at and found."""

    runs: int
    facts: int
    unknown_types: dict[str, int]
    differences: tuple[Difference, ...]

    @property
    def clean(self) -> bool:
        """Whether nothing differs. Unknown types are no difference (R3.7)."""
        return not self.differences

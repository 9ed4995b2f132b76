"""
What a holder saw of a Run and its Attempt before it asked for evidence (R11.3, R11.6).

The mutation that follows compares every field again, under the locks of its transaction: what was proven was proven
of exactly this. Times that were judged (whether a lease is valid) are not part of it; the times themselves are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.retry import RetryPolicy


@dataclass(frozen=True, slots=True)
class ExecutionSnapshot:
    """The execution of the Attempt. Handle and number are not shown."""

    executor_type: str
    gated: bool
    scope: str
    worker_id: str | None
    handle: str | None = field(repr=False)
    pid: int | None = field(repr=False)
    lease_token_digest: str = field(repr=False)
    lease_expires_at_ms: int
    callback_sequence: int
    deadline_at_ms: int | None
    receipt_path: str | None = field(repr=False)
    seen_at_ms: int | None
    """When the handle was recorded or the lease last renewed, the later; the claim until then."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A Run, the Attempt in question and its execution, as read in one statement or transaction."""

    run_id: str
    run_status: RunStatus
    run_version: int
    execution_owner: ExecutionOwner
    intent_kind: IntentKind | None
    intent_at_ms: int | None
    retry_due_at_ms: int | None
    group_left: bool
    """Whether the Attempt before left members of its group behind (R12.1)."""
    policy: RetryPolicy
    unknown_types: bool
    """Whether the Run has facts that this release does not understand (R3.7)."""
    attempt_id: str | None
    attempt_number: int | None
    attempt_status: AttemptStatus | None
    execution: ExecutionSnapshot | None
    now_ms: int = field(compare=False)
    """The store's time when it was read."""
    lease_valid: bool = field(compare=False)
    """Whether the execution lease was valid then, by the store's own time (R5)."""
    dispatch_finished_at_ms: int | None = field(compare=False, default=None)
    """Since when the Run's dispatch is finished (dispatched or blocked); None while it is not, or where there is none.

    Only of interest to a stop confirmation (R12.2).
    """
    dispatch_leased: bool = field(compare=False, default=False)
    """Whether a worker holds the Run's dispatch right now, by a valid lease (R12.2)."""
    attempt_latest: bool = True
    """Whether the Attempt is the Run's latest; a later one means that the Run has moved on (R11.4)."""

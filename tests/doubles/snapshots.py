"""Snapshots of a Run and its Attempt, as a holder of a recovery claim reads them."""

from __future__ import annotations

from typing import Any

from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, RunStatus
from runfacts.domain.recovery.claims import ItemKind, Purpose, RecoveryClaimed, RecoveryKey
from runfacts.domain.recovery.evidence import Evidence, Unknown
from runfacts.domain.recovery.snapshots import ExecutionSnapshot, Snapshot
from runfacts.domain.retry import RetryPolicy

RUN, ATTEMPT = "run-1", "attempt-1"
NOW_MS = 1_000_000
LEASE_MS = 30_000

ANSWERS = {
    "running": Evidence.running(),
    "not_running": Evidence.not_running(),
    **{reason.value: Evidence.unknown(reason) for reason in Unknown},
}
"""Everything that a provider can answer."""


def execution(**other: Any) -> ExecutionSnapshot:  # noqa: ANN401 - any field
    """An execution whose lease has just expired."""
    fields: dict[str, Any] = {
        "executor_type": "batch",
        "gated": True,
        "scope": "here",
        "worker_id": "worker-0",
        "handle": "handle",
        "pid": 7,
        "lease_token_digest": "digest",
        "lease_expires_at_ms": NOW_MS,
        "callback_sequence": 1,
        "deadline_at_ms": None,
        "receipt_path": None,
        "seen_at_ms": NOW_MS - LEASE_MS,
    }
    return ExecutionSnapshot(**fields | other)


def snapshot(run: str = "running", attempt: str | None = "running", **other: Any) -> Snapshot:  # noqa: ANN401 - any field
    """A Run and its first Attempt, if it has one, whose lease has expired."""
    fields: dict[str, Any] = {
        "run_id": RUN,
        "run_status": RunStatus(run),
        "run_version": 6,
        "execution_owner": ExecutionOwner.RUNTIME,
        "intent_kind": None,
        "intent_at_ms": None,
        "retry_due_at_ms": None,
        "group_left": False,
        "policy": RetryPolicy(),
        "unknown_types": False,
        "attempt_id": None if attempt is None else ATTEMPT,
        "attempt_number": None if attempt is None else 1,
        "attempt_status": None if attempt is None else AttemptStatus(attempt),
        "execution": None if attempt is None else execution(),
        "now_ms": NOW_MS,
        "lease_valid": False,
    }
    return Snapshot(**fields | other)


def claim_for(
    purpose: Purpose = Purpose.RECOVERY,
    kind: ItemKind | None = None,
    item_id: str = ATTEMPT,
    **other: Any,  # noqa: ANN401 - any field
) -> RecoveryClaimed:
    """A claim that has been granted."""
    kind = kind or (ItemKind.ATTEMPT if purpose is Purpose.RECOVERY else ItemKind.RUN)
    fields: dict[str, Any] = {
        "run_id": RUN,
        "attempt_id": ATTEMPT,
        "executor_type": "batch",
        "scope": "here",
        "owner": "worker-1",
        "version": 1,
        "expires_at_ms": NOW_MS + LEASE_MS,
        "delays": 0,
        "failures": 0,
        "foreign": False,
        "token": "rft_token",
    }
    return RecoveryClaimed(RecoveryKey(purpose, kind, item_id), **fields | other)

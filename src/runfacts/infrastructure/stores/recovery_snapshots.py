"""Snapshots: a Run, the Attempt in question and its execution as they are now (R11.3, R11.6)."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import bindparam, select

from runfacts.domain.cancellation.dispatch import Times
from runfacts.domain.cancellation.results import FINISHED_DISPATCH, DispatchStatus
from runfacts.domain.history import History
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.claims import ItemKind, RecoveryClaimed
from runfacts.domain.recovery.snapshots import ExecutionSnapshot, Snapshot
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.dispatches import read_dispatch
from runfacts.infrastructure.stores.recovery_targets import Moments

SELECT_RECOVERY_EXECUTION: Final = Statement(
    "select_recovery_execution",
    select(
        executions.c.executor_type,
        executions.c.gated,
        executions.c.scope,
        executions.c.worker_id,
        executions.c.handle,
        executions.c.pid,
        executions.c.lease_token_digest,
        executions.c.lease_expires_at_ms,
        executions.c.callback_sequence,
        executions.c.deadline_at_ms,
        executions.c.receipt_path,
        executions.c.seen_at_ms,
        executions.c.lease_boot_id,
        executions.c.lease_expires_boot_ms,
    ).where(executions.c.attempt_id == bindparam("attempt_id")),
)


def attempt_of(claim: RecoveryClaimed, history: History) -> str | None:
    """Give the Attempt that a claim is about: exactly this one, or the Run's latest (R11.3)."""
    if claim.key.kind is ItemKind.ATTEMPT:
        return claim.key.item_id
    latest = history.latest_attempt
    return None if latest is None else latest.id


def snapshot_of(reading: Reading, history: History, attempt_id: str | None, now_ms: int) -> Snapshot:
    """Take the snapshot of a Run whose history was just read."""
    run = history.run
    moments = Moments.of(reading, now_ms)
    attempt = None if attempt_id is None else history.attempts.get(attempt_id)
    execution, lease_valid = (None, False) if attempt_id is None else _execution(reading, attempt_id, moments)
    intent = run.intent
    finished_at_ms, leased = (None, False) if intent is None else _dispatch(reading, run.id, now_ms)
    return Snapshot(
        run_id=run.id,
        run_status=run.status,
        run_version=history.version,
        execution_owner=run.execution_owner,
        intent_kind=None if intent is None else intent.kind,
        intent_at_ms=None if intent is None else intent.requested_at_ms,
        retry_due_at_ms=run.retry_due_at_ms,
        group_left=run.group_left,
        policy=run.policy,
        unknown_types=bool(history.unknown_types),
        attempt_id=attempt_id,
        attempt_number=None if attempt is None else attempt.number,
        attempt_status=None if attempt is None else attempt.status,
        attempt_latest=attempt is history.latest_attempt,
        execution=execution,
        now_ms=now_ms,
        lease_valid=lease_valid,
        dispatch_finished_at_ms=finished_at_ms,
        dispatch_leased=leased,
    )


def _execution(reading: Reading, attempt_id: str, moments: Moments) -> tuple[ExecutionSnapshot | None, bool]:
    row: Any = reading.row(SELECT_RECOVERY_EXECUTION, {"attempt_id": attempt_id})
    if row is None:
        return None, False
    executor_type, gated, *columns, boot_id, boot_ms = row
    execution = ExecutionSnapshot(executor_type, bool(gated), *columns)
    _, _, bound_ms = Settings.bounds()["execution_lease_ms"]
    return execution, moments.left_ms(execution.lease_expires_at_ms, boot_id, boot_ms, bound_ms) > 0


def _dispatch(reading: Reading, run_id: str, now_ms: int) -> tuple[int | None, bool]:
    """Say since when the Run's dispatch is finished, if it is, and whether somebody holds it."""
    stored = read_dispatch(reading, run_id)
    if stored is None:
        return None, False
    row = stored.dispatch
    finished_at_ms = row.updated_at_ms if row.status in FINISHED_DISPATCH else None
    leased = row.status is DispatchStatus.LEASED and stored.times(reading, now_ms) is Times.LEASE_VALID
    return finished_at_ms, leased

"""The view of one Run: its history, and what its executions' leases are worth now (R1.4, R5.3)."""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, select

from runfacts.domain.attempt import Attempt
from runfacts.domain.history import History
from runfacts.domain.leases import is_valid
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.operators import item_of
from runfacts.domain.run import Intent
from runfacts.domain.views import AttemptView, CancellationView, DispatchView, LeaseState, RunView
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.dispatches import read_dispatch
from runfacts.infrastructure.stores.recovery_queue import read_standing

SELECT_LEASES: Final = Statement(
    "select_leases",
    select(
        executions.c.attempt_id,
        executions.c.lease_expires_at_ms,
        executions.c.lease_boot_id,
        executions.c.lease_expires_boot_ms,
        executions.c.deadline_at_ms,
    ).where(executions.c.run_id == bindparam("run_id")),
)

Lease = tuple[int, bool]
"""When a lease ends, and whether it is valid now."""


def view_of(reading: Reading, history: History, *, new: bool = False) -> RunView:
    """Make the view of a Run whose history was just read or written; about a ``new`` one nothing else stands."""
    run = history.run
    leases = read_leases(reading, run.id) if history.attempts else {}
    intent = run.intent
    return RunView(
        run_id=run.id,
        project=run.project,
        task=run.task,
        status=run.status,
        version=history.version,
        execution_owner=run.execution_owner,
        policy=run.policy,
        idempotency_key=run.idempotency_key,
        retry_of_run_id=run.retry_of_run_id,
        created_at_ms=run.created_at_ms,
        updated_at_ms=history.recorded_at_ms,
        finished_at_ms=run.finished_at_ms,
        deadline_at_ms=run.deadline_at_ms,
        retry_due_at_ms=run.retry_due_at_ms,
        attempts=tuple(
            _attempt_view(attempt, leases.get(attempt.id, (0, False))) for attempt in history.attempts.values()
        ),
        cancellation=None if intent is None else _cancellation_view(reading, run.id, intent),
        recovery=None if new else read_standing(reading, item_of(history)),
    )


def _cancellation_view(reading: Reading, run_id: str, intent: Intent) -> CancellationView:
    stored = read_dispatch(reading, run_id)
    dispatch = None
    if stored is not None:
        row = stored.dispatch
        dispatch = DispatchView(row.status, row.version, row.dispatch_count, row.last_result, row.next_attempt_at_ms)
    return CancellationView(intent.requested_at_ms, intent.kind, intent.reason, dispatch)


def _attempt_view(attempt: Attempt, lease: Lease) -> AttemptView:
    expires_at_ms, valid = lease
    held = LeaseState.VALID if valid else LeaseState.EXPIRED
    state = held if attempt.active else LeaseState.NONE
    return AttemptView(
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
        lease=state,
        lease_expires_at_ms=expires_at_ms,
        deadline_at_ms=attempt.deadline_at_ms,
        claimed_at_ms=attempt.claimed_at_ms,
        started_at_ms=attempt.started_at_ms,
        running_at_ms=attempt.running_at_ms,
        finished_at_ms=attempt.finished_at_ms,
        evidence=attempt.evidence,
    )


def read_leases(reading: Reading, run_id: str) -> dict[str, Lease]:
    """Give the leases of a Run's executions by Attempt, judged by the time that decides.

    The database's, or on SQLite the boot clock (R5).
    """
    _, _, bound_ms = Settings.bounds()["execution_lease_ms"]
    rows = reading.rows(SELECT_LEASES, {"run_id": run_id})
    if reading.dialect == SQLITE:
        boot_id, now_ms = reading.clock.boot_id(), reading.clock.boot_ms()
        return {row[0]: (row[1], row[2] == boot_id and is_valid(now_ms, row[3], bound_ms)) for row in rows}
    now_ms = reading.now_ms()
    return {row[0]: (row[1], is_valid(now_ms, row[1], bound_ms)) for row in rows}

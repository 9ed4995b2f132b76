"""Executions as those see them who look after processes: with handles and paths, never with tokens (R1.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import bindparam, select

from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.views import ExecutionView, Page
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempt_is_active, attempts, executions, runs
from runfacts.infrastructure.database.transactions import Reading

_VIEW: Final = (
    select(
        executions.c.attempt_id,
        executions.c.run_id,
        executions.c.executor_type,
        executions.c.gated,
        executions.c.scope,
        executions.c.worker_id,
        executions.c.handle,
        executions.c.pid,
        executions.c.lease_expires_at_ms,
        executions.c.seen_at_ms,
        executions.c.callback_sequence,
        executions.c.deadline_at_ms,
        executions.c.log_path,
        executions.c.receipt_path,
        attempts.c.status,
        runs.c.intent_at_ms,
    )
    .join_from(executions, attempts, attempts.c.attempt_id == executions.c.attempt_id)
    .join(runs, runs.c.run_id == executions.c.run_id)
)

SELECT_EXECUTION_VIEW: Final = Statement(
    "select_execution_view", _VIEW.where(executions.c.attempt_id == bindparam("attempt_id"))
)
SELECT_OPEN_EXECUTIONS: Final = Statement(
    "select_open_executions",
    _VIEW.where(
        executions.c.executor_type == bindparam("executor_type"),
        executions.c.scope == bindparam("scope"),
        # The index is of these rows only.
        executions.c.closed_at_ms.is_(None),
        executions.c.receipt_path.is_not(None),
        attempt_is_active(attempts.c.status),
        executions.c.attempt_id > bindparam("after"),
    )
    .order_by(executions.c.attempt_id)
    .limit(bindparam("limit")),
)


def read_execution_view(reading: Reading, attempt_id: str) -> ExecutionView | None:
    """Give an Attempt's execution; None where there is no such Attempt."""
    row = reading.row(SELECT_EXECUTION_VIEW, {"attempt_id": attempt_id})
    return None if row is None else _view_of(row)


def read_open_executions(
    reading: Reading, executor_type: str, scope: str, *, limit: int, after: str | None
) -> Page[ExecutionView]:
    """Give a page of executions of active Attempts that keep a receipt, by Attempt id."""
    rows = reading.rows(
        SELECT_OPEN_EXECUTIONS,
        {"executor_type": executor_type, "scope": scope, "after": after or "", "limit": limit + 1},
    )
    items = tuple(_view_of(row) for row in rows[:limit])
    return Page(items, items[-1].attempt_id if len(rows) > limit else None)


def _view_of(row: Sequence[Any]) -> ExecutionView:
    return ExecutionView(
        attempt_id=row[0],
        run_id=row[1],
        executor_type=row[2],
        gated=bool(row[3]),
        scope=row[4],
        worker_id=row[5],
        handle=row[6],
        pid=row[7],
        lease_expires_at_ms=row[8],
        seen_at_ms=row[9],
        callback_sequence=row[10],
        deadline_at_ms=row[11],
        log_path=row[12],
        receipt_path=row[13],
        attempt_status=AttemptStatus(row[14]),
        cancellation_requested=row[15] is not None,
    )

"""
The queues of recovery in numbers, for gauges (R7.7): a few queries on current state, of bounded cost.

Attempts that nobody has come for are found by their executions, everything else by its row. What is not due yet is no
candidate: a stop whose host still has its lease, a retry that waits for its time. Nor is a Run without an owner before
a worker's first look has given it a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Select, and_, bindparam, case, func, literal_column, or_, select

from runfacts.domain.measures import BACKING_OFF, CLAIMED, DUE, MANUAL, Place, QueueState
from runfacts.domain.recovery.claims import ClaimState, ItemKind, Purpose
from runfacts.infrastructure.database.columns import among
from runfacts.infrastructure.database.dialects import constant
from runfacts.infrastructure.database.recovery_tables import IS_CLAIMED, IS_DUE_SOMETIME, IS_MANUAL
from runfacts.infrastructure.database.recovery_tables import recovery_claims as table
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempt_is_active, attempts, executions, runs
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.recovery_queue import IS_CANDIDATE

DEPTH_COUNTED_MAX: Final = 10_000
"""How many candidates of one purpose are counted; further ones are not."""

_NOW: Final = bindparam("now_ms", type_=BigInteger)
_LIMIT: Final = bindparam("limit", type_=BigInteger)


def _counted(*columns: ColumnElement[Any]) -> Select[Any]:
    """Count by the first columns; the last one says since when each item is there."""
    *by, since = columns
    return select(*by, func.count(), func.min(since)).group_by(*by)


_due_attempts: Final = (
    select(executions.c.recover_at_ms)
    .join_from(executions, attempts, attempts.c.attempt_id == executions.c.attempt_id)
    .where(
        executions.c.recover_at_ms.is_not(None),
        executions.c.recover_at_ms <= _NOW,
        # As a page asks: what was left open behind an Attempt that has ended is no candidate.
        case((attempt_is_active(attempts.c.status), literal_column("1"))).is_not(None),
    )
    .limit(_LIMIT)
    .subquery("due_attempts")
)
COUNT_DUE_ATTEMPTS: Final = Statement(
    "count_due_attempts", select(func.count(), func.min(_due_attempts.c.recover_at_ms))
)
_is_due: Final = table.c.due_at_ms <= _NOW
_rows: Final = (
    select(
        case((_is_due, constant(DUE)), (IS_CLAIMED, constant(CLAIMED)), else_=constant(BACKING_OFF)).label("state"),
        case((_is_due, table.c.due_at_ms), else_=table.c.updated_at_ms).label("since_ms"),
    )
    .where(
        table.c.purpose == bindparam("purpose"),
        IS_DUE_SOMETIME,
        # An Attempt that is due is counted by its execution, whose time moves together with its row's.
        or_(
            and_(_is_due, among(table.c.kind, [ItemKind.RUN])),
            and_(table.c.due_at_ms > _NOW, among(table.c.state, [ClaimState.CLAIMED, ClaimState.RETRY])),
        ),
    )
    .limit(_LIMIT)
    .subquery("candidates")
)
COUNT_CANDIDATES: Final = Statement("count_candidates", _counted(_rows.c.state, _rows.c.since_ms))
_oldest: Final = (
    select(table.c.purpose, table.c.kind, table.c.item_id)
    .where(IS_MANUAL)
    .order_by(table.c.updated_at_ms, table.c.item_id, table.c.purpose)
    .limit(_LIMIT)
    .subquery("oldest")
)
COUNT_LEFT_TO_OPERATORS: Final = Statement(
    "count_left_to_operators",
    _counted(table.c.purpose, table.c.updated_at_ms)
    # The oldest first of all, by their index; then which of them are left over (R11.7).
    .join_from(
        _oldest,
        table,
        and_(
            table.c.purpose == _oldest.c.purpose,
            table.c.kind == _oldest.c.kind,
            table.c.item_id == _oldest.c.item_id,
        ),
    )
    .join(runs, runs.c.run_id == table.c.run_id)
    .join(attempts, attempts.c.attempt_id == table.c.item_id, isouter=True)
    .where(IS_CANDIDATE),
)


def read_recovery_depth(reading: Reading) -> Mapping[Place, QueueState]:
    """Give how many candidates there are, and for how long the oldest, by purpose and by where they stand."""
    now_ms = reading.now_ms()
    found: dict[Place, QueueState] = {}

    def add(purpose: str, state: str, count: int, since_ms: int | None) -> None:
        if count and since_ms is not None:
            before = found.get((purpose, state), QueueState())
            oldest_ms = max(before.oldest_age_ms, now_ms - since_ms)
            found[purpose, state] = QueueState(before.count + count, oldest_ms)

    asked = {"now_ms": now_ms, "limit": DEPTH_COUNTED_MAX}
    for count, since_ms in reading.rows(COUNT_DUE_ATTEMPTS, asked):
        add(Purpose.RECOVERY.value, DUE, count, since_ms)
    for purpose in Purpose:
        for state, count, since_ms in reading.rows(COUNT_CANDIDATES, asked | {"purpose": purpose.value}):
            add(purpose.value, state, count, since_ms)
    for purpose_name, count, since_ms in reading.rows(COUNT_LEFT_TO_OPERATORS, {"limit": DEPTH_COUNTED_MAX}):
        add(purpose_name, MANUAL, count, since_ms)
    return found

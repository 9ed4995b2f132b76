"""The queue of cancellations in numbers, for gauges (R7.7): one query on current state, of bounded cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import bindparam, func, select

from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.domain.lifecycle import ExecutionOwner
from runfacts.domain.measures import ABANDONED, NO_DISPATCH, Place, QueueState
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches as table
from runfacts.infrastructure.database.dialects import constant
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import runs
from runfacts.infrastructure.database.transactions import Reading

QUEUE_COUNTED_MAX: Final = 10_000
"""How many Runs are counted, those with the oldest requests; further ones are not."""

_intended: Final = (
    select(runs.c.run_id, runs.c.intent_at_ms)
    .where(
        runs.c.intent_at_ms.is_not(None),
        runs.c.finished_at_ms.is_(None),
        # Nobody here ever delivers to the others (R2.10): they would be the oldest for ever.
        runs.c.execution_owner == constant(ExecutionOwner.RUNTIME.value),
    )
    .order_by(runs.c.intent_at_ms, runs.c.run_id)
    .limit(bindparam("limit"))
    .subquery("intended")
)
SELECT_CANCELLATION_QUEUE: Final = Statement(
    "select_cancellation_queue",
    select(table.c.status, table.c.last_result, func.count(), func.min(_intended.c.intent_at_ms))
    .join_from(_intended, table, table.c.run_id == _intended.c.run_id, isouter=True)
    .group_by(table.c.status, table.c.last_result),
)


def read_cancellation_queue(reading: Reading) -> Mapping[Place, QueueState]:
    """Give how many Runs that were asked to stop have not ended, and the oldest request's age, by where they stand."""
    now_ms = reading.now_ms()
    found: dict[Place, QueueState] = {}
    for status, result, count, oldest_ms in reading.rows(SELECT_CANCELLATION_QUEUE, {"limit": QUEUE_COUNTED_MAX}):
        place = (_state(status, result),)
        before = found.get(place, QueueState())
        age_ms = max(before.oldest_age_ms, now_ms - oldest_ms)
        found[place] = QueueState(before.count + count, age_ms)
    return found


def _state(status: str | None, result: str | None) -> str:
    if status is None:
        return NO_DISPATCH
    # After a rearm the result stays (R13.2).
    if status == DispatchStatus.BLOCKED.value and result == DispatchResult.ABANDONED.value:
        return ABANDONED
    return status

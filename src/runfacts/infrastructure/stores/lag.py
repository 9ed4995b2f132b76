"""How far a reader of the feed is behind."""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, func, select

from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts
from runfacts.infrastructure.database.transactions import Reading

COUNTED_MAX: Final = 100_000
"""More facts than these are not counted."""

_BEHIND: Final = (
    select(facts.c.position, facts.c.recorded_at_ms)
    .where(facts.c.position > bindparam("position"))
    .order_by(facts.c.position)
    .limit(COUNTED_MAX)
    .subquery()
)
SELECT_LAG: Final = Statement("select_lag", select(func.count(), func.min(_BEHIND.c.recorded_at_ms)))
SELECT_NEWEST: Final = Statement("select_newest", select(func.max(facts.c.position)))


def read_lag(reading: Reading, position: int) -> tuple[int, int, int]:
    """Give the highest position, the number of facts above ``position`` and the age in ms of the oldest of them."""
    newest = reading.rows(SELECT_NEWEST)[0][0] or 0
    count, oldest_ms = reading.rows(SELECT_LAG, {"position": position})[0]
    return newest, count, 0 if oldest_ms is None else max(0, reading.now_ms() - oldest_ms)

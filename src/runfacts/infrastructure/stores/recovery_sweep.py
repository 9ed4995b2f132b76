"""
The sweep's way: every row that is not resolved, a bounded piece at a time (R11.7).

First along the index of rows that somebody should look at, then along that of the rows that wait for an operator, then
from the beginning again. Rows that move while the sweep is under way are met on its next round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, Text, bindparam, select, tuple_

from runfacts.infrastructure.database.recovery_tables import IS_DUE_SOMETIME, IS_MANUAL
from runfacts.infrastructure.database.recovery_tables import recovery_claims as claims
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.recovery_claims import ClaimRow

_DUE: Final = (claims.c.purpose, claims.c.executor_type, claims.c.scope, claims.c.due_at_ms, claims.c.item_id)
_MANUAL: Final = (claims.c.updated_at_ms, claims.c.item_id, claims.c.purpose)
_NUMBERS: Final = frozenset({"due_at_ms", "updated_at_ms"})
_LIMIT: Final = bindparam("limit", type_=BigInteger)


def _along(name: str, columns: tuple[object, ...], condition: object) -> Statement:
    names = [column.name for column in columns]  # type: ignore[attr-defined]  # columns of a table
    after = [bindparam(f"after_{each}", type_=BigInteger if each in _NUMBERS else Text) for each in names]
    return Statement(
        name,
        select(*claims.c)
        .where(condition, tuple_(*columns) > tuple_(*after))  # type: ignore[arg-type]  # the same
        .order_by(*columns)  # type: ignore[arg-type]  # the same
        .limit(_LIMIT),
    )


SELECT_UNDER_WAY: Final = _along("select_claims_under_way", _DUE, IS_DUE_SOMETIME)
SELECT_MANUAL_CLAIMS: Final = _along("select_manual_claims", _MANUAL, IS_MANUAL)


@dataclass(frozen=True, slots=True)
class Place:
    """The row that was seen last; the beginning, where none was."""

    manual: bool = False
    """Whether it is among those that wait for an operator."""
    last: ClaimRow | None = None


def left_over(reading: Reading, place: Place, limit: int) -> tuple[list[ClaimRow], Place]:
    """Give the next rows, and the place at which to go on."""
    statement, columns = (SELECT_MANUAL_CLAIMS, _MANUAL) if place.manual else (SELECT_UNDER_WAY, _DUE)
    after: dict[str, object] = {
        f"after_{column.name}": (-1 if column.name in _NUMBERS else "")
        if place.last is None
        else getattr(place.last, column.name)
        for column in columns
    }
    rows = [ClaimRow(*row) for row in reading.rows(statement, after | {"limit": limit})]
    if len(rows) == limit:
        return rows, Place(place.manual, rows[-1])
    if place.manual:
        return rows, Place()
    more, then = left_over(reading, Place(manual=True), limit - len(rows))
    return rows + more, then

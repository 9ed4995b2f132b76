"""
The audit trail: facts that filters let through, by position, page by page (R14.1).

Each filter has an index that also gives the order. Statements are made once for each combination of filters; pages
are keyset pages. Where time alone is filtered, the order is that of time, and of position within it: facts that came
in with an archive are older than their positions, and a search by position would have to look at everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from sqlalchemy import ColumnElement, bindparam, select, tuple_

from runfacts.domain.errors import InvalidCursor
from runfacts.domain.facts import Fact
from runfacts.domain.views import Page
from runfacts.infrastructure.database.dialects import one_of
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts as table
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of

_CURSOR_DIGITS: Final = 19
_BETWEEN: Final = "."
_TIMES: Final = frozenset({"since_ms", "until_ms"})


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """What to let through; None and empty let everything through."""

    run_id: str | None = None
    attempt_id: str | None = None
    actor_id: str | None = None
    types: tuple[str, ...] = ()
    project: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def parameters(self) -> dict[str, object]:
        """Give the filters that are set, by name."""
        found: dict[str, object] = {name: getattr(self, name) for name in self.__slots__}
        # A list: psycopg takes a tuple for a row.
        found["types"] = list(self.types) or None
        return {name: value for name, value in found.items() if value is not None}


def read_audit(reading: Reading, wanted: AuditFilter, *, limit: int, after: str | None) -> Page[Fact]:
    """Give a page of facts, by position or, where they are asked for by time alone, by time (``InvalidCursor``)."""
    parameters = wanted.parameters()
    by_time = bool(parameters) and parameters.keys() <= _TIMES
    if after is not None:
        at_ms, _, position = after.rpartition(_BETWEEN)
        # A cursor of another search is a position, and then positions go on.
        by_time = by_time and at_ms != ""
        if at_ms and not by_time:
            raise InvalidCursor
        parameters["after"] = _position(position)
        if by_time:
            parameters["after_ms"] = _position(at_ms)
    rows = reading.rows(_statement(frozenset(parameters), by_time=by_time), parameters | {"limit": limit + 1})
    items = tuple(fact_of(row) for row in rows[:limit])
    return Page(items, _cursor(items[-1], by_time=by_time) if len(rows) > limit else None)


def _cursor(fact: Fact, *, by_time: bool) -> str:
    return f"{fact.recorded_at_ms}{_BETWEEN}{fact.position}" if by_time else str(fact.position)


@cache
def _statement(given: frozenset[str], *, by_time: bool) -> Statement:
    """Make the statement for one combination of filters."""
    keys = (table.c.recorded_at_ms, table.c.position) if by_time else (table.c.position,)
    conditions: dict[str, ColumnElement[bool]] = {
        "run_id": table.c.run_id == bindparam("run_id"),
        "attempt_id": table.c.attempt_id == bindparam("attempt_id"),
        "actor_id": table.c.actor_id == bindparam("actor_id"),
        "types": one_of(table.c.type, "types"),
        "project": table.c.project == bindparam("project"),
        "since_ms": table.c.recorded_at_ms >= bindparam("since_ms"),
        "until_ms": table.c.recorded_at_ms < bindparam("until_ms"),
        "after": tuple_(*keys) > tuple_(bindparam("after_ms"), bindparam("after"))
        if by_time
        else table.c.position > bindparam("after"),
    }
    return Statement(
        "read_audit",
        select(*FACT_COLUMNS)
        .where(*(condition for name, condition in conditions.items() if name in given))
        .order_by(*keys)
        .limit(bindparam("limit")),
    )


def _position(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > _CURSOR_DIGITS:
        raise InvalidCursor
    return min(int(cursor), (1 << 63) - 1)

"""
The audit trail: facts that filters let through, page by page (R14.1).

Each filter has an index that also gives the order. Statements are made once for each combination of filters; pages
are keyset pages. The order is that of positions. Where a time is asked for, it is that of time, and of position within
it: facts that came in with an archive are older than their positions, so a search by position would have to look at
everything that was recorded before.

With a time and something else there are two ways: along time, leaving out what is something else's; or all that
something has, put in order. PostgreSQL chooses by its statistics. SQLite keeps none that could tell, so it is told:
the second way where there is little of it, which is counted no further than ``FEW``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from sqlalchemy import ColumnElement, bindparam, literal_column, select, tuple_

from runfacts.domain.errors import InvalidCursor
from runfacts.domain.facts import Fact
from runfacts.domain.views import Page
from runfacts.infrastructure.database.dialects import SQLITE, one_of
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts as table
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of

FEW: Final = 1_000
"""So many facts are put in order for a page without further ado."""
_CURSOR_DIGITS: Final = 19
_BETWEEN: Final = "."
_TIMES: Final = frozenset({"since_ms", "until_ms"})
_MANY: Final = frozenset({"actor_id", "types", "project"})
"""What may have any number of facts; a Run or an Attempt has few."""


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
    """Give a page of facts, by position or, where they are asked for by time, by time (``InvalidCursor``)."""
    parameters = wanted.parameters()
    by_time = not _TIMES.isdisjoint(parameters)
    if after is not None:
        at_ms, _, position = after.rpartition(_BETWEEN)
        # A cursor of another search is a position, and then positions go on.
        by_time = by_time and at_ms != ""
        if at_ms and not by_time:
            raise InvalidCursor
        parameters["after"] = _position(position)
        if by_time:
            parameters["after_ms"] = _position(at_ms)
    along_time = by_time and reading.dialect == SQLITE and _are_all_many(reading, parameters)
    statement = _statement(frozenset(parameters), by_time=by_time, along_time=along_time)
    rows = reading.rows(statement, parameters | {"limit": limit + 1})
    items = tuple(fact_of(row) for row in rows[:limit])
    return Page(items, _cursor(items[-1], by_time=by_time) if len(rows) > limit else None)


def _cursor(fact: Fact, *, by_time: bool) -> str:
    return f"{fact.recorded_at_ms}{_BETWEEN}{fact.position}" if by_time else str(fact.position)


def _are_all_many(reading: Reading, parameters: Mapping[str, object]) -> bool:
    """Whether none of what else is asked for has so few facts that these are better put in order."""
    others = parameters.keys() - _TIMES - {"after", "after_ms"}
    return others <= _MANY and all(
        len(reading.rows(_SELECT_FEW[name], {name: parameters[name], "limit": FEW + 1})) > FEW for name in others
    )


@cache
def _statement(given: frozenset[str], *, by_time: bool, along_time: bool = False) -> Statement:
    """Make the statement for one combination of filters."""
    keys = (table.c.recorded_at_ms, table.c.position) if by_time else (table.c.position,)
    conditions: dict[str, ColumnElement[bool]] = {
        "run_id": table.c.run_id == bindparam("run_id"),
        "attempt_id": table.c.attempt_id == bindparam("attempt_id"),
        **{name: _is_asked_for(name, indexed=not along_time) for name in _MANY},
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


def _is_asked_for(name: str, *, indexed: bool = True) -> ColumnElement[bool]:
    column: ColumnElement[str] = {"actor_id": table.c.actor_id, "types": table.c.type, "project": table.c.project}[name]
    if not indexed:
        # A plus sign keeps SQLite from using the column's index.
        column = literal_column(f"+{table.name}.{column.key}", column.type)
    return one_of(column, "types") if name == "types" else column == bindparam(name)


_SELECT_FEW: Final = {
    name: Statement(
        f"select_few_by_{name}", select(literal_column("1")).where(_is_asked_for(name)).limit(bindparam("limit"))
    )
    for name in _MANY
}


def _position(cursor: str) -> int:
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > _CURSOR_DIGITS:
        raise InvalidCursor
    return min(int(cursor), (1 << 63) - 1)

"""
Reading in order: every position once, after its commit, none skipped (R3.9).

SQLite has one writer at a time and gives out its positions without a hole, so what is visible is in order. PostgreSQL
shows positions as their transactions commit; a reader goes up to the first one that is missing and delivers what lies
before it at once. Whether more will come is what ``gaps`` finds out. Nothing ever blocks: a read that cannot go
on says what it waits for.

``OrderedRows`` does this for any table whose positions come from an identity column with CACHE 1; ``OrderedReader``
for facts, with checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Table, bindparam, select

from runfacts.domain.errors import CheckpointLost, ReaderRefused
from runfacts.domain.facts import Fact
from runfacts.domain.feeds import Checkpoint, Waiting
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.defences import ORDERED_READING, defences_seen, positions_drawn_one_by_one
from runfacts.infrastructure.database.dialects import SQLITE, regclass_of
from runfacts.infrastructure.database.sessions import Session
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts as table
from runfacts.infrastructure.database.transactions import Reading, Row
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of
from runfacts.infrastructure.stores.gaps import Gaps

Fetch = Callable[[Reading], Sequence[Row]]
"""Reads rows above the reader's position in ascending order, all of them up to some limit, position first."""

SELECT_FACTS_FROM: Final = Statement(
    "select_facts_from",
    select(*FACT_COLUMNS)
    .where(table.c.position >= bindparam("position"))
    .order_by(table.c.position)
    .limit(bindparam("limit")),
)


class OrderedRows:
    """Reads one table in the order of its positions. Threads take turns."""

    def __init__(self, database: Database, table: Table, premises: Callable[[Reading], None]) -> None:
        """Check ``premises`` on every new connection; what they raise refuses the reader."""
        self._database = database
        self._premises = premises
        self._gaps = Gaps(table)
        self._session = Session(database, self._begun)

    def read(self, fetch: Fetch, after: int) -> tuple[Sequence[Row], Waiting | None]:
        """Give the rows above ``after`` that are in order, and what holds up the next ones."""
        if self._database.dialect == SQLITE:
            with self._database.reading() as reading:
                return fetch(reading), None
        return self._session.ask(lambda reading: self._read(reading, fetch, after))

    def close(self) -> None:
        """Give the connection back; reading again takes another one."""
        self._session.close()

    def _begun(self, reading: Reading) -> None:
        self._gaps.forget()
        self._premises(reading)

    def _read(self, reading: Reading, fetch: Fetch, after: int) -> tuple[Sequence[Row], Waiting | None]:
        while True:
            # Before the rows are read: what is missing must be missing after it was known to be final.
            final = self._gaps.final
            rows = fetch(reading)
            ready, gap = in_order(rows, after, final)
            if gap is None:
                return rows, None
            waiting = self._gaps.look(reading, gap)
            if waiting is not None:
                return rows[:ready], waiting


def in_order(rows: Sequence[Row], after: int, final: int) -> tuple[int, int | None]:
    """Count the rows before the first position that may still come, and name it; up to ``final`` none will."""
    expected = max(after, final) + 1
    for ready, row in enumerate(rows):
        position = row[0]
        if position > final:
            if position != expected:
                return ready, expected
            expected += 1
    return len(rows), None


@dataclass(frozen=True, slots=True)
class OrderedPage:
    """Facts in order, and what holds up the next ones."""

    facts: tuple[Fact, ...]
    waiting: Waiting | None


class OrderedReader:
    """Reads the facts of a ledger in order. Threads take turns."""

    def __init__(self, database: Database) -> None:
        """Connect to nothing yet."""
        self._database = database
        self._rows = OrderedRows(database, table, ordered_reading_of(database, table))

    def read(self, after: Checkpoint | None, limit: int) -> OrderedPage:
        """Give at most ``limit`` facts after a checkpoint; raises ``ReaderRefused`` and ``CheckpointLost``."""

        def fetch(reading: Reading) -> Sequence[Row]:
            if after is None:
                return reading.rows(SELECT_FACTS_FROM, {"position": 1, "limit": limit})
            # The checkpoint's own fact is read with the others: what it was is what it must be.
            rows = reading.rows(SELECT_FACTS_FROM, {"position": after.position, "limit": limit + 1})
            found = str(rows[0][-1]) if rows and rows[0][0] == after.position else None
            if found != after.hash:
                raise CheckpointLost(after.position, found)
            return rows[1:]

        rows, waiting = self._rows.read(fetch, 0 if after is None else after.position)
        return OrderedPage(tuple(fact_of(row) for row in rows), waiting)

    def close(self) -> None:
        """Give the connection back."""
        self._rows.close()


def ordered_reading_of(database: Database, table: Table) -> Callable[[Reading], None]:
    """Give the check of what reading ``table`` in order stands on; it raises ``ReaderRefused``."""

    def check(reading: Reading) -> None:
        found = {defence.name: defence for defence in defences_seen(database, reading)}
        found["positions"] = positions_drawn_one_by_one(reading, regclass_of(table))
        for name in sorted(ORDERED_READING):
            if not found[name].ok:
                raise ReaderRefused(name, found[name].detail)

    return check

"""
Verification: what can be recomputed is recomputed, and every difference is named (R1.3, R14.2).

Each Run is read in one snapshot, short ones together, so that writers go on, nothing is held for long, and what is
compared is of one moment. What is compared is said in ``differences``. A verification of the whole ledger looks at the
Runs that are there when it begins, and on SQLite, where positions are dense, also at the positions.

Projections are compared with what a rebuild would give (``projection_differences``), without writing anything.

What it cannot see: a Run that was removed whole, and the last facts of a Run that were removed together with a change
of its rows to just what the rest amounts to. A chain does not know that it went on. On SQLite the hole in the
positions shows both, unless the removed facts were the last of the whole ledger; on PostgreSQL a position is no part
of the hash (R3.1), holes are normal there, and a position that was changed shows only where the order of its Run's
facts changes with it. Whoever must exclude this keeps the heads of Runs where nobody can rewrite them, and compares
(``heads``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from sqlalchemy import Column, Text, bindparam, cast, func, select, union, union_all

from runfacts.domain.errors import RunNotFound
from runfacts.domain.facts import MALFORMED, UnknownPayload
from runfacts.domain.views import Difference, VerifyReport
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import SQLITE, one_of
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, executions, facts, runs
from runfacts.infrastructure.stores.differences import Recorded, difference, run_differences
from runfacts.infrastructure.stores.projection_differences import ProjectionCheck, SeenInView
from runfacts.infrastructure.stores.verified_rows import read_rows_of_run, read_rows_of_runs

_RUN_PAGE: Final = 100
_FACTS_TOGETHER: Final = 500
"""Of Runs that are read in one snapshot; a longer one is read alone."""
_POSITION_PAGE: Final = 1_000

# Given as bytes on SQLite, where an id may be damaged so that it is no text; equal, then, byte by byte.
_AFTER: Final = cast(bindparam("after"), Text())
_LAST: Final = cast(bindparam("last"), Text())

_RUN_ID_COLUMNS: Final[tuple[Column[str], ...]] = (
    runs.c.run_id,
    facts.c.run_id,
    attempts.c.run_id,
    executions.c.run_id,
)

SELECT_LAST_RUN_ID: Final = Statement(
    "verify_last_run_id",
    select(
        func.max(
            union_all(*(select(func.max(column).label("run_id")) for column in _RUN_ID_COLUMNS)).subquery().c.run_id
        )
    ),
)
SELECT_RUN_IDS: Final = Statement(
    "verify_run_ids",
    union(
        *(
            select(column)
            .distinct()
            .where(column > _AFTER, column <= _LAST)
            .order_by(column)
            .limit(_RUN_PAGE)
            .subquery()
            .select()
            for column in _RUN_ID_COLUMNS
        )
    ).order_by("run_id"),
)
SELECT_LENGTHS: Final = Statement(
    "verify_lengths", select(facts.c.run_id, func.count()).where(one_of(facts.c.run_id, "run_ids")).group_by("run_id")
)
SELECT_POSITIONS: Final = Statement(
    "verify_positions",
    select(facts.c.position, facts.c.run_id, facts.c.sequence)
    .where(facts.c.position > bindparam("after"), facts.c.position <= bindparam("last"))
    .order_by(facts.c.position)
    .limit(_POSITION_PAGE),
)
SELECT_BOUNDS: Final = Statement(
    "verify_bounds", select(func.coalesce(func.min(facts.c.position), 1), func.coalesce(func.max(facts.c.position), 0))
)


def verify(database: Database, run_id: str | None, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Verify one Run (``RunNotFound``), or all of them; ``progress`` hears the number of Runs and facts so far."""
    runs_seen = 0
    facts_seen = 0
    unknown: Counter[str] = Counter()
    found: list[Difference] = []
    views = ProjectionCheck(database, whole=run_id is None)
    for recorded, seen in _read_one(database, run_id, views) if run_id is not None else _read_all(database, views):
        if run_id is not None and recorded.empty:
            raise RunNotFound(run_id)
        found += run_differences(recorded)
        found += views.of_run(recorded.run_id, recorded.facts, seen)
        runs_seen += 1
        facts_seen += len(recorded.facts)
        for fact in recorded.facts:
            if isinstance(fact.payload, UnknownPayload) and fact.payload.reason != MALFORMED:
                unknown[fact.type] += 1
        if progress is not None:
            progress(runs_seen, facts_seen)
    if run_id is None and database.dialect == SQLITE:
        found += _position_differences(database)
    found += views.of_totals()
    return VerifyReport(runs_seen, facts_seen, dict(unknown), tuple(found))


_Read = tuple[Recorded, list[SeenInView]]


def _read_one(database: Database, run_id: str, views: ProjectionCheck) -> Iterator[_Read]:
    """Read everything about one Run as it was at one moment."""
    with database.snapshot() as reading:
        rows = read_rows_of_run(reading, _key(database, run_id))
        seen = views.read(reading, [run_id])
    yield rows.of(run_id), seen[run_id]


def _read_all(database: Database, views: ProjectionCheck) -> Iterator[_Read]:
    """Read everything about every Run."""
    for together in _batches(database):
        if len(together) == 1:
            yield from _read_one(database, together[0], views)
        else:
            with database.snapshot() as reading:
                rows = read_rows_of_runs(reading, together)
                seen = views.read(reading, together)
            for run_id in together:
                yield rows.of(run_id), seen[run_id]


def _batches(database: Database) -> Iterator[list[str]]:
    """Give the ids of all Runs in order, so many at a time as have few facts together."""
    ids = run_ids(database)
    while page := list(islice(ids, _RUN_PAGE)):
        # An id that is no text can be asked for only alone.
        named = [run_id for run_id in page if run_id.isascii()]
        with database.reading() as reading:
            lengths: dict[str, int] = dict(reading.rows(SELECT_LENGTHS, {"run_ids": named}))
        batch: list[str] = []
        held = 0
        for run_id in page:
            length = lengths.get(run_id, 0) if run_id.isascii() else _FACTS_TOGETHER
            if batch and held + length > _FACTS_TOGETHER:
                yield batch
                batch, held = [], 0
            batch.append(run_id)
            held += length
        yield batch


def run_ids(database: Database) -> Iterator[str]:
    """Give the ids of all Runs that something is recorded of, page by page; not of those that begin meanwhile."""
    with database.snapshot() as reading:
        row = reading.row(SELECT_LAST_RUN_ID)
    last = "" if row is None or row[0] is None else str(row[0])
    after = ""
    while True:
        with database.snapshot() as reading:
            bounds = {"after": _key(database, after), "last": _key(database, last)}
            page = [str(row[0]) for row in reading.rows(SELECT_RUN_IDS, bounds)][:_RUN_PAGE]
        yield from page
        if len(page) < _RUN_PAGE:
            return
        after = page[-1]


def _position_differences(database: Database) -> Iterator[Difference]:
    """See that positions are 1, 2, 3 …; each difference is named at the fact that stands where another should."""
    with database.snapshot() as reading:
        first, last = (int(bound) for bound in reading.rows(SELECT_BOUNDS)[0])
    expected = 1
    after = first - 1
    while True:
        with database.snapshot() as reading:
            page = reading.rows(SELECT_POSITIONS, {"after": after, "last": last})
        for position, run_id, sequence in page:
            if position != expected:
                yield difference(run_id, "position", "position", position, expected, sequence=sequence)
            expected = position + 1
        if len(page) < _POSITION_PAGE:
            return
        after = page[-1][0]


def _key(database: Database, run_id: str) -> str | bytes:
    return run_id.encode("utf-8", "surrogateescape") if database.dialect == SQLITE else run_id

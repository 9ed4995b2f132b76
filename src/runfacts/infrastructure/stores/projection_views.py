"""
The views of projections as rows: what a view knows of each Run, and its totals (R1.4).

A column of a view's table of Runs is a field of its state. Nothing here knows what facts mean: that is said in
``runfacts.projections``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, bindparam, case, delete, func, select, tuple_
from sqlalchemy.dialects import postgresql, sqlite

from runfacts.domain.projecting import ProjectionName
from runfacts.infrastructure.database import projection_tables as tables
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, one_of
from runfacts.infrastructure.database.statements import Parameters, Statement
from runfacts.infrastructure.database.transactions import Reading, Transaction
from runfacts.projections.folding import Counts, Place, Projection, Standing
from runfacts.projections.statistics import COLUMNS, RunTimes, StatisticsProjection
from runfacts.projections.stop_proof import Stop, StopProofProjection

_INSERTS: Final[Mapping[str, Any]] = MappingProxyType({SQLITE: sqlite.insert, POSTGRESQL: postgresql.insert})
_PLACE: Final = ("day_at_ms", "project", "task")


def _upsert(name: str, table: Table, of_conflict: Callable[[str, Any], Any]) -> Statement:
    """Insert a row, or bring into the one that is there what ``of_conflict`` says of each other column."""

    def made(insert: Any) -> Any:  # noqa: ANN401 - either dialect's own insert
        statement = insert(table).values({column.name: bindparam(column.name) for column in table.c})
        others = [column.name for column in table.c if not column.primary_key]
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key),
            set_={other: of_conflict(other, statement.excluded[other]) for other in others},
        )

    return Statement(name, {dialect: made(insert) for dialect, insert in _INSERTS.items()})


def _replaced(column: str, given: ColumnElement[Any]) -> ColumnElement[Any]:
    del column
    return given


def _added(column: str, given: ColumnElement[Any]) -> ColumnElement[Any]:
    known = tables.statistics.c[column]
    return case((known > given, known), else_=given) if column.endswith("_max_ms") else known + given


class View:
    """One projection, and where it is kept."""

    def __init__(
        self, projection: Projection[Any], state: Callable[..., Any], runs: Table, totals: Table | None = None
    ) -> None:
        """Keep what ``projection`` knows of Runs in ``runs``, and what it adds up in ``totals``."""
        self.projection = projection
        self.name: ProjectionName = projection.name
        self.tables: tuple[Table, ...] = (runs,) if totals is None else (runs, totals)
        self.columns = tuple(field.name for field in fields(state))  # type: ignore[arg-type]  # it is a dataclass
        self._state = state
        own = [runs.c[name] for name in self.columns]
        read = select(runs.c.run_id, runs.c.sequence, *own).where(runs.c.generation == bindparam("generation"))
        self._select = Statement(f"select_{runs.name}", read.where(one_of(runs.c.run_id, "run_ids")))
        self._put = _upsert(f"put_{runs.name}", runs, _replaced)
        self._add = None if totals is None else _upsert(f"add_{totals.name}", totals, _added)
        self._totals = (
            None
            if totals is None
            else Statement(
                f"select_all_{totals.name}",
                select(*(totals.c[name] for name in (*_PLACE, *COLUMNS))).where(
                    totals.c.generation == bindparam("generation")
                ),
            )
        )
        self._count = Statement(
            f"count_{runs.name}",
            select(func.count()).select_from(runs).where(runs.c.generation == bindparam("generation")),
        )
        self.sweeps = tuple(_sweep(table) for table in self.tables)

    def standing(self, reading: Reading, generation: int, run_ids: Sequence[str]) -> dict[str, Standing[Any]]:
        """Read what is known of these Runs."""
        rows = reading.rows(self._select, {"generation": generation, "run_ids": run_ids})
        return {row[0]: Standing(self._state(*row[2:]), row[1]) for row in rows}

    def write(
        self,
        transaction: Transaction,
        generation: int,
        runs: Mapping[str, Standing[Any]],
        totals: Mapping[Place, Counts],
    ) -> None:
        """Write what is known of Runs now, and add to the totals. Always in the same order of rows."""
        put: list[Parameters] = []
        for run_id in sorted(runs):
            standing = runs[run_id]
            row: dict[str, object] = {name: getattr(standing.state, name) for name in self.columns}
            put.append({**row, "generation": generation, "run_id": run_id, "sequence": standing.sequence})
        transaction.run_many(self._put, put)
        if self._add is not None:
            add: list[Parameters] = []
            for place in sorted(totals):
                counts = {name: totals[place].get(name, 0) for name in COLUMNS}
                add.append({**dict(zip(_PLACE, place, strict=True)), **counts, "generation": generation})
            transaction.run_many(self._add, add)

    def totals(self, reading: Reading, generation: int) -> dict[Place, Counts]:
        """Read all totals that are not nothing."""
        if self._totals is None:
            return {}
        return {
            (row[0], row[1], row[2]): {name: n for name, n in zip(COLUMNS, row[3:], strict=True) if n}
            for row in reading.rows(self._totals, {"generation": generation})
        }

    def count_runs(self, reading: Reading, generation: int) -> int:
        """Count the Runs of which something is known."""
        return int(reading.rows(self._count, {"generation": generation})[0][0])


SWEEP_PAGE: Final = 1_000


def _sweep(table: Table) -> Statement:
    """Delete at most a page of rows of one generation."""
    keys = [column for column in table.primary_key if column.name != "generation"]
    page = select(*keys).where(table.c.generation == bindparam("generation")).limit(SWEEP_PAGE)
    return Statement(
        f"sweep_{table.name}",
        delete(table).where(table.c.generation == bindparam("generation"), tuple_(*keys).in_(page)),
    )


VIEWS: Final[Mapping[ProjectionName, View]] = MappingProxyType(
    {
        view.name: view
        for view in (
            View(StatisticsProjection(), RunTimes, tables.statistics_runs, tables.statistics),
            View(StopProofProjection(), Stop, tables.stop_proofs),
        )
    }
)
"""All projections."""

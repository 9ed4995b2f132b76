"""
All rows about Runs, as a verification reads them: of one Run, or of some together (R14.2).

One Run can be asked for whatever its id has become. For many, a round trip each would take longer than all of the
comparing, so they are asked for together, by ids that are texts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import ColumnElement, Text, bindparam, cast, or_, select

from runfacts.domain.recovery.claims import Purpose
from runfacts.infrastructure.database.dialects import constant, one_of
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, executions, facts, runs
from runfacts.infrastructure.database.transactions import Reading, Row
from runfacts.infrastructure.stores.differences import Recorded
from runfacts.infrastructure.stores.facts import FACT_COLUMNS

_RUN_OF_FACT: Final = [column.name for column in FACT_COLUMNS].index("run_id")
_RUN_OF: Final = {table.name: table.columns.keys().index("run_id") for table in (runs, attempts, executions)}

Named = Callable[[ColumnElement[str]], ColumnElement[Any]]
"""Says that a column is the Run's id, or one of the Runs'."""


def _is_run(column: ColumnElement[str]) -> ColumnElement[Any]:
    # Given as bytes on SQLite, where an id may be damaged so that it is no text; equal, then, byte by byte.
    return column == cast(bindparam("run_id"), Text())


def _is_one_of_runs(column: ColumnElement[str]) -> ColumnElement[Any]:
    return one_of(column, "run_ids")


@dataclass(frozen=True, slots=True)
class _Statements:
    facts: Statement
    runs: Statement
    attempts: Statement
    executions: Statement
    claims: Statement


def _statements(end: str, named: Named) -> _Statements:
    return _Statements(
        facts=Statement(
            f"verify_facts{end}",
            select(*FACT_COLUMNS)
            .where(named(facts.c.run_id))
            .order_by(facts.c.run_id, facts.c.sequence, facts.c.position),
        ),
        runs=Statement(f"verify_run{end}", select(*runs.c).where(named(runs.c.run_id))),
        attempts=Statement(f"verify_attempts{end}", select(*attempts.c).where(named(attempts.c.run_id))),
        executions=Statement(
            f"verify_executions{end}",
            select(*executions.c).where(
                or_(
                    named(executions.c.run_id),
                    # Also those that say that they are another Run's.
                    executions.c.attempt_id.in_(select(attempts.c.attempt_id).where(named(attempts.c.run_id))),
                )
            ),
        ),
        claims=Statement(
            f"verify_claims{end}",
            select(recovery_claims.c.run_id, recovery_claims.c.purpose, recovery_claims.c.state).where(
                named(recovery_claims.c.run_id), recovery_claims.c.purpose != constant(Purpose.RECOVERY.value)
            ),
        ),
    )


_OF_ONE: Final = _statements("", _is_run)
_OF_SOME: Final = _statements("_of_some", _is_one_of_runs)


def _lists() -> defaultdict[str, list[Row]]:
    return defaultdict(list)


@dataclass(slots=True)
class Rows:
    """Rows about Runs, by Run."""

    facts: defaultdict[str, list[Row]] = field(default_factory=_lists)
    runs: defaultdict[str, list[Row]] = field(default_factory=_lists)
    attempts: defaultdict[str, list[Row]] = field(default_factory=_lists)
    executions: defaultdict[str, list[Row]] = field(default_factory=_lists)
    claims: defaultdict[str, list[Row]] = field(default_factory=_lists)

    def of(self, run_id: str) -> Recorded:
        """Give what is recorded of one of them."""
        return Recorded.of(
            run_id,
            facts=self.facts[run_id],
            run=next(iter(self.runs[run_id]), None),
            attempts=self.attempts[run_id],
            executions=self.executions[run_id],
            claims=[row[1:] for row in self.claims[run_id]],
        )


def read_rows_of_run(reading: Reading, run_id: str | bytes) -> Rows:
    """Read all rows about one Run, in a snapshot; by bytes where the driver takes an id so."""
    name = run_id if isinstance(run_id, str) else run_id.decode("utf-8", "surrogateescape")
    found, key = Rows(), {"run_id": run_id}
    found.facts[name] = list(reading.rows(_OF_ONE.facts, key))
    found.runs[name] = list(reading.rows(_OF_ONE.runs, key))
    found.attempts[name] = list(reading.rows(_OF_ONE.attempts, key))
    found.executions[name] = list(reading.rows(_OF_ONE.executions, key))
    found.claims[name] = list(reading.rows(_OF_ONE.claims, key))
    return found


def read_rows_of_runs(reading: Reading, run_ids: Sequence[str]) -> Rows:
    """Read all rows about some Runs, in a snapshot."""
    found, keys = Rows(), {"run_ids": list(run_ids)}
    for row in reading.rows(_OF_SOME.facts, keys):
        found.facts[row[_RUN_OF_FACT]].append(row)
    for row in reading.rows(_OF_SOME.runs, keys):
        found.runs[row[_RUN_OF["runs"]]].append(row)
    owners: dict[str, str] = {}
    for row in reading.rows(_OF_SOME.attempts, keys):
        run_id = row[_RUN_OF["attempts"]]
        owners[row[0]] = run_id
        found.attempts[run_id].append(row)
    for row in reading.rows(_OF_SOME.executions, keys):
        # It is compared where it says that it belongs, and where its Attempt does.
        for run_id in {row[_RUN_OF["executions"]], owners.get(row[0], row[_RUN_OF["executions"]])}:
            found.executions[run_id].append(row)
    for row in reading.rows(_OF_SOME.claims, keys):
        found.claims[row[0]].append(row)
    return found

"""
One transaction, or one read, on the driver's own connection.

A statement that failed ends its transaction on both databases: PostgreSQL insists on it, SQLite sometimes rolls back
by itself and then would run the next statement outside of any transaction. So after a failure nothing more is run,
and nothing is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from runfacts.infrastructure.database.clocks import Clock
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE
from runfacts.infrastructure.database.errors import LostRace, translate
from runfacts.infrastructure.database.statements import Compiled, Parameters, Statement
from runfacts.infrastructure.steps import Steps

Row = tuple[Any, ...]

_NOTHING: Final[Parameters] = {}
_NOW: Final = Statement("now", {POSTGRESQL: "SELECT runfacts_now_ms()", SQLITE: "SELECT 0"})


class Surroundings(Protocol):
    """What a transaction takes from its database."""

    dialect: str
    clock: Clock
    steps: Steps
    driver_error: type[Exception]


@dataclass(frozen=True, slots=True)
class Change:
    """One insert or update that must hit exactly one row, else somebody else was faster."""

    statement: Statement
    parameters: Parameters


class Reading:
    """Reads on one connection. Rows are plain tuples."""

    __slots__ = ("_cursor", "_driver_error", "_steps", "clock", "dialect", "failure")

    def __init__(self, cursor: Any, surroundings: Surroundings) -> None:  # noqa: ANN401 - either driver's cursor
        """Use ``cursor`` of the driver."""
        self._cursor = cursor
        self._driver_error = surroundings.driver_error
        self._steps = surroundings.steps
        self.clock = surroundings.clock
        self.dialect = surroundings.dialect
        self.failure: BaseException | None = None
        """What ended this transaction before its block did."""

    def now_ms(self) -> int:
        """Return the time that decides: the database's on PostgreSQL, the clock's wall time on SQLite (R5)."""
        if self.dialect == SQLITE:
            return self.clock.wall_ms()
        return int(self.rows(_NOW)[0][0])

    def row(self, statement: Statement, parameters: Parameters = _NOTHING) -> Row | None:
        """Return the first row, or ``None``."""
        rows = self.rows(statement, parameters)
        return rows[0] if rows else None

    def rows(self, statement: Statement, parameters: Parameters = _NOTHING) -> list[Row]:
        """Return all rows."""
        compiled = self._begin(statement)
        try:
            self._cursor.execute(compiled.text, compiled.bind(parameters))
            rows: list[Row] = self._cursor.fetchall()
        except self._driver_error as error:
            self._fail(error)
        self._steps.reached(statement.after)
        return rows

    def _begin(self, statement: Statement) -> Compiled:
        if self.failure is not None:
            raise self.failure
        compiled = statement.compiled(self.dialect)
        self._steps.reached(statement.before)
        return compiled

    def _fail(self, error: Exception) -> NoReturn:
        self.failure = translate(error)
        if self.failure is None:
            self.failure = error
            raise error
        raise self.failure from error


class Transaction(Reading):
    """Reads and writes that become visible together, or not at all."""

    __slots__ = ()

    def run(self, statement: Statement, parameters: Parameters = _NOTHING) -> int:
        """Execute a statement that returns no rows; return how many rows it changed."""
        compiled = self._begin(statement)
        try:
            self._cursor.execute(compiled.text, compiled.bind(parameters))
        except self._driver_error as error:
            self._fail(error)
        self._steps.reached(statement.after)
        return int(self._cursor.rowcount)

    def run_many(self, statement: Statement, parameters: Sequence[Parameters]) -> int:
        """Execute a statement that returns no rows once per set of parameters; return how many rows were changed."""
        if not parameters:
            return 0
        compiled = self._begin(statement)
        try:
            self._cursor.executemany(compiled.text, [compiled.bind(each) for each in parameters])
        except self._driver_error as error:
            self._fail(error)
        self._steps.reached(statement.after)
        return int(self._cursor.rowcount)

    def write(self, changes: Sequence[Change], append: Statement, facts: Sequence[Parameters]) -> list[int]:
        """Write all of a command, in order: changes that hit one row each (``LostRace``), then facts.

        ``append`` inserts one fact and returns its position; the positions are given back.
        """
        for change in changes:
            hit_one(self, change)
        return [int(self.rows(append, fact)[0][0]) for fact in facts]


def hit_one(transaction: Transaction, change: Change) -> None:
    """Make one change, which must hit its one row (``LostRace``)."""
    if transaction.run(change.statement, change.parameters) != 1:
        raise LostRace(change.statement.name)

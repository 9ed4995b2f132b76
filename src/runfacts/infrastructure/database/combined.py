"""
All writes of a command as one statement (PostgreSQL).

A command that owns its transaction needs no round trip between its writes: they become the branches of one ``WITH``,
which the server runs, and commits, as a whole. The facts ask for the changes one after the other, so that rows are
locked in the one order of R4.4, also by an insert that may find its row there; and they take their positions from the
identity column only after every change has won its row (R3.9). Where a branch does not hit its one row, no fact is
inserted, and ``runfacts_lost_race()`` fails the statement with a serialization failure; nothing of it stays.

The text depends only on which statements come together. It is made once for each such combination; the server's plan
of it is prepared by the driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from sqlalchemy import BigInteger

from runfacts.domain.errors import OutcomeUnknown
from runfacts.infrastructure.database.dialects import POSTGRESQL
from runfacts.infrastructure.database.statements import Parameters, Statement
from runfacts.infrastructure.database.tables import facts as table
from runfacts.infrastructure.database.transactions import Change, Surroundings, Transaction

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")
_FACT: Final = tuple(column.name for column in table.c if column.name != "position")
_VALUES: Final = [f"%s::{'bigint' if isinstance(table.c[name].type, BigInteger) else 'text'}" for name in _FACT]
# A SELECT, which can wait for another branch.
_APPENDED: Final = f"INSERT INTO {table.name} ({', '.join(_FACT)}) SELECT {', '.join(_VALUES)}"


class CombinedTransaction(Transaction):
    """A transaction of PostgreSQL whose reads stand alone and whose writes are one statement that commits itself."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Any, surroundings: Surroundings) -> None:  # noqa: ANN401 - psycopg is optional
        """Use a driver's connection that is in autocommit."""
        super().__init__(connection.cursor(), surroundings)
        self._connection = connection

    def write(self, changes: Sequence[Change], append: Statement, facts: Sequence[Parameters]) -> list[int]:
        """See ``Transaction``. Raises ``OutcomeUnknown`` where the connection breaks during the statement."""
        if self.failure is not None:
            raise self.failure
        del append
        combined = _combined(tuple(change.statement for change in changes), len(facts))
        parameters: list[Any] = []
        for change, names in zip(changes, combined.names, strict=True):
            bound = change.statement.compiled(POSTGRESQL).bind(change.parameters)
            parameters += [bound[name] for name in names]
        for fact in facts:
            parameters += [fact[name] for name in _FACT]
        self._steps.reached("sql:before:commit")
        try:
            row = self._cursor.execute(combined.text, parameters).fetchone()
        except self._driver_error as error:
            if self._connection.closed:
                raise OutcomeUnknown("the connection broke while the commit was under way") from error
            self._fail(error)
        self._steps.reached("sql:after:commit")
        return [int(position) for position in row[: len(facts)]]


@dataclass(frozen=True, slots=True)
class _Combined:
    """A combination as one statement, whose parameters have places instead of names."""

    text: str
    names: tuple[tuple[str, ...], ...]
    """For each change the names of its parameters, in their order; those of each fact follow."""


@cache
def _combined(changes: tuple[Statement, ...], facts: int) -> _Combined:
    """Make the one statement of a combination."""
    branches: list[str] = []
    texts = [statement.compiled(POSTGRESQL).text for statement in changes]
    for number, text in enumerate(texts):
        own = _PARAMETER.sub("%s", text)
        if number and own.startswith("UPDATE"):
            own += f" AND (SELECT hit FROM w{number - 1})"  # noqa: S608 - a number of ours
        branches.append(f"w{number} AS ({own} RETURNING true AS hit)")
    # The server looks at conditions that hang on no row in their order, and at none behind one that does not hold.
    before = "WHERE " + " AND ".join(f"(SELECT hit FROM w{number})" for number in range(len(changes)))  # noqa: S608 - the same
    for number in range(facts):
        branches.append(f"f{number} AS ({_APPENDED} {before} RETURNING position)")
        before = f"FROM f{number}"
    # A fact is inserted where every branch before it hit its row: if the last one is there, all of them did. A claim
    # records no fact (R1.5): there the branches themselves must all be.
    positions = [f"(SELECT position FROM f{number})" for number in range(facts)] or [f"(SELECT 1 {before})"]  # noqa: S608 - the same
    positions[-1] = f"coalesce({positions[-1]}, runfacts_lost_race())"
    return _Combined(
        f"WITH {', '.join(branches)} SELECT {', '.join(positions)}",
        tuple(tuple(_PARAMETER.findall(text)) for text in texts),
    )

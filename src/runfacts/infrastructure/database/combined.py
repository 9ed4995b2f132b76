"""
All writes of a command as one statement (PostgreSQL).

A command that owns its transaction needs no round trip between its writes: they become the branches of one ``WITH``,
which the server runs, and commits, as a whole. An update waits for the one before it, so that rows are locked in the
one order of R4.4; the inserts take their positions from the identity column only after every update has won its row
(R3.9). Where a branch does not hit its one row, no fact is inserted, and ``runfacts_lost_race()`` fails the statement
with a serialization failure; nothing of it stays.

The text depends only on which statements come together. It is made once for each such combination; the server's plan
of it is prepared by the driver.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import BigInteger

from runfacts.domain.errors import OutcomeUnknown
from runfacts.infrastructure.database.dialects import POSTGRESQL
from runfacts.infrastructure.database.statements import Parameters, Statement
from runfacts.infrastructure.database.tables import facts as table
from runfacts.infrastructure.database.transactions import Change, Surroundings, Transaction

_PARAMETER: Final = re.compile(r"%\((\w+)\)s")


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
        text = _text(tuple(change.statement for change in changes), len(facts))
        parameters: dict[str, Any] = {}
        for number, change in enumerate(changes):
            bound = change.statement.compiled(POSTGRESQL).bind(change.parameters)
            parameters |= {f"w{number}_{name}": value for name, value in bound.items()}
        for number, fact in enumerate(facts):
            parameters |= {f"f{number}_{name}": value for name, value in fact.items()}
        self._steps.reached("sql:before:commit")
        try:
            row = self._cursor.execute(text, parameters).fetchone()
        except self._driver_error as error:
            if self._connection.closed:
                raise OutcomeUnknown("the connection broke while the commit was under way") from error
            self._fail(error)
        self._steps.reached("sql:after:commit")
        return [int(position) for position in row]


@cache
def _text(changes: tuple[Statement, ...], facts: int) -> str:
    """Make the one statement of a combination."""
    branches: list[str] = []
    for number, statement in enumerate(changes):
        own = _PARAMETER.sub(rf"%(w{number}_\1)s", statement.compiled(POSTGRESQL).text)
        if number and own.startswith("UPDATE"):
            own += f" AND (SELECT hit FROM w{number - 1})"  # noqa: S608 - a number of ours
        branches.append(f"w{number} AS ({own} RETURNING true AS hit)")
    before = ", ".join(f"w{number}" for number in range(len(changes)))
    for number in range(facts):
        branches.append(f"f{number} AS ({_appended(number)} FROM {before} RETURNING position)")
        before = f"f{number}"
    # A fact is inserted where every branch before it hit its row: if the last one is there, all of them did.
    positions = [f"(SELECT position FROM f{number})" for number in range(facts)]  # noqa: S608 - the same
    positions[-1] = f"coalesce({positions[-1]}, runfacts_lost_race())"
    return f"WITH {', '.join(branches)} SELECT {', '.join(positions)}"


def _appended(number: int) -> str:
    """Say the insert of a fact so that it can wait for another branch."""
    names = [column.name for column in table.c if column.name != "position"]
    values = [
        f"%(f{number}_{name})s::{'bigint' if isinstance(table.c[name].type, BigInteger) else 'text'}" for name in names
    ]
    return f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {', '.join(values)}"

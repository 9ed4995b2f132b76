"""
The commands of Runs, for the workers that host them (R12.1).

A row is written with its Run and goes when the Run ends, by a trigger: so this table is as long as the work that is
not done yet, and the queue is read from it. A Run that somebody else's executor runs has no row and costs nothing.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, insert, select

from runfacts.domain.errors import DatabaseCorrupt, InvalidValue
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.stored_commands import StoredCommand
from runfacts.domain.views import Page
from runfacts.infrastructure.database.columns import among
from runfacts.infrastructure.database.recovery_tables import commands
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import runs
from runfacts.infrastructure.database.transactions import Change, Reading

INSERT_COMMAND: Final = Statement(
    "insert_command", insert(commands).values({column.name: bindparam(column.name) for column in commands.c})
)
SELECT_COMMAND: Final = Statement(
    "select_command", select(commands.c.argv, commands.c.cwd).where(commands.c.run_id == bindparam("run_id"))
)
# A subquery for each row, not a join: the rows are to be walked from this table, in its order, and no further than the
# page goes. Ids rise with time, so the order is that of creation.
_STATUS: Final = select(runs.c.status).where(runs.c.run_id == commands.c.run_id).scalar_subquery()
SELECT_QUEUED: Final = Statement(
    "select_queued",
    select(commands.c.run_id)
    .where(commands.c.run_id > bindparam("after"), among(_STATUS, [RunStatus.QUEUED]))
    .order_by(commands.c.run_id)
    .limit(bindparam("limit")),
)


def insert_command(run_id: str, command: StoredCommand) -> Change:
    """Keep the command of a Run that the same transaction makes."""
    return Change(INSERT_COMMAND, {"run_id": run_id, "argv": command.argv_json(), "cwd": command.cwd})


def read_command(reading: Reading, run_id: str) -> StoredCommand | None:
    """Give the command of a Run; None where none is kept (``DatabaseCorrupt``)."""
    row = reading.row(SELECT_COMMAND, {"run_id": run_id})
    if row is None:
        return None
    try:
        return StoredCommand.read(*row)
    except InvalidValue as error:
        # Without what is there: it may be a secret.
        raise DatabaseCorrupt(f"the command of run {run_id} cannot be used: it {error.reason}") from None


def read_queued(reading: Reading, *, limit: int, after: str | None) -> Page[str]:
    """Give the queued Runs whose command is kept, oldest first."""
    rows = reading.rows(SELECT_QUEUED, {"after": after or "", "limit": limit + 1})
    items = tuple(row[0] for row in rows[:limit])
    return Page(items, items[-1] if len(rows) > limit else None)

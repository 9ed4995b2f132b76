"""
Gaps: which missing positions will never come (R3.9).

PostgreSQL gives out positions in order but transactions commit in any order, so a position may be missing because its
writer is still in flight, or because it was rolled back. No lock tells them apart, but the writers' own do: an INSERT
holds ROW EXCLUSIVE on its table from before it draws a position until its commit is visible. So, at a gap:

1. take the highest position that is visible;
2. list the transactions that hold ROW EXCLUSIVE on the table, prepared ones too. The writer of any position that is
   missing below that highest one drew it before, so it is in this list or has ended;
3. wait until each of them has ended. Nobody blocks on it: whoever reads looks again;
4. then whatever a new snapshot does not show up to that highest position will never come.

The order of these steps is what makes it exact. Transactions are told apart by their virtual ids, never by process
(a session goes on to its next transaction, a prepared one has no process). Sessions that do not write to the table
hold up nothing. A virtual id means something only until the server restarts: what was seen is forgotten with the
session that it was seen in.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Table, func, select

from runfacts.domain.feeds import Waiting
from runfacts.infrastructure.database.dialects import POSTGRESQL, regclass_of
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Reading

_HOLDERS: Final = Statement(
    "select_writers",
    {
        POSTGRESQL: "SELECT DISTINCT virtualtransaction FROM pg_locks"
        " WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        " AND relation = CAST(:relation AS regclass)"
        # A prepared transaction has no pid.
        " AND pid IS DISTINCT FROM pg_backend_pid()"
    },
)


@dataclass(slots=True)
class _Hold:
    """Once none of ``holders`` is in flight, every position up to ``top`` is final."""

    top: int
    holders: frozenset[str]
    since_s: float


class Gaps:
    """What one session knows about the positions of one table. Not for several threads at once."""

    def __init__(self, table: Table) -> None:
        """Know nothing yet. ``table`` has a column ``position`` with an identity of CACHE 1."""
        self._relation = {"relation": regclass_of(table)}
        self._newest = Statement(f"select_newest_{table.name}", select(func.max(table.c.position)))
        self._holds: list[_Hold] = []
        self.final = 0
        """What a read that begins from now on does not find up to here will never come."""

    def forget(self) -> None:
        """Forget everything: the session is another one."""
        self._holds.clear()
        self.final = 0

    def look(self, reading: Reading, gap: int) -> Waiting | None:
        """
        Look what has become of a position that is missing below a visible one.

        None: it is final now, but may have come in between: read again. ``reading`` must see a new moment with each
        statement.
        """
        hold = next((hold for hold in self._holds if hold.top >= gap), None)
        if hold is None:
            row = reading.row(self._newest)
            top = 0 if row is None or row[0] is None else int(row[0])
            hold = _Hold(top, self._writers(reading), time.monotonic())
            self._holds.append(hold)
            held = hold.holders
        else:
            held = hold.holders & self._writers(reading)
        if not held:
            self.final = max(self.final, hold.top)
            self._holds = [other for other in self._holds if other.top > self.final]
            return None
        return Waiting(gap, int((time.monotonic() - hold.since_s) * 1_000), len(held))

    def _writers(self, reading: Reading) -> frozenset[str]:
        return frozenset(str(holder) for (holder,) in reading.rows(_HOLDERS, self._relation))

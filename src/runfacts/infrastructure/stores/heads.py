"""Heads: the last fact of each Run, and whether a head taken earlier still stands (R14.2)."""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, select

from runfacts.domain.views import Difference, Head
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts
from runfacts.infrastructure.database.transactions import Reading

SELECT_HEAD: Final = Statement(
    "select_head",
    select(facts.c.sequence, facts.c.hash)
    .where(facts.c.run_id == bindparam("run_id"))
    .order_by(facts.c.sequence.desc())
    .limit(1),
)
SELECT_HASH: Final = Statement(
    "select_hash",
    select(facts.c.hash).where(facts.c.run_id == bindparam("run_id"), facts.c.sequence == bindparam("sequence")),
)


def read_head(reading: Reading, run_id: str) -> Head | None:
    """Give a Run's head; None where it has no facts."""
    row = reading.row(SELECT_HEAD, {"run_id": run_id})
    return None if row is None else Head(run_id, row[0], row[1])


def compare_head(reading: Reading, head: Head) -> Difference | None:
    """Compare a head taken earlier with the fact that is there now; None where it still stands."""
    row = reading.row(SELECT_HASH, {"run_id": head.run_id, "sequence": head.version})
    found = None if row is None else str(row[0])
    return None if found == head.hash else Difference(head.run_id, "head", "hash", found, head.hash, head.version)

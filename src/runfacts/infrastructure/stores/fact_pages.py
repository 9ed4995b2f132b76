"""
The facts of one Run page by page, in bounded memory.

Each page is a read of its own: nothing is locked and no snapshot is held while whoever asked works on it, so a slow
reader never keeps SQLite's log from being cut or PostgreSQL from cleaning up. Facts are append-only, so pages up to a
known head fit together whatever is recorded meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sqlalchemy import bindparam, select

from runfacts.domain.facts import Fact
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of

PAGE: Final = 200
"""Facts in a page; at most 16,384 bytes of payload each (R3.6)."""

SELECT_PAGE: Final = Statement(
    "select_fact_page",
    select(*FACT_COLUMNS)
    .where(
        facts.c.run_id == bindparam("run_id"),
        facts.c.sequence > bindparam("after"),
        facts.c.sequence <= bindparam("last"),
    )
    .order_by(facts.c.sequence)
    .limit(PAGE),
)


def facts_page_by_page(database: Database, run_id: str, last: int) -> Iterator[Fact]:
    """Give a Run's facts by ``sequence``, up to the one of that number."""
    after = 0
    while True:
        with database.reading() as reading:
            rows = reading.rows(SELECT_PAGE, {"run_id": run_id, "after": after, "last": last})
        for row in rows:
            yield fact_of(row)
        if len(rows) < PAGE:
            return
        after = rows[-1][2]

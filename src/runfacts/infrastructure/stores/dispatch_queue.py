"""
The dispatcher's source: dispatches that are due, oldest first, by executor type and scope (R9.1, R9.2).

A page is one statement over three ranges of indexes, each stopping at the page's size: finished, undue and foreign
rows are outside of the ranges and cost nothing. The first holds what became due up to the round's cut-off. The others
hold what a clock that stepped back leaves behind (R5.3): what nobody has claimed yet or what is leased, although it
claims to be due ahead of now, which holds no more than what is being delivered right now; and waits that end further
ahead than any wait may. On SQLite the boot clock says whether a lease has ended (R5.2).
"""

from __future__ import annotations

from typing import Final

from runfacts.domain.cancellation.dispatch import NOT_DUE_MAX_MS
from runfacts.domain.cancellation.terms import CandidatePage, Cursor, DispatchCandidate
from runfacts.domain.limits import Settings
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Reading

SELECT_DUE: Final = Statement.from_files("select_due_dispatches")


def read_due(
    reading: Reading,
    served: tuple[tuple[str, str], ...],
    *,
    now_ms: int,
    cutoff_ms: int,
    after: Cursor | None,
    limit: int,
) -> CandidatePage:
    """Give the next page of a round that covers what was due at ``cutoff_ms``."""
    _, _, longest_ms = Settings.bounds()["cancel_lease_ms"]
    parameters: dict[str, object] = {
        "after_ms": -1 if after is None else after.due_at_ms,
        "after_id": "" if after is None else after.run_id,
        "limit": limit + 1,
        "cutoff_ms": cutoff_ms,
        # What is within the round is in no other range, also after a step back since it began.
        "now_ms": max(now_ms, cutoff_ms),
        "beyond_ms": max(now_ms + NOT_DUE_MAX_MS, cutoff_ms),
    }
    if reading.dialect == SQLITE:
        parameters |= {"boot_id": reading.clock.boot_id(), "boot_ms": reading.clock.boot_ms()}
    else:
        parameters["longest_ms"] = now_ms + longest_ms
    items: list[DispatchCandidate] = []
    for executor_type, scope in served:
        rows = reading.rows(SELECT_DUE, parameters | {"executor_type": executor_type, "scope": scope})
        items += (DispatchCandidate(*row) for row in rows)
    items.sort(key=lambda item: (item.due_at_ms, item.run_id))
    page = tuple(items[:limit])
    more = len(items) > limit
    return CandidatePage(page, Cursor(page[-1].due_at_ms, page[-1].run_id) if more else None)

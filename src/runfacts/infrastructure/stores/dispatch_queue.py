"""
The dispatcher's source: dispatches that are due, oldest first, by executor type and scope (R9.1, R9.2).

A page is made of ranges of indexes, one after the other, each stopping at the page's size: finished, undue and
foreign rows are outside of the ranges and cost nothing. One range holds what became due up to the round's cut-off;
one what claims to be due further ahead than any wait may be, which a clock that stepped back leaves behind (R5.3); on
SQLite a third holds leases that the boot clock has ended while the wall clock says otherwise (R5.2). Rows of ended
Runs have no due time and are in none.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Select, and_, bindparam, not_, or_, select

from runfacts.domain.cancellation.dispatch import NOT_DUE_MAX_MS
from runfacts.domain.cancellation.terms import CandidatePage, Cursor, DispatchCandidate
from runfacts.infrastructure.database.cancellation_tables import IS_DUE_SOMETIME, IS_LEASED
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches as table
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import runs
from runfacts.infrastructure.database.transactions import Reading

_Candidate = Select[tuple[str, str, int, int]]

_OURS: Final = and_(
    table.c.executor_type == bindparam("executor_type"),
    table.c.scope == bindparam("scope"),
    IS_DUE_SOMETIME,
)
_AFTER: Final = or_(
    table.c.due_at_ms > bindparam("after_ms"),
    and_(table.c.due_at_ms == bindparam("after_ms"), table.c.run_id > bindparam("after_id")),
)
# The boot clock decides what a lease is worth (R5.2); a lease of another boot is worth nothing.
_BOOT_ENDED: Final = or_(
    table.c.lease_boot_id != bindparam("boot_id"), table.c.lease_expires_boot_ms <= bindparam("boot_ms")
)


def _candidates() -> _Candidate:
    return (
        select(table.c.run_id, table.c.attempt_id, runs.c.intent_at_ms, table.c.due_at_ms)
        .join_from(table, runs, runs.c.run_id == table.c.run_id)
        .where(_OURS, _AFTER)
        .order_by(table.c.due_at_ms, table.c.run_id)
        .limit(bindparam("limit"))
    )


_UP_TO: Final = table.c.due_at_ms <= bindparam("cutoff_ms")
_BEYOND: Final = table.c.due_at_ms > bindparam("beyond_ms")

SELECT_DUE: Final = Statement(
    "select_due_dispatches",
    {
        "postgresql": _candidates().where(_UP_TO),
        "sqlite": _candidates().where(_UP_TO, or_(not_(IS_LEASED), _BOOT_ENDED)),
    },
)
SELECT_BEYOND: Final = Statement(
    "select_dispatches_beyond",
    {
        "postgresql": _candidates().where(_BEYOND),
        "sqlite": _candidates().where(_BEYOND, or_(not_(IS_LEASED), _BOOT_ENDED)),
    },
)
SELECT_BOOT_ENDED: Final = Statement(
    "select_dispatches_boot_ended",
    _candidates().where(
        IS_LEASED, _BOOT_ENDED, table.c.due_at_ms.between(bindparam("cutoff_ms") + 1, bindparam("beyond_ms"))
    ),
)


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
    found: dict[str, DispatchCandidate] = {}
    for executor_type, scope in served:
        parameters: dict[str, object] = {
            "executor_type": executor_type,
            "scope": scope,
            "after_ms": -1 if after is None else after.due_at_ms,
            "after_id": "" if after is None else after.run_id,
            "limit": limit + 1,
        }
        up_to: dict[str, object] = {"cutoff_ms": cutoff_ms}
        beyond: dict[str, object] = {"beyond_ms": now_ms + NOT_DUE_MAX_MS}
        boot: dict[str, object] = {}
        ranges = [(SELECT_DUE, up_to), (SELECT_BEYOND, beyond)]
        if reading.dialect == SQLITE:
            boot = {"boot_id": reading.clock.boot_id(), "boot_ms": reading.clock.boot_ms()}
            ranges.append((SELECT_BOOT_ENDED, up_to | beyond))
        for statement, bounds in ranges:
            for row in reading.rows(statement, parameters | bounds | boot):
                found[row[0]] = DispatchCandidate(row[0], row[1], row[2] or 0, row[3])
    items = sorted(found.values(), key=lambda item: (item.due_at_ms, item.run_id))
    page = tuple(items[:limit])
    more = len(items) > limit
    return CandidatePage(page, Cursor(page[-1].due_at_ms, page[-1].run_id) if more else None)

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

from sqlalchemy import ColumnElement, CompoundSelect, Select, and_, bindparam, not_, or_, select, tuple_, union_all

from runfacts.domain.cancellation.dispatch import NOT_DUE_MAX_MS
from runfacts.domain.cancellation.results import DispatchStatus
from runfacts.domain.cancellation.terms import CandidatePage, Cursor, DispatchCandidate
from runfacts.domain.limits import Settings
from runfacts.infrastructure.database.cancellation_tables import IS_DUE_SOMETIME, IS_LEASED, IS_OPEN
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches as table
from runfacts.infrastructure.database.columns import among
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, big_integer, identifier
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import runs
from runfacts.infrastructure.database.transactions import Reading

_Found = CompoundSelect[tuple[str, str, int, int]]

_FREED: Final = {
    # An end further ahead than the longest lease was never given by this clock.
    POSTGRESQL: table.c.lease_expires_at_ms > bindparam("longest_ms"),
    # Differs from PostgreSQL: the boot clock decides; a lease of another boot is worth nothing (R5.2).
    SQLITE: or_(table.c.lease_boot_id != bindparam("boot_id"), table.c.lease_expires_boot_ms <= bindparam("boot_ms")),
}
_AFTER: Final = tuple_(bindparam("after_ms", type_=big_integer()), bindparam("after_id", type_=identifier()))


def _page(dialect: str) -> _Found:
    """One page of the three ranges."""
    freed = _FREED[dialect]
    in_round = and_(IS_DUE_SOMETIME, table.c.due_at_ms <= bindparam("cutoff_ms"))
    if dialect == SQLITE:
        in_round &= or_(not_(IS_LEASED), freed)
    ahead = and_(IS_OPEN, table.c.due_at_ms > bindparam("now_ms"), or_(not_(IS_LEASED), freed))
    waiting = among(table.c.status, [DispatchStatus.RETRY_WAIT])
    beyond = and_(IS_DUE_SOMETIME, waiting, table.c.due_at_ms > bindparam("beyond_ms"))
    found = [_range(condition).subquery().select() for condition in (in_round, ahead, beyond)]
    return union_all(*found).order_by("due_at_ms", "run_id").limit(bindparam("limit"))


def _range(condition: ColumnElement[bool]) -> Select[tuple[str, str, int, int]]:
    return (
        select(table.c.run_id, table.c.attempt_id, runs.c.intent_at_ms, table.c.due_at_ms)
        .join_from(table, runs, runs.c.run_id == table.c.run_id)
        .where(
            table.c.executor_type == bindparam("executor_type"),
            table.c.scope == bindparam("scope"),
            condition,
            # As a pair, so that a later page begins in the index where the one before ended.
            tuple_(table.c.due_at_ms, table.c.run_id) > _AFTER,
            # A row of an ended Run is history, also where its Run ended while the row was being made (R7.6).
            runs.c.finished_at_ms.is_(None),
        )
        .order_by(table.c.due_at_ms, table.c.run_id)
        .limit(bindparam("limit"))
    )


SELECT_DUE: Final = Statement("select_due_dispatches", {dialect: _page(dialect) for dialect in (SQLITE, POSTGRESQL)})


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

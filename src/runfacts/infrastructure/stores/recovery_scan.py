"""What the startup gate asks: does anything make admitting new Runs unsafe (R11.9)? Nothing is written."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, Select, bindparam, func, select

from runfacts.domain.recovery.claims import ClaimState, Purpose, RecoveryScan
from runfacts.infrastructure.database.columns import among
from runfacts.infrastructure.database.dialects import constant
from runfacts.infrastructure.database.recovery_tables import IS_MANUAL
from runfacts.infrastructure.database.recovery_tables import recovery_claims as claims
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.recovery_targets import Moments


def _counted(*where: ColumnElement[bool]) -> Select[Any]:
    some = (
        select(claims.c.item_id)
        .where(
            claims.c.purpose == constant(Purpose.RECOVERY.value),
            claims.c.executor_type == bindparam("executor_type"),
            claims.c.scope == bindparam("scope"),
            *where,
        )
        .limit(bindparam("limit", type_=BigInteger))
        .subquery()
    )
    return select(func.count()).select_from(some)


_LATER: Final = claims.c.due_at_ms.is_not(None) & (claims.c.due_at_ms > bindparam("now_ms", type_=BigInteger))
COUNT_HELD: Final = Statement("count_held_recoveries", _counted(_LATER, among(claims.c.state, [ClaimState.CLAIMED])))
COUNT_BACKING_OFF: Final = Statement(
    "count_recoveries_backing_off", _counted(_LATER, among(claims.c.state, [ClaimState.RETRY]))
)
COUNT_MANUAL: Final = Statement("count_manual_recoveries", _counted(IS_MANUAL))


def scan(reading: Reading, places: frozenset[tuple[str, str]], moments: Moments, due: int, limit: int) -> RecoveryScan:
    """Count what is held, beside what was seen to be ``due``, and what waits; ``limit`` of each at most."""
    unsafe, waiting = due, 0
    for executor_type, scope in sorted(places):
        asked = {"executor_type": executor_type, "scope": scope, "now_ms": moments.now_ms, "limit": limit}
        if unsafe < limit:
            unsafe += int(reading.rows(COUNT_HELD, asked)[0][0])
        if waiting < limit:
            waiting += sum(int(reading.rows(each, asked)[0][0]) for each in (COUNT_BACKING_OFF, COUNT_MANUAL))
    return RecoveryScan(min(unsafe, limit), min(waiting, limit))

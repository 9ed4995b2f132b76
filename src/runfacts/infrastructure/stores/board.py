"""
The board: Runs as they stand, newest first, page by page (R1.4).

Every filter has an index that gives the order too, and a page ends where the next one begins: keyset pages, never
OFFSET, never a count.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, bindparam, or_, select

from runfacts.domain.cancellation.results import DispatchStatus
from runfacts.domain.errors import InvalidCursor, MalformedId
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.limits import TIME_MAX
from runfacts.domain.views import Page, RunSummary
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.database.dialects import one_of
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import runs
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.recovery_queue import MATTERS_NOW, STANDING_COLUMNS, standing_of

FIND_BY_KEY: Final = Statement(
    "find_by_key",
    select(runs.c.run_id).where(
        runs.c.project == bindparam("project"), runs.c.idempotency_key == bindparam("idempotency_key")
    ),
)

_COLUMNS: Final = (
    runs.c.run_id,
    runs.c.project,
    runs.c.task,
    runs.c.status,
    runs.c.version,
    runs.c.created_at_ms,
    runs.c.intent_at_ms,
    runs.c.retry_due_at_ms,
    cancellation_dispatches.c.status,
    *STANDING_COLUMNS,
)


def find_by_key(reading: Reading, project: str, idempotency_key: str) -> str | None:
    """Give the Run of a project that has this idempotency key (R2.11)."""
    row = reading.row(FIND_BY_KEY, {"project": project, "idempotency_key": idempotency_key})
    return None if row is None else str(row[0])


def read_board(
    reading: Reading, *, statuses: Sequence[RunStatus], project: str | None, limit: int, after: str | None
) -> Page[RunSummary]:
    """Give a page of the board, newest first."""
    parameters: dict[str, object] = {"limit": limit + 1}
    if statuses:
        parameters["statuses"] = [status.value for status in statuses]
    if project is not None:
        parameters["project"] = project
    if after is not None:
        parameters["after_ms"], parameters["after_id"] = _place(after)
    statement = _BOARDS[bool(statuses), project is not None, after is not None]
    rows = reading.rows(statement, parameters)
    items = tuple(_summary(row) for row in rows[:limit])
    more = len(rows) > limit
    return Page(items, _cursor(items[-1]) if more else None)


def _board(*, by_status: bool, by_project: bool, goes_on: bool) -> Select[tuple[object, ...]]:
    conditions: list[ColumnElement[bool]] = []
    if by_status:
        conditions.append(one_of(runs.c.status, "statuses"))
    if by_project:
        conditions.append(runs.c.project == bindparam("project"))
    if goes_on:
        conditions.append(
            or_(
                runs.c.created_at_ms < bindparam("after_ms"),
                and_(runs.c.created_at_ms == bindparam("after_ms"), runs.c.run_id < bindparam("after_id")),
            )
        )
    return (
        select(*_COLUMNS)
        .join_from(runs, cancellation_dispatches, cancellation_dispatches.c.run_id == runs.c.run_id, isouter=True)
        .join(recovery_claims, MATTERS_NOW, isouter=True)
        .where(*conditions)
        .order_by(runs.c.created_at_ms.desc(), runs.c.run_id.desc())
        .limit(bindparam("limit"))
    )


_BOARDS: Final = {
    (by_status, by_project, goes_on): Statement(
        "read_board", _board(by_status=by_status, by_project=by_project, goes_on=goes_on)
    )
    for by_status in (False, True)
    for by_project in (False, True)
    for goes_on in (False, True)
}


def _summary(row: Sequence[Any]) -> RunSummary:
    return RunSummary(
        run_id=row[0],
        project=row[1],
        task=row[2],
        status=RunStatus(row[3]),
        version=row[4],
        created_at_ms=row[5],
        intent_at_ms=row[6],
        retry_due_at_ms=row[7],
        dispatch=None if row[8] is None else DispatchStatus(row[8]),
        recovery=standing_of(row[9:]),
    )


def _cursor(last: RunSummary) -> str:
    return urlsafe_b64encode(f"{last.created_at_ms}:{last.run_id}".encode()).decode()


def _place(cursor: str) -> tuple[int, str]:
    try:
        at_ms, _, run_id = urlsafe_b64decode(cursor.encode()).decode().partition(":")
        place = int(at_ms), canonical_id("run id", run_id)
    except (ValueError, MalformedId):
        raise InvalidCursor from None
    if not 0 <= place[0] < TIME_MAX:
        raise InvalidCursor
    return place

"""
What stands about recovery: the operators' queue, and the row that matters for one Run (R13.1).

The queue has two parts: items that wait for an operator, oldest first, then those that are long due and that nobody
claims (R8.2). A row whose target is no candidate of its purpose any more is left over and in neither (R11.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, func, literal_column, or_, select, union_all

from runfacts.domain.errors import InvalidCursor, MalformedId
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.limits import TIME_MAX
from runfacts.domain.recovery.claims import ClaimState, ItemKind, ManualReason, Purpose, RecoveryKey
from runfacts.domain.recovery.operators import RETRIED, UNSERVED, ManualRecovery, diagnosis
from runfacts.domain.views import Page, RecoveryView
from runfacts.infrastructure.database.columns import among
from runfacts.infrastructure.database.dialects import constant
from runfacts.infrastructure.database.recovery_tables import IS_MANUAL
from runfacts.infrastructure.database.recovery_tables import recovery_claims as table
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempt_is_active, attempts, executions, run_has_attempt, runs
from runfacts.infrastructure.database.transactions import Reading

_NOT_ASKED: Final = runs.c.intent_at_ms.is_(None)
_IS_CANDIDATE_RUN: Final = {
    Purpose.STOP: and_(runs.c.intent_at_ms.is_not(None), runs.c.finished_at_ms.is_(None)),
    Purpose.RETRY: and_(_NOT_ASKED, among(runs.c.status, RETRIED)),
}
IS_CANDIDATE: Final = or_(
    *(and_(among(table.c.purpose, [purpose]), condition) for purpose, condition in _IS_CANDIDATE_RUN.items()),
    and_(
        among(table.c.purpose, [Purpose.RECOVERY]),
        _NOT_ASKED,
        or_(
            # Also of a Run that has ended: that they contradict each other is what an operator must know (R11.4).
            and_(among(table.c.kind, [ItemKind.ATTEMPT]), attempt_is_active(attempts.c.status)),
            and_(
                among(table.c.kind, [ItemKind.RUN]),
                runs.c.active_attempt_id.is_(None),
                or_(among(runs.c.status, [RunStatus.CREATED]), run_has_attempt(runs.c.status)),
            ),
        ),
    ),
)
"""That a row's target is a candidate of its purpose; it needs the row's Run, and the Attempt of its item's id."""
SELECT_MANUAL: Final = Statement(
    "select_manual",
    select(
        table.c.run_id,
        table.c.attempt_id,
        table.c.purpose,
        table.c.kind,
        table.c.item_id,
        table.c.reason,
        table.c.updated_at_ms,
        table.c.version,
        runs.c.version,
    )
    .join_from(table, runs, runs.c.run_id == table.c.run_id)
    .join(attempts, attempts.c.attempt_id == table.c.item_id, isouter=True)
    .where(
        IS_MANUAL,
        IS_CANDIDATE,
        or_(
            table.c.updated_at_ms > bindparam("after_ms"),
            and_(
                table.c.updated_at_ms == bindparam("after_ms"),
                or_(
                    table.c.item_id > bindparam("after_id"),
                    and_(table.c.item_id == bindparam("after_id"), table.c.purpose > bindparam("after_purpose")),
                ),
            ),
        ),
    )
    .order_by(table.c.updated_at_ms, table.c.item_id, table.c.purpose)
    .limit(bindparam("limit")),
)


def _unserved(due: ColumnElement[int], item: ColumnElement[str], purpose: Purpose) -> Select[Any]:
    """Select one kind of what is long due; both have the same columns and the same places in a page."""
    return (
        select(
            runs.c.run_id,
            (executions.c.attempt_id if purpose is Purpose.RECOVERY else table.c.attempt_id).label("attempt_id"),
            constant(purpose.value).label("purpose"),
            item.label("item_id"),
            due.label("due_ms"),
            func.coalesce(table.c.version, literal_column("0")).label("version"),
            runs.c.version.label("run_version"),
        )
        .where(
            due.is_not(None),
            due <= bindparam("before_ms"),
            or_(
                due > bindparam("after_ms"),
                and_(due == bindparam("after_ms"), item > bindparam("after_id")),
            ),
        )
        .order_by(due, item)
        .limit(bindparam("limit"))
    )


_UNSERVED_ATTEMPTS: Final = (
    _unserved(executions.c.recover_at_ms, executions.c.attempt_id, Purpose.RECOVERY)
    .join_from(executions, runs, runs.c.run_id == executions.c.run_id)
    .join(
        table,
        and_(
            among(table.c.purpose, [Purpose.RECOVERY]),
            among(table.c.kind, [ItemKind.ATTEMPT]),
            table.c.item_id == executions.c.attempt_id,
        ),
        isouter=True,
    )
    .where(executions.c.closed_at_ms.is_(None), _NOT_ASKED)
    .subquery()
)
_UNSERVED_RUNS: Final = tuple(
    _unserved(table.c.due_at_ms, table.c.item_id, purpose)
    .join_from(table, runs, runs.c.run_id == table.c.run_id)
    .where(among(table.c.purpose, [purpose]), _IS_CANDIDATE_RUN[purpose])
    .subquery()
    for purpose in (Purpose.STOP, Purpose.RETRY)
)
_UNSERVED_ALL: Final = union_all(*map(select, (_UNSERVED_ATTEMPTS, *_UNSERVED_RUNS))).subquery()
SELECT_UNSERVED: Final = Statement(
    "select_unserved_recoveries",
    # An Attempt and a Run never share an id, and a Run is listed for one purpose at a time: the id gives the place.
    select(*_UNSERVED_ALL.c).order_by(_UNSERVED_ALL.c.due_ms, _UNSERVED_ALL.c.item_id).limit(bindparam("limit")),
)
STANDING_COLUMNS: Final = (
    table.c.state,
    table.c.purpose,
    table.c.version,
    table.c.reason,
    table.c.next_claim_at_ms,
)
SELECT_STANDING: Final = Statement(
    "select_recovery_standing",
    select(*STANDING_COLUMNS).where(
        table.c.purpose == bindparam("purpose"),
        table.c.kind == bindparam("kind"),
        table.c.item_id == bindparam("item_id"),
    ),
)

_purpose_now = case(
    (runs.c.intent_at_ms.is_not(None), constant(Purpose.STOP.value)),
    (among(runs.c.status, RETRIED), constant(Purpose.RETRY.value)),
    else_=constant(Purpose.RECOVERY.value),
)
_is_of_attempt = and_(
    _NOT_ASKED,
    runs.c.active_attempt_id.is_not(None),
    # As item_of says; the table keeps an active Attempt from being anywhere else.
    run_has_attempt(runs.c.status),
)
MATTERS_NOW: Final = and_(
    table.c.purpose == _purpose_now,
    table.c.kind == case((_is_of_attempt, constant(ItemKind.ATTEMPT.value)), else_=constant(ItemKind.RUN.value)),
    table.c.item_id == case((_is_of_attempt, runs.c.active_attempt_id), else_=runs.c.run_id),
)
"""Joins to a Run the one row that matters now, by the whole primary key (``item_of`` in SQL)."""

_FIRST: Final = "m"
_SECOND: Final = "u"


def read_manual(reading: Reading, *, unserved_before_ms: int, limit: int, after: str | None) -> Page[ManualRecovery]:
    """Give a page of the queue: what waits for an operator, oldest first, then what nobody serves."""
    part, after_ms, after_id, after_purpose = _place(after)
    found: list[tuple[str, ManualRecovery]] = []
    if part == _FIRST:
        place = {"after_ms": after_ms, "after_id": after_id, "after_purpose": after_purpose, "limit": limit + 1}
        found += [_manual(row) for row in reading.rows(SELECT_MANUAL, place)]
        after_ms, after_id = -1, ""
    if len(found) <= limit:
        place = {
            "after_ms": after_ms,
            "after_id": after_id,
            "limit": limit + 1 - len(found),
            "before_ms": unserved_before_ms,
        }
        found += [_unclaimed(row) for row in reading.rows(SELECT_UNSERVED, place)]
    page = found[:limit]
    more = len(found) > limit
    return Page(tuple(item for _, item in page), page[-1][0] if more else None)


def read_standing(reading: Reading, item: RecoveryKey) -> RecoveryView | None:
    """Give what stands about an item; None where nobody has looked at it, or needs to."""
    key = {"purpose": item.purpose.value, "kind": item.kind.value, "item_id": item.item_id}
    return standing_of(reading.row(SELECT_STANDING, key))


def standing_of(row: Sequence[Any] | None) -> RecoveryView | None:
    """Give the view of ``STANDING_COLUMNS``."""
    if row is None or row[0] is None:
        return None
    reason = None if row[3] is None else ManualReason(row[3])
    return RecoveryView(ClaimState(row[0]), Purpose(row[1]), row[2], reason, row[4])


def _manual(row: Sequence[Any]) -> tuple[str, ManualRecovery]:
    run_id, attempt_id, purpose, kind, item_id, reason, since_ms, version, run_version = row
    words = diagnosis(Purpose(purpose), ItemKind(kind), ManualReason(reason))
    item = ManualRecovery(run_id, attempt_id, reason, since_ms, words, version, Purpose(purpose), run_version)
    return f"{_FIRST}{since_ms}:{item_id}:{purpose}", item


def _unclaimed(row: Sequence[Any]) -> tuple[str, ManualRecovery]:
    run_id, attempt_id, purpose, item_id, due_ms, version, run_version = row
    reason, words = ManualReason.SCOPE_UNSERVED.value, UNSERVED[Purpose(purpose)]
    item = ManualRecovery(run_id, attempt_id, reason, due_ms, words, version, Purpose(purpose), run_version)
    return f"{_SECOND}{due_ms}:{item_id}:{purpose}", item


def _place(cursor: str | None) -> tuple[str, int, str, str]:
    if cursor is None:
        return _FIRST, -1, "", ""
    part, (digits, _, rest) = cursor[:1], cursor[1:].partition(":")
    item_id, _, purpose = rest.partition(":")
    try:
        place = part, int(digits), canonical_id("item id", item_id), Purpose(purpose).value
    except (ValueError, MalformedId):
        raise InvalidCursor from None
    if part not in {_FIRST, _SECOND} or not 0 <= place[1] < TIME_MAX:
        raise InvalidCursor
    return place

"""The operators' queues of cancellations, as queries on current state (R6.2, R13.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from sqlalchemy import ColumnElement, and_, bindparam, case, literal_column, or_, select

from runfacts.domain.cancellation.operators import DIAGNOSES, UNSERVED, BlockedDispatch, UnprovenStop
from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.domain.errors import InvalidCursor, MalformedId
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner
from runfacts.domain.limits import TIME_MAX
from runfacts.domain.payloads import AttemptLateCallbackIgnored, RunRecoveryAttested, RunStopConfirmed
from runfacts.domain.views import Page
from runfacts.infrastructure.database.cancellation_tables import IS_BLOCKED, IS_DUE_SOMETIME
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches as table
from runfacts.infrastructure.database.columns import among
from runfacts.infrastructure.database.dialects import constant
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, facts, runs
from runfacts.infrastructure.database.transactions import Reading

Queued = TypeVar("Queued", BlockedDispatch, UnprovenStop)


def _behind(at_ms: ColumnElement[int], run_id: ColumnElement[str]) -> ColumnElement[bool]:
    """Say what comes after a page's last item."""
    return or_(at_ms > bindparam("after_ms"), and_(at_ms == bindparam("after_ms"), run_id > bindparam("after_id")))


_DISPATCH: Final = (table.c.run_id, table.c.attempt_id, table.c.last_result, table.c.updated_at_ms, table.c.version)

SELECT_BLOCKED: Final = Statement(
    "select_blocked",
    select(*_DISPATCH)
    .join_from(table, runs, runs.c.run_id == table.c.run_id)
    .where(
        IS_BLOCKED,
        # A row of an ended Run is history (R7.6), and an abandoned one is out of the queue (R13.2).
        runs.c.finished_at_ms.is_(None),
        table.c.last_result != DispatchResult.ABANDONED.value,
        _behind(table.c.updated_at_ms, table.c.run_id),
    )
    .order_by(table.c.updated_at_ms, table.c.run_id)
    .limit(bindparam("limit")),
)
SELECT_UNSERVED: Final = Statement(
    "select_unserved",
    select(*_DISPATCH, table.c.due_at_ms)
    .join_from(table, runs, runs.c.run_id == table.c.run_id)
    .where(
        IS_DUE_SOMETIME,
        runs.c.finished_at_ms.is_(None),
        table.c.due_at_ms <= bindparam("before_ms"),
        _behind(table.c.due_at_ms, table.c.run_id),
    )
    .order_by(table.c.due_at_ms, table.c.run_id)
    .limit(bindparam("limit")),
)
_UNPROVEN: Final = select(
    runs.c.run_id,
    runs.c.active_attempt_id,
    runs.c.intent_at_ms,
    runs.c.version,
    table.c.status,
    table.c.last_result,
    runs.c.execution_owner,
).join_from(runs, table, table.c.run_id == runs.c.run_id, isouter=True)
SELECT_UNPROVEN: Final = Statement(
    "select_unproven",
    _UNPROVEN.join(attempts, attempts.c.attempt_id == runs.c.active_attempt_id)
    .where(
        runs.c.intent_at_ms.is_not(None),
        runs.c.finished_at_ms.is_(None),
        among(attempts.c.status, [AttemptStatus.STARTING, AttemptStatus.RUNNING]),
        _behind(runs.c.intent_at_ms, runs.c.run_id),
    )
    .order_by(runs.c.intent_at_ms, runs.c.run_id)
    .limit(bindparam("limit")),
)
_report = facts.alias("report")
_word = facts.alias("word")
_reported_since = (
    select(literal_column("1"))
    .join_from(_report, _word, and_(_word.c.run_id == _report.c.run_id, _word.c.attempt_id == _report.c.attempt_id))
    .where(
        _report.c.run_id == runs.c.run_id,
        _report.c.type == constant(AttemptLateCallbackIgnored.TYPE),
        among(_word.c.type, [RunRecoveryAttested.TYPE, RunStopConfirmed.TYPE]),
        _word.c.sequence < _report.c.sequence,
    )
    .exists()
)
SELECT_ATTESTED: Final = Statement(
    "select_attested",
    select(
        runs.c.run_id,
        runs.c.active_attempt_id,
        runs.c.version,
        runs.c.updated_at_ms,
        case((_reported_since, literal_column("1")), else_=literal_column("0")),
    )
    .where(
        runs.c.attested == 1,
        _behind(runs.c.updated_at_ms, runs.c.run_id),
    )
    .order_by(runs.c.updated_at_ms, runs.c.run_id)
    .limit(bindparam("limit")),
)

_FIRST: Final = "b"
_SECOND: Final = "u"
ATTESTED: Final = "attested"
"""The reason of an end that stands on an operator's word alone."""
REPORTED_SINCE: Final = "reported_since"
"""The reason of one whose Attempt has reported since: it was alive, or had ended otherwise (R13.2)."""
LEGACY: Final = "legacy"
"""The reason of a stop that is another system's matter (R2.10)."""
NOT_HERE: Final = (
    "The run came in from an archive, in which it had been asked to stop and had not ended. Another system executed it:"
    " nothing here delivers the request, looks for its processes or records its end, so this stays as it is. Whether it"
    " has stopped is to be seen where it ran."
)
ON_A_WORD: Final[Mapping[str, str]] = MappingProxyType(
    {
        ATTESTED: (
            "The run ended, or its attempt was declared lost, on an operator's word; no evidence of its processes' end"
            " was recorded."
        ),
        REPORTED_SINCE: (
            "The run ended, or its attempt was declared lost, on an operator's word, and the attempt has reported"
            " since: it was alive then, or had ended in a way that nobody had seen. The report changed nothing; the"
            " audit trail has it. If the run was tried again, see whether its work was done twice."
        ),
    }
)
"""What is said of an end that stands on an operator's word, by reason."""


def read_blocked(reading: Reading, *, unserved_before_ms: int, limit: int, after: str | None) -> Page[BlockedDispatch]:
    """Give a page of the queue: blocked ones, oldest first, then those that nobody serves."""
    part, after_ms, after_id = _place(after)
    items: list[tuple[str, int, BlockedDispatch]] = []
    if part == _FIRST:
        place = {"after_ms": after_ms, "after_id": after_id, "limit": limit + 1}
        for run_id, attempt_id, result, since_ms, version in reading.rows(SELECT_BLOCKED, place):
            item = BlockedDispatch(run_id, attempt_id, result, since_ms, DIAGNOSES[result], version)
            items.append((_FIRST, since_ms, item))
        after_ms, after_id = -1, ""
    if len(items) <= limit:
        place = {
            "after_ms": after_ms,
            "after_id": after_id,
            "limit": limit + 1 - len(items),
            "before_ms": unserved_before_ms,
        }
        for run_id, attempt_id, _, _, version, due_at_ms in reading.rows(SELECT_UNSERVED, place):
            item = BlockedDispatch(run_id, attempt_id, UNSERVED, due_at_ms, DIAGNOSES[UNSERVED], version)
            items.append((_SECOND, due_at_ms, item))
    return _page(items, limit)


def read_unproven(reading: Reading, *, limit: int, after: str | None) -> Page[UnprovenStop]:
    """Give a page of stops that are not proven: those still open, then those on an operator's word."""
    part, after_ms, after_id = _place(after)
    items: list[tuple[str, int, UnprovenStop]] = []
    if part == _FIRST:
        place = {"after_ms": after_ms, "after_id": after_id, "limit": limit + 1}
        for run_id, attempt_id, at_ms, version, status, result, owner in reading.rows(SELECT_UNPROVEN, place):
            elsewhere = owner == ExecutionOwner.LEGACY
            reason, words = (LEGACY, NOT_HERE) if elsewhere else unproven_reason(status, result)
            items.append((_FIRST, at_ms, UnprovenStop(run_id, attempt_id, reason, at_ms, words, version)))
        after_ms, after_id = -1, ""
    if len(items) <= limit:
        place = {"after_ms": after_ms, "after_id": after_id, "limit": limit + 1 - len(items)}
        for run_id, attempt_id, version, at_ms, reported in reading.rows(SELECT_ATTESTED, place):
            reason = REPORTED_SINCE if reported else ATTESTED
            item = UnprovenStop(run_id, attempt_id, reason, at_ms, ON_A_WORD[reason], version)
            items.append((_SECOND, at_ms, item))
    return _page(items, limit)


def unproven_reason(status: str | None, result: str | None) -> tuple[str, str]:
    """Say where a stop stands that is not proven, by its dispatch: the reason and the diagnosis."""
    if status == DispatchStatus.DISPATCHED.value:
        words = "The signal was delivered and no end is recorded yet: signalled, perhaps still running."
        return "signalled", words
    if status == DispatchStatus.BLOCKED.value and result is not None:
        return result, DIAGNOSES[result]
    if status == DispatchStatus.LEASED.value:
        words = "A worker has claimed the delivery. Should it have died, another one takes over when its lease ends."
        return "delivering", words
    if status is None:
        return "no_dispatch", "The cancellation is requested and nobody has begun to deliver it."
    return "waiting", "The cancellation is requested and waits for a worker of the attempt's scope to deliver it."


def _page(items: Sequence[tuple[str, int, Queued]], limit: int) -> Page[Queued]:
    """Make a page of what was found, which is one more than it may have where others follow."""
    page = items[:limit]
    if len(items) <= limit:
        return Page(tuple(item for _, _, item in page))
    part, at_ms, last = page[-1]
    return Page(tuple(item for _, _, item in page), f"{part}{at_ms}:{last.run_id}")


def _place(cursor: str | None) -> tuple[str, int, str]:
    if cursor is None:
        return _FIRST, -1, ""
    part, (digits, _, run_id) = cursor[:1], cursor[1:].partition(":")
    try:
        place = part, int(digits), canonical_id("run id", run_id)
    except (ValueError, MalformedId):
        raise InvalidCursor from None
    if part not in {_FIRST, _SECOND} or not 0 <= place[1] < TIME_MAX:
        raise InvalidCursor
    return place

"""
Reading projections: statistics, the stop-proof report, and how each projection stands (R14.1).

A read finds the live generation in the same statement, so that it sees one generation whole, also while another takes
its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import ColumnElement, and_, bindparam, func, or_, select

from runfacts.domain.actors import Actor
from runfacts.domain.errors import InvalidCursor, MalformedId
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import IntentKind, RunStatus
from runfacts.domain.measures import Place, QueueState
from runfacts.domain.payloads import Escalation
from runfacts.domain.projecting import (
    Grouping,
    Lag,
    Lengths,
    ProjectionHealth,
    ProjectionName,
    SetAsideFact,
    StatisticsLine,
    StopDelivery,
    StopEvidence,
    StopProof,
)
from runfacts.infrastructure.database.dialects import constant
from runfacts.infrastructure.database.projection_tables import (
    IS_LIVE,
    GenerationState,
    projections,
    statistics,
    stop_proofs,
)
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores import generations
from runfacts.infrastructure.stores.generations import live_of, read_generations
from runfacts.infrastructure.stores.lag import read_lag
from runfacts.projections.folding import DAY_MS
from runfacts.projections.statistics import COUNTERS, LENGTHS

_MS_MAX: Final = (1 << 63) - 1
_s = stop_proofs.c


def _live_number(name: ProjectionName) -> Any:  # noqa: ANN401 - SQLAlchemy's own type is longer than its meaning
    return select(projections.c.generation).where(projections.c.projection == constant(name.value), IS_LIVE)


def _totals() -> list[ColumnElement[Any]]:
    columns: list[ColumnElement[Any]] = [func.sum(statistics.c[name]) for name in COUNTERS]
    for name in LENGTHS:
        columns += [
            func.sum(statistics.c[f"{name}_count"]),
            func.sum(statistics.c[f"{name}_ms"]),
            func.max(statistics.c[f"{name}_max_ms"]),
        ]
    return columns


_GROUPS: Final[Mapping[Grouping, ColumnElement[Any]]] = MappingProxyType(
    {
        Grouping.DAY: statistics.c.day_at_ms,
        Grouping.PROJECT: statistics.c.project,
        Grouping.TASK: statistics.c.task,
    }
)
_SELECT_STATISTICS: Final = {
    by: Statement(
        f"select_statistics_by_{by.value}",
        select(group, *_totals())
        .where(
            statistics.c.generation == _live_number(ProjectionName.STATISTICS).scalar_subquery(),
            statistics.c.day_at_ms >= bindparam("since_ms"),
        )
        .group_by(group)
        .order_by(group),
    )
    for by, group in _GROUPS.items()
}


def read_statistics(reading: Reading, by: Grouping, since_ms: int) -> tuple[StatisticsLine, ...]:
    """Read statistics from the day on in which ``since_ms`` lies."""
    since_ms -= since_ms % DAY_MS
    return tuple(_line(by, row) for row in reading.rows(_SELECT_STATISTICS[by], {"since_ms": since_ms}))


def _line(by: Grouping, row: tuple[Any, ...]) -> StatisticsLine:
    # PostgreSQL adds whole numbers up to something that is none.
    numbers = [int(value) for value in row[1:]]
    counted, timed = numbers[: len(COUNTERS)], numbers[len(COUNTERS) :]
    durations, executions, cancellations, recoveries = (
        Lengths(*timed[start : start + 3]) for start in range(0, len(timed), 3)
    )
    group = day_of(row[0]) if by is Grouping.DAY else str(row[0])
    return StatisticsLine(
        group,
        **dict(zip(COUNTERS, counted, strict=True)),
        durations=durations,
        executions=executions,
        cancellations=cancellations,
        recoveries=recoveries,
    )


def day_of(at_ms: int) -> str:
    """Give the day as YYYY-MM-DD; a day that no calendar has, by its beginning."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)).date().isoformat()
    except OverflowError:
        return str(at_ms)


@cache
def _select_stops(*, after: bool, unfinished: bool) -> Statement:
    conditions = [
        _s.generation == _live_number(ProjectionName.STOP_PROOF).scalar_subquery(),
        _s.requested_at_ms >= bindparam("since_ms"),
    ]
    if after:
        conditions.append(
            or_(
                _s.requested_at_ms > bindparam("after_ms"),
                and_(_s.requested_at_ms == bindparam("after_ms"), _s.run_id > bindparam("after_run")),
            )
        )
    if unfinished:
        conditions.append(_s.ended_at_ms.is_(None))
    return Statement(
        "select_stop_proofs",
        select(
            _s.run_id,
            _s.project,
            _s.attempt_id,
            _s.kind,
            _s.requested_by_type,
            _s.requested_by_id,
            _s.requested_at_ms,
            _s.delivery,
            _s.result,
            _s.escalation,
            _s.delivered_at_ms,
            _s.status,
            _s.ended_at_ms,
            _s.evidence,
        )
        .where(*conditions)
        .order_by(_s.requested_at_ms, _s.run_id)
        .limit(bindparam("limit")),
    )


def read_stop_proofs(
    reading: Reading, *, since_ms: int, unfinished: bool, limit: int, after: str | None
) -> tuple[tuple[StopProof, ...], str | None]:
    """Read a page of the stop-proof report, and the cursor of the next one."""
    given: dict[str, object] = {"since_ms": since_ms, "limit": limit + 1}
    if after is not None:
        given["after_ms"], given["after_run"] = _stop_cursor(after)
    rows = reading.rows(_select_stops(after=after is not None, unfinished=unfinished), given)
    items = tuple(_stop(row) for row in rows[:limit])
    return items, f"{items[-1].requested_at_ms}:{items[-1].run_id}" if len(rows) > limit else None


def _stop(row: tuple[Any, ...]) -> StopProof:
    return StopProof(
        run_id=row[0],
        project=row[1],
        attempt_id=row[2],
        kind=IntentKind(row[3]),
        requested_by=Actor.recorded(row[4], row[5]),
        requested_at_ms=row[6],
        delivery=None if row[7] is None else StopDelivery(row[7]),
        result=row[8],
        escalation=None if row[9] is None else Escalation(row[9]),
        delivered_at_ms=row[10],
        status=None if row[11] is None else RunStatus(row[11]),
        ended_at_ms=row[12],
        evidence=None if row[13] is None else StopEvidence(row[13]),
    )


def _stop_cursor(text: str) -> tuple[int, str]:
    digits, _, run_id = text.partition(":")
    if not (digits.isascii() and digits.isdigit()) or int(digits[:20]) > _MS_MAX:
        raise InvalidCursor
    try:
        return int(digits[:20]), canonical_id("run id", run_id)
    except MalformedId:
        raise InvalidCursor from None


def read_projection_lag(reading: Reading, name: ProjectionName) -> Lag:
    """Say how far a projection is behind; one that nobody has begun is behind by everything."""
    live = live_of(read_generations(reading, name))
    _, count, ms = read_lag(reading, 0 if live is None else live.position)
    return Lag(count, ms)


def read_projection_health(reading: Reading, name: ProjectionName) -> ProjectionHealth:
    """Say how a projection stands."""
    known = read_generations(reading, name)
    live = live_of(known)
    _, count, ms = read_lag(reading, 0 if live is None else live.position)
    return ProjectionHealth(
        projection=name,
        position=0 if live is None else live.position,
        lag=Lag(count, ms),
        facts=0 if live is None else live.facts,
        unknown=0 if live is None else live.unknown,
        set_aside=0 if live is None else int(reading.rows(generations.COUNT_ASIDE, live.key)[0][0]),
        rebuilding=any(one.state is GenerationState.BUILDING for one in known),
    )


def read_lags(reading: Reading) -> Mapping[Place, QueueState]:
    """Read the lag of every projection, as a gauge has it."""
    found: dict[Place, QueueState] = {}
    for name in ProjectionName:
        lag = read_projection_lag(reading, name)
        found[(name.value,)] = QueueState(lag.facts, lag.ms)
    return found


def read_set_aside(
    reading: Reading, name: ProjectionName, *, limit: int, after: int
) -> tuple[tuple[SetAsideFact, ...], int | None]:
    """Read a page of what a projection has set aside, by position, and where the next one begins."""
    live = live_of(read_generations(reading, name))
    if live is None:
        return (), None
    rows = reading.rows(generations.SELECT_ASIDE, {**live.key, "after": after, "limit": limit + 1})
    items = tuple(SetAsideFact(name, *row) for row in rows[:limit])
    return items, items[-1].position if len(rows) > limit else None


def all_are_up_to_date(reading: Reading) -> bool:
    """Whether no projection has anything to take in or to sweep: one statement."""
    rows = reading.rows(generations.SELECT_PROGRESS)
    done = {row[0] for row in rows if row[2] == GenerationState.LIVE.value and row[1] >= (row[3] or 0)}
    dropped = any(row[2] == GenerationState.DROPPED.value for row in rows)
    return not dropped and done >= {name.value for name in ProjectionName}

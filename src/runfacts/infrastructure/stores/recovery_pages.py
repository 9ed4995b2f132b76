"""
Where the candidates of recovery stand: ranges of indexes, each read from its beginning to the page's end (R11.1).

Attempts are found by their executions, in one range for each executor type and scope that a worker serves; whoever
waits for an operator has left the index, whoever backs off or is claimed stands further back. Everything else has a
row of ``recovery_claims``, found by its due time. Runs that nobody looks after, and Runs that were created and never
queued, get their row when they are found: a walk along their index that begins where it found nothing the last time,
so that thousands that wait for an operator are passed over once and not by every page.

A clock that stepped back leaves times ahead of any that it would give now; those are ranges of their own (R5.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    ScalarSelect,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)
from sqlalchemy.types import NULLTYPE

from runfacts.domain.cancellation.dispatch import NOT_DUE_MAX_MS
from runfacts.domain.lifecycle import ExecutionOwner, RunStatus
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.claims import ClaimState, ItemKind, Purpose
from runfacts.infrastructure.database.columns import among
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, constant
from runfacts.infrastructure.database.recovery_tables import recovery_claims as claims
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempt_is_active, attempts, executions, run_has_attempt, runs
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.recovery_claims import CLAIM_BOUND_MS
from runfacts.infrastructure.stores.recovery_targets import Moments

_, _, _LEASE_BOUND_MS = Settings.bounds()["execution_lease_ms"]
ANYWHERE: Final = ("", "")
"""Executor type and scope of rows that need no evidence, so that any worker may claim them."""


def _number(name: str) -> ColumnElement[int]:
    return bindparam(name, type_=BigInteger)


def _over(
    dialect: str, expires: ColumnElement[int], boot_id: ColumnElement[str], boot_ms: ColumnElement[int], bound_ms: int
) -> ColumnElement[bool]:
    """Whether a lease is over, by what decides leases (R5.3)."""
    if dialect == POSTGRESQL:
        return or_(expires <= _number("now_ms"), expires > _number("now_ms") + bound_ms)
    return or_(boot_id != bindparam("boot_id"), boot_ms <= _number("boot_ms"), boot_ms > _number("boot_ms") + bound_ms)


def _claim_over(dialect: str) -> ColumnElement[bool]:
    return _over(
        dialect, claims.c.claim_expires_at_ms, claims.c.claim_boot_id, claims.c.claim_expires_boot_ms, CLAIM_BOUND_MS
    )


def _said(column: ColumnElement[Any]) -> ColumnElement[str]:
    return func.coalesce(cast(column, Text), "-")


_SEEN: Final = (
    # As ``Target.seen`` has it.
    runs.c.status
    + " "
    + _said(attempts.c.status)
    + " "
    + _said(executions.c.lease_expires_at_ms)
    + " "
    + _said(runs.c.intent_at_ms)
)
_NOT_SO_ANY_MORE: Final = and_(among(claims.c.state, [ClaimState.MANUAL]), claims.c.seen != _SEEN)
_YES, _NO = literal_column("1", BigInteger), literal_column("0", BigInteger)
# Asked as ``_lets`` is, and for the same reason.
_IS_ACTIVE: Final = case((attempt_is_active(attempts.c.status), _YES)).is_not(None)
_OURS: Final = and_(runs.c.execution_owner == constant(ExecutionOwner.RUNTIME.value), runs.c.intent_at_ms.is_(None))


def _row(kind: ItemKind, item_id: ColumnElement[str], what: ColumnElement[Any]) -> ScalarSelect[Any]:
    """Give something of an item's row; null where it has none.

    Not a join: PostgreSQL believes a table of claims small that has just grown, and would read all of it for each item.
    """
    return (
        select(what)
        .where(
            claims.c.purpose == constant(Purpose.RECOVERY.value),
            claims.c.kind == constant(kind.value),
            claims.c.item_id == item_id,
        )
        .correlate(runs, attempts, executions)
        .scalar_subquery()
    )


def _lets(kind: ItemKind, item_id: ColumnElement[str], *free: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether an item has no row, or one that is free by one of these.

    Asked as "is not null", which PostgreSQL expects to hold for nearly all: it shall stop at the page's end.
    """
    return func.nullif(func.coalesce(_row(kind, item_id, case((or_(*free), _YES), else_=_NO)), _YES), _NO).is_not(None)


def _attempts(dialect: str, where: ColumnElement[bool]) -> Select[Any]:
    waits = claims.c.next_claim_at_ms
    item_id = executions.c.attempt_id
    return (
        select(item_id, executions.c.recover_at_ms, _row(ItemKind.ATTEMPT, item_id, claims.c.version))
        .join_from(executions, runs, runs.c.run_id == executions.c.run_id)
        .outerjoin(attempts, attempts.c.attempt_id == item_id)
        .where(
            executions.c.executor_type == bindparam("executor_type"),
            executions.c.scope == bindparam("scope"),
            executions.c.recover_at_ms.is_not(None),
            where,
            executions.c.closed_at_ms.is_(None),
            # As the claim asks, too: what it would pass over may not fill the page.
            _IS_ACTIVE,
            _OURS,
            _over(
                dialect,
                executions.c.lease_expires_at_ms,
                executions.c.lease_boot_id,
                executions.c.lease_expires_boot_ms,
                _LEASE_BOUND_MS,
            ),
            _lets(
                ItemKind.ATTEMPT,
                item_id,
                among(claims.c.state, [ClaimState.RESOLVED, ClaimState.AVAILABLE]),
                and_(among(claims.c.state, [ClaimState.CLAIMED]), _claim_over(dialect)),
                and_(
                    among(claims.c.state, [ClaimState.RETRY]),
                    or_(waits <= _number("now_ms"), waits > _number("now_ms") + NOT_DUE_MAX_MS),
                ),
                _NOT_SO_ANY_MORE,
            ),
        )
        .order_by(executions.c.recover_at_ms, item_id)
        .limit(_number("limit"))
    )


def _rows(dialect: str, where: ColumnElement[bool]) -> Select[Any]:
    return (
        select(claims.c.item_id, claims.c.due_at_ms, claims.c.version)
        .where(
            claims.c.purpose == bindparam("purpose"),
            claims.c.executor_type == bindparam("executor_type"),
            claims.c.scope == bindparam("scope"),
            claims.c.due_at_ms.is_not(None),
            where,
            or_(among(claims.c.state, [ClaimState.AVAILABLE, ClaimState.RETRY]), _claim_over(dialect)),
        )
        .order_by(claims.c.due_at_ms, claims.c.item_id)
        .limit(_number("limit"))
    )


def _runs(at: ColumnElement[int], *where: ColumnElement[bool]) -> Select[Any]:
    item_id = runs.c.run_id
    return (
        select(item_id, at, _row(ItemKind.RUN, item_id, claims.c.version))
        .outerjoin_from(runs, attempts, and_(attempts.c.run_id == item_id, attempts.c.number == runs.c.attempt_count))
        .outerjoin(executions, executions.c.attempt_id == attempts.c.attempt_id)
        .where(
            *where,
            tuple_(at, item_id) > tuple_(_number("after_ms"), bindparam("after_id", type_=Text)),
            at <= _number("until_ms"),
            _OURS,
            # What has a row that is due, is held or backs off is found by that (R11.2).
            _lets(ItemKind.RUN, item_id, among(claims.c.state, [ClaimState.RESOLVED]), _NOT_SO_ANY_MORE),
        )
        .order_by(at, item_id)
        .limit(_number("limit"))
    )


def _ownerless(dialect: str) -> tuple[ColumnElement[bool], ...]:
    status = run_has_attempt(runs.c.status)
    if dialect == SQLITE:
        # Without statistics SQLite would rather look up each status, and sort what it finds.
        status = func.likely(status, type_=NULLTYPE)
    return runs.c.active_attempt_id.is_(None), status


@dataclass(frozen=True, slots=True)
class Query:
    """One way to candidates: to look at them, and to hold them, passing over what somebody else holds."""

    looked: Statement
    held: Statement


def _query(name: str, build: Callable[[str], Select[Any]], of: Any) -> Query:  # noqa: ANN401 - a table
    queries = {dialect: build(dialect) for dialect in (SQLITE, POSTGRESQL)}
    held = {
        dialect: query.with_for_update(of=of, key_share=True, skip_locked=True) for dialect, query in queries.items()
    }
    return Query(Statement(f"select_{name}", queries), Statement(f"lock_{name}", held))


DUE_ATTEMPTS: Final = _query(
    "due_attempts", lambda dialect: _attempts(dialect, executions.c.recover_at_ms <= _number("until_ms")), executions
)
AHEAD_ATTEMPTS: Final = _query(
    "attempts_ahead", lambda dialect: _attempts(dialect, executions.c.recover_at_ms > _number("ahead_ms")), executions
)
DUE_CLAIMS: Final = _query(
    "due_claims", lambda dialect: _rows(dialect, claims.c.due_at_ms <= _number("until_ms")), claims
)
CLAIMS_AHEAD: Final = _query(
    "claims_ahead", lambda dialect: _rows(dialect, claims.c.due_at_ms > _number("ahead_ms")), claims
)
OWNERLESS_RUNS: Final = _query(
    "ownerless_runs", lambda dialect: _runs(runs.c.updated_at_ms, *_ownerless(dialect)), runs
)
STUCK_RUNS: Final = _query(
    "stuck_runs", lambda _: _runs(runs.c.created_at_ms, runs.c.status == constant(RunStatus.CREATED.value)), runs
)
SELECT_UNSERVED_ATTEMPTS: Final = Statement.from_files("select_unserved_attempts")
SELECT_UNSERVED_CLAIMS: Final = Statement.from_files("select_unserved_claims")


@dataclass(frozen=True, slots=True)
class Found:
    """An item in a range, and since when it stands there."""

    item_id: str
    at_ms: int
    version: int | None
    """Its row's; None where it has none yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """One range of an index."""

    kind: ItemKind
    query: Query
    parameters: Mapping[str, Any]
    where: tuple[str, str]
    """Executor type and scope."""
    foreign: bool = False

    def look(self, reading: Reading, limit: int) -> list[Found]:
        """Read its beginning."""
        return [Found(*row) for row in reading.rows(self.query.looked, {**self.parameters, "limit": limit})]

    def hold(self, reading: Reading, limit: int) -> list[Found]:
        """Read its beginning and hold what nobody else holds."""
        return [Found(*row) for row in reading.rows(self.query.held, {**self.parameters, "limit": limit})]


def own_ranges(
    purpose: Purpose,
    served: frozenset[tuple[str, str]],
    moments: Moments,
    settings: Settings,
    *,
    until_ms: int | None = None,
    stepped_back: bool = False,
) -> list[Range]:
    """Give the ranges of what a worker serves, as far as it was due at ``until_ms``, or is due now.

    ``stepped_back``: this machine's wall clock is known to have been set back, so that also what seems to be due a
    little later is looked at; its lease says by the boot clock whether it has expired (R5.2).
    """
    at_ms = moments.now_ms if until_ms is None else until_ms
    everything = stepped_back and purpose is Purpose.RECOVERY
    shared = _shared(moments) | {
        "until_ms": at_ms,
        "ahead_ms": moments.now_ms + (0 if everything else _ahead_ms(purpose, settings)),
    }
    if purpose is Purpose.RECOVERY:
        queries = (DUE_ATTEMPTS, AHEAD_ATTEMPTS)
        kind = ItemKind.ATTEMPT
        places = sorted(served)
    else:
        queries = (DUE_CLAIMS, CLAIMS_AHEAD)
        kind = ItemKind.RUN
        # A retry that needs no proof of absence has no scope (R12.1).
        anywhere = {(executor_type, "") for executor_type, _ in served} if purpose is Purpose.RETRY else set()
        places = sorted(served | anywhere)
    return [
        Range(kind, query, shared | {"purpose": purpose.value} | _placed(where), where)
        for where in places
        for query in queries
    ]


def unowned_ranges(moments: Moments, places: Mapping[Query, int], settings: Settings) -> list[Range]:
    """Give the ranges of recovery that any worker serves (R11.1).

    Rows that are due, then Runs that nobody looks after and Runs that were created and never queued, each from its
    place on.
    """
    shared = _shared(moments) | {"ahead_ms": moments.now_ms + _ahead_ms(Purpose.RECOVERY, settings)}
    rows = shared | {"purpose": Purpose.RECOVERY.value, "until_ms": moments.now_ms} | _placed(ANYWHERE)
    found = [Range(ItemKind.RUN, query, rows, ANYWHERE) for query in (DUE_CLAIMS, CLAIMS_AHEAD)]
    for query, until_ms in walks(moments, settings).items():
        walk = shared | {"after_ms": places.get(query, -1), "after_id": "", "until_ms": until_ms}
        found.append(Range(ItemKind.RUN, query, walk, ANYWHERE))
    return found


def walks(moments: Moments, settings: Settings) -> dict[Query, int]:
    """Say how far each walk along Runs goes now."""
    return {OWNERLESS_RUNS: moments.now_ms, STUCK_RUNS: moments.now_ms - settings.stuck_created_ms}


def foreign_ranges(
    reading: Reading, purpose: Purpose, served: frozenset[tuple[str, str]], moments: Moments, settings: Settings
) -> list[Range]:
    """Give the ranges of other scopes that nobody of theirs has come for since ``unserved_after_ms`` (R8.2)."""
    if purpose is Purpose.RECOVERY:
        statement, parameters = SELECT_UNSERVED_ATTEMPTS, {}
    else:
        statement, parameters = SELECT_UNSERVED_CLAIMS, {"purpose": purpose.value}
    until_ms = moments.now_ms - settings.unserved_after_ms
    found: list[Range] = []
    for executor_type in sorted({executor_type for executor_type, _ in served}):
        asked = parameters | {"executor_type": executor_type, "until_ms": until_ms}
        scopes = {(executor_type, row[0]) for row in reading.rows(statement, asked)}
        ranges = own_ranges(purpose, frozenset(scopes - served), moments, settings, until_ms=until_ms)
        found += [
            replace(each, foreign=True)
            for each in ranges
            if each.query in {DUE_ATTEMPTS, DUE_CLAIMS} and each.where in scopes - served
        ]
    return found


def _ahead_ms(purpose: Purpose, settings: Settings) -> int:
    """Say how far ahead nothing stands but what a clock put there that has stepped back since (R5.3)."""
    if purpose is Purpose.RETRY:
        return NOT_DUE_MAX_MS
    if purpose is Purpose.STOP:
        return max(_LEASE_BOUND_MS, settings.stop_report_grace_ms)
    return _LEASE_BOUND_MS


def _shared(moments: Moments) -> dict[str, Any]:
    shared: dict[str, Any] = {"now_ms": moments.now_ms}
    if moments.boot_id is not None:
        shared |= {"boot_id": moments.boot_id, "boot_ms": moments.boot_ms}
    return shared


def _placed(where: tuple[str, str]) -> dict[str, str]:
    return {"executor_type": where[0], "scope": where[1]}

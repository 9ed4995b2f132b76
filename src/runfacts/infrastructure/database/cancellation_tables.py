"""
The table of cancellation dispatches: claims, never facts (R1.2, R7.1).

Each status has one shape, and the database checks it: who holds a lease, when the next try is due, what came of the
last one. ``due_at_ms`` is when somebody should look at the row next: its creation, its next attempt or its lease's
expiry; null when there is nothing left to do.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ForeignKey, Index, Table, and_, func, or_

from runfacts.domain.cancellation.results import (
    BLOCKED,
    DELIVERED,
    FINISHED_DISPATCH,
    DispatchResult,
    DispatchStatus,
)
from runfacts.domain.texts import KEY_MAX, NAME_MAX
from runfacts.infrastructure.database.columns import (
    among,
    at_least,
    boot_times,
    check,
    exactly_when,
    lengths,
    number,
    optional,
    optional_number,
    or_null,
    required,
    texts,
)
from runfacts.infrastructure.database.dialects import identifier
from runfacts.infrastructure.database.tables import DIGEST_LENGTH, UUID_LENGTH, metadata, runs

cancellation_dispatches: Final = Table(
    "cancellation_dispatches",
    metadata,
    Column("run_id", identifier(), ForeignKey(runs.c.run_id), primary_key=True),
    required("attempt_id"),
    required("executor_type"),
    required("scope"),
    required("status"),
    number("version"),
    number("dispatch_count"),
    number("tries_since_rearm"),
    optional_number("next_attempt_at_ms"),
    optional_number("due_at_ms"),
    optional("lease_owner"),
    optional("lease_token_digest"),
    optional_number("lease_expires_at_ms"),
    optional("lease_boot_id"),
    optional_number("lease_expires_boot_ms"),
    optional("last_result"),
    optional_number("last_dispatched_at_ms"),
    number("created_at_ms"),
    number("updated_at_ms"),
    sqlite_strict=True,
)
"""The dispatch of every Run that was asked to stop while an Attempt was active."""

_c = cancellation_dispatches.c
IS_DUE_SOMETIME: Final = _c.due_at_ms.is_not(None)
"""The condition of the index by which work is found."""
IS_LEASED: Final = among(_c.status, [DispatchStatus.LEASED])
IS_OPEN: Final = and_(among(_c.status, [DispatchStatus.LEASED, DispatchStatus.PENDING]), IS_DUE_SOMETIME)
"""What is being delivered, or will be as soon as somebody looks: few rows, where workers keep up."""
IS_BLOCKED: Final = among(_c.status, [DispatchStatus.BLOCKED])

Index(
    "ix_cancellation_dispatches_due",
    _c.executor_type,
    _c.scope,
    _c.due_at_ms,
    _c.run_id,
    sqlite_where=IS_DUE_SOMETIME,
    postgresql_where=IS_DUE_SOMETIME,
)
# The queue of operators (R13.1).
Index(
    "ix_cancellation_dispatches_blocked",
    _c.updated_at_ms,
    _c.run_id,
    sqlite_where=IS_BLOCKED,
    postgresql_where=IS_BLOCKED,
)
# Which of these a clock that stepped back has freed is decided row by row (R5.2, R5.3).
Index(
    "ix_cancellation_dispatches_open",
    _c.executor_type,
    _c.scope,
    _c.due_at_ms,
    _c.run_id,
    sqlite_where=IS_OPEN,
    postgresql_where=IS_OPEN,
)

lengths(cancellation_dispatches, UUID_LENGTH, "run_id", "attempt_id", "lease_boot_id")
lengths(cancellation_dispatches, DIGEST_LENGTH, "lease_token_digest")
texts(cancellation_dispatches, executor_type=NAME_MAX, lease_owner=NAME_MAX)
at_least(
    cancellation_dispatches,
    0,
    "version",
    "dispatch_count",
    "tries_since_rearm",
    "next_attempt_at_ms",
    "due_at_ms",
    "lease_expires_at_ms",
    "lease_expires_boot_ms",
    "last_dispatched_at_ms",
    "created_at_ms",
)
check(
    cancellation_dispatches,
    scope=_c.scope.is_not(None) & (func.length(_c.scope) <= KEY_MAX),
    status=among(_c.status, DispatchStatus),
    last_result=or_null(_c.last_result, among(_c.last_result, DispatchResult)),
    # Who holds it, exactly while it is leased.
    lease_held=exactly_when(IS_LEASED, _c.lease_owner),
    lease_token=exactly_when(IS_LEASED, _c.lease_token_digest),
    lease_expiry=exactly_when(IS_LEASED, _c.lease_expires_at_ms),
    # One that was abandoned before anybody claimed it may have been rearmed since (R13.2).
    lease_count=or_(
        _c.dispatch_count >= 1,
        among(_c.status, [DispatchStatus.PENDING, DispatchStatus.BLOCKED, DispatchStatus.RETRY_WAIT]),
    ),
    next_attempt=exactly_when(among(_c.status, [DispatchStatus.RETRY_WAIT]), _c.next_attempt_at_ms),
    # Finished rows are never looked at again; a row of an ended Run neither, whatever its status (R7.6).
    due=or_(_c.due_at_ms.is_(None), among(_c.status, sorted(set(DispatchStatus) - FINISHED_DISPATCH))),
    result=or_(
        and_(
            among(_c.status, [DispatchStatus.DISPATCHED]), _c.last_result.is_not(None), among(_c.last_result, DELIVERED)
        ),
        and_(
            among(_c.status, [DispatchStatus.BLOCKED]),
            _c.last_result.is_not(None),
            among(_c.last_result, BLOCKED),
        ),
        # After a rearm the result that had blocked it stays (R13.2).
        and_(among(_c.status, [DispatchStatus.RETRY_WAIT]), _c.last_result.is_not(None)),
        among(_c.status, [DispatchStatus.PENDING, DispatchStatus.LEASED]),
    ),
    dispatched=or_(_c.last_dispatched_at_ms.is_(None), _c.dispatch_count >= 1),
    counts=_c.tries_since_rearm <= _c.dispatch_count,
    updated=_c.updated_at_ms >= _c.created_at_ms,
)
boot_times(cancellation_dispatches, "boot_lease", "lease_boot_id", "lease_expires_boot_ms", when=IS_LEASED)

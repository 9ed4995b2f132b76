"""
Dispatches: the rows of ``cancellation_dispatches``, read, judged and changed (R7).

Every change names the version that it was decided on, and a settle also owner and token, so that an old term changes
nothing. What a row's times are worth is judged here: by the database's time on PostgreSQL; on SQLite leases by the
boot clock and due times by the wall clock, with R5.3's bounds for a clock that stepped back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, insert, select, update

from runfacts.domain.cancellation.controllers import StopTarget
from runfacts.domain.cancellation.dispatch import NOT_DUE_MAX_MS, CancellationDispatch, Times
from runfacts.domain.cancellation.results import DELIVERED, STATUS_AFTER, DispatchResult, DispatchStatus
from runfacts.domain.leases import is_valid
from runfacts.domain.limits import Settings
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches as table
from runfacts.infrastructure.database.dialects import SQLITE, constant
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions
from runfacts.infrastructure.database.transactions import Change, Reading, Row
from runfacts.infrastructure.stores.executions import LeaseTimes

_NO_LEASE: Final = {
    "lease_owner": None,
    "lease_token_digest": None,
    "lease_expires_at_ms": None,
    "lease_boot_id": None,
    "lease_expires_boot_ms": None,
}
_IS_KEY = table.c.run_id == bindparam("key_run_id")
_IS_VERSION = table.c.version == bindparam("expected_version")
_LIVE = table.c.due_at_ms.is_not(None)
_NAMES: Final = tuple(column.name for column in table.c)
_RUN_ID: Final = _NAMES.index("run_id")

SELECT_DISPATCH: Final = Statement("select_dispatch", select(*table.c).where(table.c.run_id == bindparam("run_id")))
INSERT_DISPATCH: Final = Statement(
    "insert_dispatch", insert(table).values({c.name: bindparam(c.name) for c in table.c})
)
_CLAIMED: Final = (
    "version",
    "dispatch_count",
    "tries_since_rearm",
    "due_at_ms",
    "lease_owner",
    "lease_token_digest",
    "lease_expires_at_ms",
    "lease_boot_id",
    "lease_expires_boot_ms",
    "updated_at_ms",
)
CLAIM_DISPATCH: Final = Statement(
    "claim_dispatch",
    update(table)
    .values({"status": DispatchStatus.LEASED.value, "next_attempt_at_ms": None} | {n: bindparam(n) for n in _CLAIMED})
    # A Run that ends takes its row's due time away first, so that a claim which waited for that commit finds nothing
    # (R7.6).
    .where(_IS_KEY, _IS_VERSION, _LIVE),
)
SETTLE_DISPATCH: Final = Statement(
    "settle_dispatch",
    update(table)
    .values(
        _NO_LEASE
        | {
            n: bindparam(n)
            for n in (
                "status",
                "version",
                "next_attempt_at_ms",
                "due_at_ms",
                "last_result",
                "last_dispatched_at_ms",
                "updated_at_ms",
            )
        }
    )
    .where(
        _IS_KEY,
        _IS_VERSION,
        # Owner and token too: a holder proves itself, it does not guess a version (R7.4).
        table.c.status == constant(DispatchStatus.LEASED.value),
        table.c.lease_owner == bindparam("key_owner"),
        table.c.lease_token_digest == bindparam("key_token_digest"),
    ),
)
CHANGE_DISPATCH: Final = Statement(
    "change_dispatch",
    update(table)
    .values(
        _NO_LEASE
        | {
            n: bindparam(n)
            for n in (
                "status",
                "version",
                "tries_since_rearm",
                "next_attempt_at_ms",
                "due_at_ms",
                "last_result",
                "updated_at_ms",
            )
        }
    )
    .where(_IS_KEY, _IS_VERSION),
)
END_DISPATCH: Final = Statement("end_dispatch", update(table).values(due_at_ms=None).where(_IS_KEY, _IS_VERSION))
SELECT_TARGET: Final = Statement(
    "select_target",
    select(
        executions.c.executor_type,
        executions.c.scope,
        executions.c.handle,
        executions.c.pid,
        executions.c.lease_expires_at_ms,
    ).where(executions.c.attempt_id == bindparam("attempt_id")),
)

SELECT_TO_CLAIM: Final = Statement(
    "select_dispatch_to_claim",
    select(
        executions.c.executor_type,
        executions.c.scope,
        executions.c.handle,
        executions.c.pid,
        *table.c,
    )
    .join_from(executions, table, table.c.run_id == bindparam("run_id"), isouter=True)
    .where(executions.c.attempt_id == bindparam("attempt_id")),
)
_OF_TARGET: Final = 4
"""How many columns of it are the target's."""


@dataclass(frozen=True, slots=True)
class StoredDispatch:
    """A row, and what its lease is worth by the boot clock (SQLite only)."""

    dispatch: CancellationDispatch
    lease_boot_id: str | None
    lease_expires_boot_ms: int | None

    def times(self, reading: Reading, now_ms: int) -> Times:
        """Judge the row's times (R5.3)."""
        worth = self._worth(reading, now_ms)
        if worth is Times.DUE and self._ahead_of(now_ms):
            # A clock that stepped back, or somebody who wrote this after ``now_ms`` had been read: the longest lease
            # would be beyond its bound then, and must not be taken over.
            return self._worth(reading, reading.now_ms())
        return worth

    def _ahead_of(self, now_ms: int) -> bool:
        row = self.dispatch
        until_ms = row.lease_expires_at_ms if row.status is DispatchStatus.LEASED else row.next_attempt_at_ms
        return until_ms is not None and now_ms < until_ms

    def _worth(self, reading: Reading, now_ms: int) -> Times:
        row = self.dispatch
        if row.status is DispatchStatus.LEASED and row.lease_expires_at_ms is not None:
            _, _, bound_ms = Settings.bounds()["cancel_lease_ms"]
            if reading.dialect == SQLITE:
                valid = (
                    self.lease_boot_id == reading.clock.boot_id()
                    and self.lease_expires_boot_ms is not None
                    and is_valid(reading.clock.boot_ms(), self.lease_expires_boot_ms, bound_ms)
                )
            else:
                valid = is_valid(now_ms, row.lease_expires_at_ms, bound_ms)
            return Times.LEASE_VALID if valid else Times.DUE
        due = row.next_attempt_at_ms
        if due is not None and now_ms < due <= now_ms + NOT_DUE_MAX_MS:
            return Times.NOT_DUE
        return Times.DUE


def read_dispatch(reading: Reading, run_id: str) -> StoredDispatch | None:
    """Give a Run's dispatch; None where there is none."""
    row = reading.row(SELECT_DISPATCH, {"run_id": run_id})
    return None if row is None else stored_dispatch(row)


def stored_dispatch(row: Row) -> StoredDispatch:
    """Make a dispatch of a row that has all of the table's columns, in their order."""
    found = dict(zip(_NAMES, row, strict=True))
    boot_id, boot_ms = found.pop("lease_boot_id"), found.pop("lease_expires_boot_ms")
    found["status"] = DispatchStatus(found["status"])
    found["last_result"] = None if found["last_result"] is None else DispatchResult(found["last_result"])
    return StoredDispatch(CancellationDispatch(**found), boot_id, boot_ms)


def read_target(reading: Reading, run_id: str, attempt_id: str) -> StopTarget | None:
    """Give what is to be stopped; None where the Attempt has no execution."""
    found = read_target_and_lease(reading, run_id, attempt_id)
    return None if found is None else found[0]


def read_target_and_lease(reading: Reading, run_id: str, attempt_id: str) -> tuple[StopTarget, int] | None:
    """Give what is to be stopped, and when its execution lease expires by the wall clock."""
    row = reading.row(SELECT_TARGET, {"attempt_id": attempt_id})
    return None if row is None else (StopTarget(run_id, attempt_id, row[0], row[1], row[2], row[3]), row[4])


def read_to_claim(reading: Reading, run_id: str, attempt_id: str) -> tuple[StopTarget, StoredDispatch | None] | None:
    """Give what is to be stopped and the Run's dispatch, read at once; None where the Attempt has no execution."""
    row = reading.row(SELECT_TO_CLAIM, {"run_id": run_id, "attempt_id": attempt_id})
    if row is None:
        return None
    dispatch = row[_OF_TARGET:]
    found = None if dispatch[_RUN_ID] is None else stored_dispatch(dispatch)
    return StopTarget(run_id, attempt_id, *row[:_OF_TARGET]), found


def pending(target: StopTarget, now_ms: int) -> Change:
    """Create a Run's row (R7.1)."""
    return Change(INSERT_DISPATCH, _first(target, now_ms))


def claimed_anew(target: StopTarget, owner: str, token_digest: str, lease: LeaseTimes, now_ms: int) -> Change:
    """Create a Run's row in its first term: what a claim does that finds none (R7.2)."""
    return Change(
        INSERT_DISPATCH,
        _first(target, now_ms)
        | {
            "status": DispatchStatus.LEASED.value,
            "version": 1,
            "dispatch_count": 1,
            "tries_since_rearm": 1,
            "due_at_ms": lease.expires_at_ms,
        }
        | _held(owner, token_digest, lease),
    )


def claimed(row: CancellationDispatch, owner: str, token_digest: str, lease: LeaseTimes, now_ms: int) -> Change:
    """Begin the next term of a row (R7.2)."""
    return Change(
        CLAIM_DISPATCH,
        {
            "key_run_id": row.run_id,
            "expected_version": row.version,
            "version": row.version + 1,
            "dispatch_count": row.dispatch_count + 1,
            "tries_since_rearm": row.tries_since_rearm + 1,
            "due_at_ms": lease.expires_at_ms,
            "updated_at_ms": max(now_ms, row.created_at_ms),
        }
        | _held(owner, token_digest, lease),
    )


def settled(
    row: CancellationDispatch, token_digest: str, result: DispatchResult, next_attempt_at_ms: int | None, now_ms: int
) -> Change:
    """End exactly this term with its result (R7.4)."""
    status = STATUS_AFTER[result]
    return Change(
        SETTLE_DISPATCH,
        {
            "key_run_id": row.run_id,
            "expected_version": row.version,
            "key_owner": row.lease_owner,
            "key_token_digest": token_digest,
            "status": status.value,
            "version": row.version + 1,
            "next_attempt_at_ms": next_attempt_at_ms,
            # What has no due time any more is of an ended Run and stays out of the queues (R7.6).
            "due_at_ms": None if row.due_at_ms is None else next_attempt_at_ms,
            "last_result": result.value,
            "last_dispatched_at_ms": now_ms if result in DELIVERED else row.last_dispatched_at_ms,
            "updated_at_ms": max(now_ms, row.created_at_ms),
        },
    )


def changed(
    row: CancellationDispatch,
    status: DispatchStatus,
    result: DispatchResult | None,
    now_ms: int,
    *,
    tries: int,
    next_attempt_at_ms: int | None = None,
) -> Change:
    """Move a row that nobody holds: used up, rearmed or abandoned (R7.5, R13.2)."""
    return Change(
        CHANGE_DISPATCH,
        {
            "key_run_id": row.run_id,
            "expected_version": row.version,
            "status": status.value,
            "version": row.version + 1,
            "tries_since_rearm": tries,
            "next_attempt_at_ms": next_attempt_at_ms,
            "due_at_ms": next_attempt_at_ms,
            "last_result": None if result is None else result.value,
            "updated_at_ms": max(now_ms, row.created_at_ms),
        },
    )


def abandoned_anew(target: StopTarget, now_ms: int) -> Change:
    """Create a Run's row in the status of an abandoned one: nobody shall begin to deliver (R13.2)."""
    return Change(
        INSERT_DISPATCH,
        _first(target, now_ms)
        | {
            "status": DispatchStatus.BLOCKED.value,
            "version": 1,
            "due_at_ms": None,
            "last_result": DispatchResult.ABANDONED.value,
        },
    )


def ended(row: CancellationDispatch) -> Change:
    """Take a row out of all queues, because its Run ends (R7.6). The holder of a term may still settle it."""
    return Change(END_DISPATCH, {"key_run_id": row.run_id, "expected_version": row.version})


def _first(target: StopTarget, now_ms: int) -> dict[str, str | int | None]:
    return _NO_LEASE | {
        "run_id": target.run_id,
        "attempt_id": target.attempt_id,
        "executor_type": target.executor_type,
        "scope": target.scope,
        "status": DispatchStatus.PENDING.value,
        "version": 0,
        "dispatch_count": 0,
        "tries_since_rearm": 0,
        "next_attempt_at_ms": None,
        "due_at_ms": now_ms,
        "last_result": None,
        "last_dispatched_at_ms": None,
        "created_at_ms": now_ms,
        "updated_at_ms": now_ms,
    }


def _held(owner: str, token_digest: str, lease: LeaseTimes) -> dict[str, str | int | None]:
    return {
        "lease_owner": owner,
        "lease_token_digest": token_digest,
        "lease_expires_at_ms": lease.expires_at_ms,
        "lease_boot_id": lease.boot_id,
        "lease_expires_boot_ms": lease.expires_boot_ms,
    }

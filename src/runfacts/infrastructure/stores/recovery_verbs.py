"""
What operators' verbs read and change of recovery's rows (R13.2).

Every change names the version that it was decided on. A loss that stands on an operator's word also names the lease's
end that was judged: a worker that came back meanwhile has renewed it, and is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, case, insert, null, select, update

from runfacts.domain.cancellation.controllers import StopTarget
from runfacts.domain.leases import is_valid
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.claims import ClaimState, ItemKind, Purpose, RecoveryKey
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.recovery_tables import IS_MANUAL
from runfacts.infrastructure.database.recovery_tables import recovery_claims as table
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions
from runfacts.infrastructure.database.transactions import Change, Reading
from runfacts.infrastructure.stores.recovery_rows import NO_TERM

_IS_ROW: Final = (
    table.c.purpose == bindparam("key_purpose"),
    table.c.kind == bindparam("key_kind"),
    table.c.item_id == bindparam("key_item_id"),
    table.c.version == bindparam("expected_version"),
)
_NOT_HELD: Final = {
    **NO_TERM,
    "next_claim_at_ms": None,
    "reason": None,
    "seen": None,
    "delays": 0,
    "failures": 0,
}
_IS_EXECUTION: Final = executions.c.attempt_id == bindparam("key_attempt_id")

SELECT_ROW: Final = Statement(
    "select_recovery_row",
    select(
        table.c.attempt_id,
        table.c.state,
        table.c.version,
        table.c.claim_expires_at_ms,
        table.c.claim_boot_id,
        table.c.claim_expires_boot_ms,
        table.c.created_at_ms,
    ).where(
        table.c.purpose == bindparam("purpose"),
        table.c.kind == bindparam("kind"),
        table.c.item_id == bindparam("item_id"),
    ),
)
SELECT_RECOVER_AT: Final = Statement(
    "select_recover_at", select(executions.c.recover_at_ms).where(executions.c.attempt_id == bindparam("attempt_id"))
)
RELEASE_ROW: Final = Statement(
    "release_recovery",
    update(table)
    .values(
        _NOT_HELD
        | {"state": ClaimState.AVAILABLE.value}
        | {name: bindparam(name) for name in ("version", "due_at_ms", "updated_at_ms")}
    )
    .where(*_IS_ROW, IS_MANUAL),
)
RESOLVE_ROW: Final = Statement(
    "resolve_attested_recovery",
    update(table)
    .values(
        _NOT_HELD
        | {"state": ClaimState.RESOLVED.value, "due_at_ms": None}
        | {name: bindparam(name) for name in ("version", "updated_at_ms")}
    )
    .where(*_IS_ROW),
)
INSERT_RESOLVED: Final = Statement(
    "insert_attested_recovery", insert(table).values({c.name: bindparam(c.name) for c in table.c})
)
RECOVER_NOW: Final = Statement(
    "recover_execution_now",
    update(executions)
    .values(recover_at_ms=case((executions.c.closed_at_ms.is_(None), bindparam("recover_at_ms")), else_=null()))
    .where(_IS_EXECUTION),
)
CLOSE_EXPIRED: Final = Statement(
    "close_expired_execution",
    update(executions)
    .values(recover_at_ms=None, closed_at_ms=bindparam("closed_at_ms"))
    .where(
        _IS_EXECUTION,
        executions.c.closed_at_ms.is_(None),
        executions.c.lease_expires_at_ms == bindparam("expected_lease_expires_at_ms"),
    ),
)


@dataclass(frozen=True, slots=True)
class StoredRecovery:
    """What a verb must know of a row."""

    item: RecoveryKey
    attempt_id: str | None
    state: ClaimState
    version: int
    claim_expires_at_ms: int | None
    claim_boot_id: str | None
    claim_expires_boot_ms: int | None
    created_at_ms: int

    def held(self, reading: Reading, now_ms: int) -> bool:
        """Tell whether a worker holds a valid claim (R5.3)."""
        if self.state is not ClaimState.CLAIMED or self.claim_expires_at_ms is None:
            return False
        _, _, bound_ms = Settings.bounds()["recovery_lease_ms"]
        if reading.dialect != SQLITE:
            return is_valid(now_ms, self.claim_expires_at_ms, bound_ms)
        return (
            self.claim_boot_id == reading.clock.boot_id()
            and self.claim_expires_boot_ms is not None
            and is_valid(reading.clock.boot_ms(), self.claim_expires_boot_ms, bound_ms)
        )


def read_row(reading: Reading, item: RecoveryKey) -> StoredRecovery | None:
    """Give the row of an item; None where there is none."""
    key = {"purpose": item.purpose.value, "kind": item.kind.value, "item_id": item.item_id}
    row = reading.row(SELECT_ROW, key)
    return None if row is None else StoredRecovery(item, row[0], ClaimState(row[1]), *row[2:])


def read_recover_at(reading: Reading, attempt_id: str) -> int | None:
    """Give when somebody should look at an Attempt, where that is set."""
    row = reading.row(SELECT_RECOVER_AT, {"attempt_id": attempt_id})
    return None if row is None else row[0]


def released(row: StoredRecovery, now_ms: int) -> tuple[Change, ...]:
    """Let workers look at once, with all counters at nothing; of an Attempt its execution is due too."""
    change = Change(RELEASE_ROW, _moved(row, now_ms) | {"due_at_ms": now_ms})
    if row.item.kind is not ItemKind.ATTEMPT:
        return (change,)
    return change, Change(RECOVER_NOW, {"key_attempt_id": row.item.item_id, "recover_at_ms": now_ms})


def resolved(row: StoredRecovery, now_ms: int) -> Change:
    """End a row, whoever holds it."""
    return Change(RESOLVE_ROW, _moved(row, now_ms))


def resolved_anew(target: StopTarget, now_ms: int) -> Change:
    """Create the ended row of an Attempt's recovery that nobody began with: who is about to claim it comes too late."""
    return Change(
        INSERT_RESOLVED,
        _NOT_HELD
        | {
            "purpose": Purpose.RECOVERY.value,
            "kind": ItemKind.ATTEMPT.value,
            "item_id": target.attempt_id,
            "run_id": target.run_id,
            "attempt_id": target.attempt_id,
            "executor_type": target.executor_type,
            "scope": target.scope,
            "state": ClaimState.RESOLVED.value,
            "version": 1,
            "due_at_ms": None,
            "created_at_ms": now_ms,
            "updated_at_ms": now_ms,
        },
    )


def closed(attempt_id: str, lease_expires_at_ms: int, now_ms: int) -> Change:
    """End an execution whose lease has expired, unless it was renewed since."""
    return Change(
        CLOSE_EXPIRED,
        {
            "key_attempt_id": attempt_id,
            "expected_lease_expires_at_ms": lease_expires_at_ms,
            "closed_at_ms": now_ms,
        },
    )


def _moved(row: StoredRecovery, now_ms: int) -> dict[str, str | int | None]:
    return {
        "key_purpose": row.item.purpose.value,
        "key_kind": row.item.kind.value,
        "key_item_id": row.item.item_id,
        "expected_version": row.version,
        "version": row.version + 1,
        "updated_at_ms": max(now_ms, row.created_at_ms),
    }

"""
Executions: who executes an Attempt, until when, and what its reports have said so far (R1.2).

These rows are claims, not facts: they expire and are never rebuilt. Every update names what it was decided on, the
token's digest or the callback's sequence, so that an old holder changes nothing.

An execution is open until its Attempt ends (``closed_at_ms``). Meanwhile recovery looks at it when its lease has
expired (``recover_at_ms``), unless somebody asked the Run to stop: then the stop confirmation does (R12.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import and_, bindparam, insert, select, update

from runfacts.domain.leases import is_valid
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.claims import ClaimState, ItemKind, Purpose
from runfacts.infrastructure.database.dialects import SQLITE, constant
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, executions, runs
from runfacts.infrastructure.database.transactions import Reading

_IS_KEY = executions.c.attempt_id == bindparam("key_attempt_id")
_HAS_TOKEN = executions.c.lease_token_digest == bindparam("key_lease_token_digest")
_IS_NEXT = executions.c.callback_sequence == bindparam("expected_sequence")
_IS_OPEN = executions.c.closed_at_ms.is_(None)
_CLOSED: Final[dict[str, Any]] = {"closed_at_ms": bindparam("closed_at_ms"), "recover_at_ms": None}

INSERT_EXECUTION: Final = Statement(
    "insert_execution", insert(executions).values({c.name: bindparam(c.name) for c in executions.c})
)
START_EXECUTION: Final = Statement(
    "start_execution",
    update(executions)
    .values({name: bindparam(name) for name in ("deadline_at_ms", "log_path", "receipt_path")})
    .where(_IS_KEY, _HAS_TOKEN),
)
STOP_EXECUTION: Final = Statement("stop_execution", update(executions).values(_CLOSED).where(_IS_KEY, _HAS_TOKEN))
STORE_HANDLE: Final = Statement(
    "store_handle",
    update(executions)
    .values({name: bindparam(name) for name in ("handle", "pid", "callback_sequence", "seen_at_ms")})
    .where(_IS_KEY, _IS_NEXT),
)
COUNT_CALLBACK: Final = Statement(
    "count_callback",
    update(executions).values(callback_sequence=bindparam("callback_sequence")).where(_IS_KEY, _IS_NEXT),
)
END_EXECUTION: Final = Statement(
    "end_execution",
    update(executions).values({"callback_sequence": bindparam("callback_sequence")} | _CLOSED).where(_IS_KEY, _IS_NEXT),
)
CLOSE_EXECUTION: Final = Statement("close_execution", update(executions).values(_CLOSED).where(_IS_KEY))
LEAVE_TO_STOP: Final = Statement(
    # From the request on, recovery has nothing to do with it (R12.2).
    "leave_execution_to_stop",
    update(executions).values(recover_at_ms=None).where(_IS_KEY, _IS_OPEN),
)
RENEW_EXECUTION: Final = Statement(
    "renew_execution",
    update(executions)
    .values(
        {
            name: bindparam(name)
            for name in (
                "lease_expires_at_ms",
                "lease_boot_id",
                "lease_expires_boot_ms",
                "recover_at_ms",
                "seen_at_ms",
            )
        }
    )
    .where(
        _IS_KEY,
        _HAS_TOKEN,
        # Ending an Attempt closes its execution, a claim of recovery and a request to stop move recover_at_ms: a
        # renewal that waited for one of these commits finds nothing to renew, and is decided again (R10.3).
        _IS_OPEN,
        executions.c.recover_at_ms.is_not_distinct_from(bindparam("expected_recover_at_ms")),
    ),
)
SELECT_HOLDING: Final = Statement(
    "select_holding",
    select(
        executions.c.run_id,
        executions.c.lease_token_digest,
        attempts.c.status,
        runs.c.status,
        runs.c.intent_kind,
        runs.c.execution_owner,
        executions.c.recover_at_ms,
        recovery_claims.c.state,
        recovery_claims.c.version,
        recovery_claims.c.claim_expires_at_ms,
        recovery_claims.c.claim_boot_id,
        recovery_claims.c.claim_expires_boot_ms,
    )
    .join_from(executions, attempts, attempts.c.attempt_id == executions.c.attempt_id)
    .join(runs, runs.c.run_id == executions.c.run_id)
    .join(
        recovery_claims,
        and_(
            recovery_claims.c.purpose == constant(Purpose.RECOVERY.value),
            recovery_claims.c.kind == constant(ItemKind.ATTEMPT.value),
            recovery_claims.c.item_id == executions.c.attempt_id,
        ),
        isouter=True,
    )
    .where(executions.c.attempt_id == bindparam("attempt_id")),
)


@dataclass(frozen=True, slots=True)
class Execution:
    """What a command must know of an execution before it decides."""

    run_id: str
    lease_token_digest: str
    callback_token_digest: str
    callback_sequence: int
    gated: bool


@dataclass(frozen=True, slots=True)
class Holding:
    """What a renewal must know (R10.3)."""

    run_id: str
    lease_token_digest: str
    attempt_status: str
    run_status: str
    intent_kind: str | None
    execution_owner: str
    recover_at_ms: int | None
    recovery_state: str | None
    """Of the recovery of this Attempt; None where nobody has begun with one."""
    recovery_version: int | None
    recovery_expires_at_ms: int | None
    recovery_boot_id: str | None
    recovery_expires_boot_ms: int | None

    def recovering(self, reading: Reading, now_ms: int) -> bool:
        """Whether somebody holds a valid claim to find out what became of the Attempt (R10.3, R5.3)."""
        if self.recovery_state != ClaimState.CLAIMED or self.recovery_expires_at_ms is None:
            return False
        _, _, bound_ms = Settings.bounds()["recovery_lease_ms"]
        if reading.dialect != SQLITE:
            return is_valid(now_ms, self.recovery_expires_at_ms, bound_ms)
        return (
            self.recovery_boot_id == reading.clock.boot_id()
            and self.recovery_expires_boot_ms is not None
            and is_valid(reading.clock.boot_ms(), self.recovery_expires_boot_ms, bound_ms)
        )


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """When a lease ends: for people, and on SQLite by the boot clock, which decides (R5.2)."""

    expires_at_ms: int
    boot_id: str | None
    expires_boot_ms: int | None

    def columns(self, now_ms: int, *, asked_to_stop: bool = False) -> dict[str, Any]:
        """Give the columns of an execution's lease that begins now; one whose Run is to stop is not recovered."""
        return {
            "lease_expires_at_ms": self.expires_at_ms,
            "lease_boot_id": self.boot_id,
            "lease_expires_boot_ms": self.expires_boot_ms,
            "recover_at_ms": None if asked_to_stop else self.expires_at_ms,
            "seen_at_ms": now_ms,
        }


def read_holding(transaction: Reading, attempt_id: str) -> Holding | None:
    """Give what a renewal must know of an Attempt; None where there is no such Attempt."""
    row = transaction.row(SELECT_HOLDING, {"attempt_id": attempt_id})
    return None if row is None else Holding(*row)

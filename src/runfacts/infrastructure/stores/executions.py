"""
Executions: who executes an Attempt, until when, and what its reports have said so far (R1.2).

These rows are claims, not facts: they expire and are never rebuilt. Every update names what it was decided on, the
token's digest or the callback's sequence, so that an old holder changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import bindparam, insert, select, update

from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, executions, runs
from runfacts.infrastructure.database.transactions import Reading

_IS_KEY = executions.c.attempt_id == bindparam("key_attempt_id")
_HAS_TOKEN = executions.c.lease_token_digest == bindparam("key_lease_token_digest")
_IS_NEXT = executions.c.callback_sequence == bindparam("expected_sequence")

INSERT_EXECUTION: Final = Statement(
    "insert_execution", insert(executions).values({c.name: bindparam(c.name) for c in executions.c})
)
START_EXECUTION: Final = Statement(
    "start_execution",
    update(executions)
    .values({name: bindparam(name) for name in ("deadline_at_ms", "log_path", "receipt_path")})
    .where(_IS_KEY, _HAS_TOKEN),
)
STOP_EXECUTION: Final = Statement(
    "stop_execution", update(executions).values(recover_at_ms=None).where(_IS_KEY, _HAS_TOKEN)
)
STORE_HANDLE: Final = Statement(
    "store_handle",
    update(executions)
    .values({name: bindparam(name) for name in ("handle", "pid", "callback_sequence")})
    .where(_IS_KEY, _IS_NEXT),
)
COUNT_CALLBACK: Final = Statement(
    "count_callback",
    update(executions).values(callback_sequence=bindparam("callback_sequence")).where(_IS_KEY, _IS_NEXT),
)
END_EXECUTION: Final = Statement(
    "end_execution",
    update(executions)
    .values(callback_sequence=bindparam("callback_sequence"), recover_at_ms=None)
    .where(_IS_KEY, _IS_NEXT),
)
CLOSE_EXECUTION: Final = Statement("close_execution", update(executions).values(recover_at_ms=None).where(_IS_KEY))
RENEW_EXECUTION: Final = Statement(
    "renew_execution",
    update(executions)
    .values(
        {
            name: bindparam(name)
            for name in ("lease_expires_at_ms", "lease_boot_id", "lease_expires_boot_ms", "recover_at_ms")
        }
    )
    # Ending an Attempt empties recover_at_ms, so that a renewal which waited for that commit finds nothing to renew
    # (R10.3).
    .where(_IS_KEY, _HAS_TOKEN, executions.c.recover_at_ms.is_not(None)),
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
    )
    .join_from(executions, attempts, attempts.c.attempt_id == executions.c.attempt_id)
    .join(runs, runs.c.run_id == executions.c.run_id)
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


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """When a lease ends: for people, and on SQLite by the boot clock, which decides (R5.2)."""

    expires_at_ms: int
    boot_id: str | None
    expires_boot_ms: int | None

    def columns(self) -> dict[str, Any]:
        """Give the columns of an execution's lease."""
        return {
            "lease_expires_at_ms": self.expires_at_ms,
            "lease_boot_id": self.boot_id,
            "lease_expires_boot_ms": self.expires_boot_ms,
            "recover_at_ms": self.expires_at_ms,
        }


def read_holding(transaction: Reading, attempt_id: str) -> Holding | None:
    """Give what a renewal must know of an Attempt; None where there is no such Attempt."""
    row = transaction.row(SELECT_HOLDING, {"attempt_id": attempt_id})
    return None if row is None else Holding(*row)

"""
The rows of a Run that comes in whole: its state, its Attempts with their executions, its facts (R14.2).

Nobody here executed its Attempts: their executions have no scope, no lease that could be valid, tokens that nobody was
given, and nothing that recovery would look at. Where a later release wrote facts, what they did is not known; an
Attempt that has such facts gets no row, for nothing may be claimed of it, and is still read from its facts (R3.7).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

from sqlalchemy import bindparam, insert

from runfacts.domain.attempt import Attempt
from runfacts.domain.history import History
from runfacts.domain.leases import TokenPurpose, digest
from runfacts.domain.lifecycle import RUN_WITH_ATTEMPT
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts
from runfacts.infrastructure.database.transactions import Transaction
from runfacts.infrastructure.stores.arriving import Row
from runfacts.infrastructure.stores.executions import INSERT_EXECUTION
from runfacts.infrastructure.stores.facts import FACT_COLUMNS
from runfacts.infrastructure.stores.state import attempt_row, run_row
from runfacts.infrastructure.stores.writes import INSERT_ATTEMPT, INSERT_RUN
from runfacts.infrastructure.tokens import new_token

HANDLE: Final = "imported"
"""Stands for the handle of a process that another system had."""
_NO_BOOT: Final = "00000000-0000-0000-0000-000000000000"

INSERT_FACTS: Final = Statement(
    "insert_imported_facts",
    insert(facts).values({column.name: bindparam(column.name) for column in FACT_COLUMNS if column.name != "position"}),
)


def insert_run(
    transaction: Transaction, history: History, uncertain: Collection[str], batches: Iterator[list[Row]]
) -> None:
    """Insert a Run that is not there, in the order in which a command would lock its rows (``LostRace``)."""
    row = run_row(history)
    if uncertain and history.run.status not in RUN_WITH_ATTEMPT:
        row["active_attempt_id"] = None
    transaction.run(INSERT_RUN, row)
    for attempt in history.attempts.values():
        if attempt.id not in uncertain:
            transaction.run(INSERT_EXECUTION, _execution(transaction, attempt, history.recorded_at_ms))
            transaction.run(INSERT_ATTEMPT, attempt_row(attempt))
    for rows in batches:
        transaction.run_many(INSERT_FACTS, rows)


def _execution(transaction: Transaction, attempt: Attempt, last_ms: int) -> dict[str, Any]:
    sqlite = transaction.dialect == SQLITE
    return {
        "attempt_id": attempt.id,
        "run_id": attempt.run_id,
        "executor_type": attempt.executor_type,
        "gated": int(attempt.gated),
        "scope": "",
        "worker_id": attempt.worker_id,
        "handle": HANDLE if attempt.gated and attempt.running_at_ms is not None else None,
        "pid": None,
        "lease_token_digest": digest(TokenPurpose.LEASE, new_token()),
        "lease_expires_at_ms": attempt.finished_at_ms or last_ms,
        "lease_boot_id": _NO_BOOT if sqlite else None,
        "lease_expires_boot_ms": 0 if sqlite else None,
        "callback_sequence": 0,
        "callback_token_digest": digest(TokenPurpose.CALLBACK, new_token()),
        "deadline_at_ms": attempt.deadline_at_ms,
        "log_path": None,
        "receipt_path": None,
        "recover_at_ms": None,
        "seen_at_ms": None,
        "closed_at_ms": attempt.finished_at_ms,
    }

"""
One command's writes, in the one order that all commands share (R4.1, R4.4).

First the rows of claims and executions that the command concerns, then the Run by compare-and-set, then its Attempts
by compare-and-set, then the facts. Each update must find exactly the row that was decided on; else somebody was
faster, the transaction ends without a trace and the command is decided anew (``LostRace``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import bindparam, insert, update

from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, runs
from runfacts.infrastructure.database.transactions import Transaction
from runfacts.infrastructure.stores.facts import append_facts
from runfacts.infrastructure.stores.state import attempt_row, run_row

# What never changes after the first write of a row.
_RUN_KEYS: Final = frozenset(
    {"run_id", "project", "task", "policy", "idempotency_key", "retry_of_run_id", "deadline_at_ms", "created_at_ms"}
)
_ATTEMPT_KEYS: Final = frozenset({"attempt_id", "run_id", "number", "executor_type", "worker_id", "claimed_at_ms"})

INSERT_RUN: Final = Statement("insert_run", insert(runs).values({c.name: bindparam(c.name) for c in runs.c}))
UPDATE_RUN: Final = Statement(
    "update_run",
    update(runs)
    .values({c.name: bindparam(c.name) for c in runs.c if c.name not in _RUN_KEYS})
    .where(
        runs.c.run_id == bindparam("key_run_id"),
        # The version is the fence of R4.1; the hash too, or a restored database could take a fact that belongs to
        # another past.
        runs.c.version == bindparam("expected_version"),
        runs.c.head_hash == bindparam("expected_hash"),
    ),
)
INSERT_ATTEMPT: Final = Statement(
    "insert_attempt", insert(attempts).values({c.name: bindparam(c.name) for c in attempts.c})
)
UPDATE_ATTEMPT: Final = Statement(
    "update_attempt",
    update(attempts)
    .values({c.name: bindparam(c.name) for c in attempts.c if c.name not in _ATTEMPT_KEYS})
    .where(
        attempts.c.attempt_id == bindparam("key_attempt_id"),
        attempts.c.status == bindparam("expected_status"),
    ),
)


@dataclass(frozen=True, slots=True)
class Change:
    """One update or insert of a claim's or an execution's row, which must hit exactly one row."""

    statement: Statement
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Before:
    """What a history was before the command: what the compare-and-sets compare with."""

    version: int
    head_hash: str
    attempts: Mapping[str, str]
    """The Attempts' statuses by id."""

    @classmethod
    def of(cls, history: History) -> Before:
        """Remember a history as it is now."""
        return cls(
            history.version,
            history.head_hash,
            {attempt.id: attempt.status.value for attempt in history.attempts.values()},
        )


def write(
    transaction: Transaction, before: Before, history: History, facts: Sequence[Fact], changes: Sequence[Change]
) -> tuple[Fact, ...]:
    """Write what a command decided.

    ``history`` has taken the ``facts`` in already. Gives the facts with their positions.
    """
    apply_changes(transaction, changes)
    row = run_row(history)
    if before.version == 0:
        transaction.run(INSERT_RUN, row)
    else:
        changed = {name: value for name, value in row.items() if name not in _RUN_KEYS}
        changed["key_run_id"] = history.run_id
        changed["expected_version"] = before.version
        changed["expected_hash"] = before.head_hash
        if transaction.run(UPDATE_RUN, changed) != 1:
            raise LostRace(UPDATE_RUN.name)
    for attempt_id in dict.fromkeys(fact.aggregate_id for fact in facts if fact.of_attempt):
        row = attempt_row(history.attempts[attempt_id])
        if attempt_id not in before.attempts:
            transaction.run(INSERT_ATTEMPT, row)
            continue
        changed = {name: value for name, value in row.items() if name not in _ATTEMPT_KEYS}
        changed["key_attempt_id"] = attempt_id
        changed["expected_status"] = before.attempts[attempt_id]
        if transaction.run(UPDATE_ATTEMPT, changed) != 1:
            raise LostRace(UPDATE_ATTEMPT.name)
    return append_facts(transaction, facts)


def apply_changes(transaction: Transaction, changes: Sequence[Change]) -> None:
    """Write rows of claims and executions; each statement must hit one row (``LostRace``)."""
    for change in changes:
        if transaction.run(change.statement, change.parameters) != 1:
            raise LostRace(change.statement.name)

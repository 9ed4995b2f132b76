"""
One command's writes, in the one order that all commands share (R4.1, R4.4).

First the rows of claims and executions that the command concerns, then the Run by compare-and-set, then its Attempts
by compare-and-set, then the facts. Each update must find exactly the row that was decided on; else somebody was
faster, the transaction ends without a trace and the command is decided anew (``LostRace``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, insert, update

from runfacts.domain.attempt import Attempt
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, runs
from runfacts.infrastructure.database.transactions import Change, Transaction
from runfacts.infrastructure.stores.facts import INSERT_FACT, fact_row
from runfacts.infrastructure.stores.state import (
    ATTEMPT_STATE,
    RUN_STATE,
    attempt_row,
    attempt_state,
    run_row,
    run_state,
)

INSERT_RUN: Final = Statement("insert_run", insert(runs).values({c.name: bindparam(c.name) for c in runs.c}))
UPDATE_RUN: Final = Statement(
    "update_run",
    update(runs)
    .values({name: bindparam(name) for name in RUN_STATE})
    .where(
        runs.c.run_id == bindparam("key_run_id"),
        # The version is the fence of R4.1; the hash too, or a restored database could take a fact that belongs to
        # another past.
        runs.c.version == bindparam("expected_version"),
        runs.c.head_hash == bindparam("expected_hash"),
    ),
)
FENCE_RUN: Final = Statement(
    "fence_run",
    # Changes nothing: it fails where somebody recorded a fact since, and holds the Run until the command's rows are in.
    update(runs)
    .values(version=runs.c.version)
    .where(runs.c.run_id == bindparam("key_run_id"), runs.c.version == bindparam("expected_version")),
)
INSERT_ATTEMPT: Final = Statement(
    "insert_attempt", insert(attempts).values({c.name: bindparam(c.name) for c in attempts.c})
)
UPDATE_ATTEMPT: Final = Statement(
    "update_attempt",
    update(attempts)
    .values({name: bindparam(name) for name in ATTEMPT_STATE})
    .where(
        attempts.c.attempt_id == bindparam("key_attempt_id"),
        attempts.c.status == bindparam("expected_status"),
    ),
)


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
) -> None:
    """Write what a command decided; ``history`` has taken the ``facts`` in already, which learn their positions."""
    all_changes = [*changes, _run_change(before, history)]
    all_changes += [
        _attempt_change(before, history.attempts[attempt_id])
        for attempt_id in dict.fromkeys(fact.aggregate_id for fact in facts if fact.of_attempt)
    ]
    positions = transaction.write(all_changes, INSERT_FACT, [fact_row(fact) for fact in facts])
    for fact, position in zip(facts, positions, strict=True):
        fact.stored_at(position)


def _run_change(before: Before, history: History) -> Change:
    if before.version == 0:
        return Change(INSERT_RUN, run_row(history))
    changed = run_state(history)
    changed["key_run_id"] = history.run_id
    changed["expected_version"] = before.version
    changed["expected_hash"] = before.head_hash
    return Change(UPDATE_RUN, changed)


def _attempt_change(before: Before, attempt: Attempt) -> Change:
    if attempt.id not in before.attempts:
        return Change(INSERT_ATTEMPT, attempt_row(attempt))
    changed = attempt_state(attempt)
    changed["key_attempt_id"] = attempt.id
    changed["expected_status"] = before.attempts[attempt.id]
    return Change(UPDATE_ATTEMPT, changed)


def fence(history: History) -> Change:
    """See that no fact was recorded since the history was read, in a command that records none itself."""
    return Change(FENCE_RUN, {"key_run_id": history.run_id, "expected_version": history.version})

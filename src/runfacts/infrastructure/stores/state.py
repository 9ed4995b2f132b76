"""
The rows of ``runs`` and ``attempts``: computed from a Run's history, and from nothing else (R1.3).

The same functions write the rows and verify them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from runfacts.domain.attempt import Attempt
from runfacts.domain.canonical import canonical_json
from runfacts.domain.history import History

Row = dict[str, str | int | None]


def run_state(history: History) -> Row:
    """Give the columns of ``runs`` that facts change."""
    run = history.run
    active = history.active_attempt
    intent = run.intent
    return {
        "status": run.status.value,
        "version": history.version,
        "head_hash": history.head_hash,
        "execution_owner": run.execution_owner.value,
        "active_attempt_id": None if active is None else active.id,
        "attempt_count": len(history.attempts),
        "intent_at_ms": None if intent is None else intent.requested_at_ms,
        "intent_kind": None if intent is None else intent.kind.value,
        "retry_due_at_ms": run.retry_due_at_ms,
        "attested": int(run.attested),
        "updated_at_ms": history.recorded_at_ms,
        "finished_at_ms": run.finished_at_ms,
    }


def run_row(history: History) -> Row:
    """Give the row of ``runs`` that a history amounts to."""
    run = history.run
    return {
        "run_id": run.id,
        "project": run.project,
        "task": run.task,
        "policy": canonical_json(asdict(run.policy)),
        "idempotency_key": run.idempotency_key,
        "retry_of_run_id": run.retry_of_run_id,
        "deadline_at_ms": run.deadline_at_ms,
        "created_at_ms": run.created_at_ms,
        **run_state(history),
    }


def attempt_state(attempt: Attempt) -> Row:
    """Give the columns of ``attempts`` that facts change."""
    return {
        "status": attempt.status.value,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error_code": attempt.error_code,
        "error_summary": attempt.error_summary,
        "started_at_ms": attempt.started_at_ms,
        "running_at_ms": attempt.running_at_ms,
        "finished_at_ms": attempt.finished_at_ms,
    }


def attempt_row(attempt: Attempt) -> Row:
    """Give the row of ``attempts`` that an Attempt's facts amount to."""
    return {
        "attempt_id": attempt.id,
        "run_id": attempt.run_id,
        "number": attempt.number,
        "executor_type": attempt.executor_type,
        "worker_id": attempt.worker_id,
        "claimed_at_ms": attempt.claimed_at_ms,
        **attempt_state(attempt),
    }


RUN_STATE: Final = (
    "status",
    "version",
    "head_hash",
    "execution_owner",
    "active_attempt_id",
    "attempt_count",
    "intent_at_ms",
    "intent_kind",
    "retry_due_at_ms",
    "attested",
    "updated_at_ms",
    "finished_at_ms",
)
"""The columns that ``run_state`` gives; the others never change after a Run's first fact."""
ATTEMPT_STATE: Final = (
    "status",
    "exit_code",
    "signal",
    "error_code",
    "error_summary",
    "started_at_ms",
    "running_at_ms",
    "finished_at_ms",
)
"""The columns that ``attempt_state`` gives; the others never change after an Attempt's first fact."""

"""Deadlines that have passed, found by partial indexes (R10.4)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Final

from sqlalchemy import bindparam, select, union_all

from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions, runs
from runfacts.infrastructure.database.transactions import Reading

_OF_ATTEMPTS: Final = (
    select(executions.c.run_id, executions.c.deadline_at_ms)
    .join_from(executions, runs, runs.c.run_id == executions.c.run_id)
    .where(
        executions.c.deadline_at_ms.between(bindparam("from_ms"), bindparam("now_ms")),
        executions.c.deadline_at_ms.is_not(None),
        executions.c.closed_at_ms.is_(None),
        runs.c.intent_at_ms.is_(None),
        runs.c.finished_at_ms.is_(None),
        # An archived one may be past its deadline for ever: nobody here may stop it (R2.10).
        runs.c.execution_owner == "runtime",
    )
    .order_by(executions.c.deadline_at_ms)
    .limit(bindparam("limit"))
    .subquery()
)
_OF_RUNS: Final = (
    select(runs.c.run_id, runs.c.deadline_at_ms)
    .where(
        runs.c.deadline_at_ms.between(bindparam("from_ms"), bindparam("now_ms")),
        runs.c.deadline_at_ms.is_not(None),
        runs.c.finished_at_ms.is_(None),
        runs.c.intent_at_ms.is_(None),
        runs.c.execution_owner == "runtime",
    )
    .order_by(runs.c.deadline_at_ms)
    .limit(bindparam("limit"))
    .subquery()
)
SELECT_PASSED: Final = Statement(
    "select_passed_deadlines",
    union_all(_OF_ATTEMPTS.select(), _OF_RUNS.select()).order_by("deadline_at_ms", "run_id"),
)


def read_passed(reading: Reading, limit: int, from_ms: int = 0) -> Mapping[str, int]:
    """Give Runs whose own deadline, or whose Attempt's, has passed and that nobody asked to stop yet, longest first.

    Each with that deadline, and none that had passed before ``from_ms``.
    """
    rows = reading.rows(SELECT_PASSED, {"now_ms": reading.now_ms(), "from_ms": from_ms, "limit": limit})
    passed: dict[str, int] = {}
    for run_id, deadline_at_ms in rows:
        passed.setdefault(run_id, deadline_at_ms)
    return dict(islice(passed.items(), limit))

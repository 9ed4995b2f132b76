"""Whether an Attempt is to stop: what its host looks at over and over, one row by its key (R9.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import bindparam, select

from runfacts.domain.cancellation.dispatch import Times
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions, runs
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.dispatches import stored_dispatch

SELECT_STOP_STATE: Final = Statement(
    "select_stop_state",
    select(
        executions.c.run_id,
        runs.c.finished_at_ms,
        runs.c.intent_at_ms,
        executions.c.deadline_at_ms,
        *cancellation_dispatches.c,
    )
    .join_from(executions, runs, runs.c.run_id == executions.c.run_id)
    .outerjoin(
        cancellation_dispatches,
        (cancellation_dispatches.c.run_id == executions.c.run_id)
        & (cancellation_dispatches.c.attempt_id == executions.c.attempt_id),
    )
    .where(executions.c.attempt_id == bindparam("attempt_id")),
)


@dataclass(frozen=True, slots=True)
class StopState:
    """What is recorded about stopping an Attempt, at one moment of the time that decides (R5.1)."""

    run_id: str
    attempt_id: str
    now_ms: int
    ended: bool
    """Whether the Run has ended."""
    intent_at_ms: int | None
    """When somebody asked it to stop."""
    deadline_at_ms: int | None
    dispatch_due_at_ms: int | None
    """When somebody shall look at the delivery next; None where there is none, or nothing more to deliver."""
    delivery_due: bool
    """Whether the delivery may be claimed now, also where a clock has stepped back since (R5.2, R5.3)."""

    @property
    def deadline_passed(self) -> bool:
        """Whether the time is over and nobody has asked it to stop yet (R10.4)."""
        passed = self.deadline_at_ms is not None and self.deadline_at_ms <= self.now_ms
        return passed and self.intent_at_ms is None and not self.ended


def read_stop_state(reading: Reading, attempt_id: str) -> StopState | None:
    """Read it; None where there is no such Attempt."""
    row = reading.row(SELECT_STOP_STATE, {"attempt_id": attempt_id})
    if row is None:
        return None
    run_id, finished_at_ms, intent_at_ms, deadline_at_ms, *dispatch = row
    now_ms = reading.now_ms()
    # The outer join gives a row of nothing where there is no dispatch.
    stored = None if dispatch[0] is None else stored_dispatch(tuple(dispatch))
    due_at_ms = None if stored is None else stored.dispatch.due_at_ms
    due = stored is not None and due_at_ms is not None and stored.times(reading, now_ms) is Times.DUE
    ended = finished_at_ms is not None
    return StopState(
        run_id, attempt_id, now_ms, ended, intent_at_ms, deadline_at_ms, due_at_ms, delivery_due=due and not ended
    )

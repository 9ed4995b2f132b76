"""
What commands change of claims beside what they record: dispatches, stop and retry rows, executions (R1.2, R4.4).

Each function gives changes in the order in which their rows are locked: dispatch, recovery claim, execution. They are
the first of a command's writes, so a command that ends a Run touches no claim after the Run.
"""

from __future__ import annotations

from runfacts.domain.history import History
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.recovery.claims import Purpose
from runfacts.infrastructure.commands import Moment
from runfacts.infrastructure.database.transactions import Change
from runfacts.infrastructure.stores import dispatches
from runfacts.infrastructure.stores.executions import LEAVE_TO_STOP
from runfacts.infrastructure.stores.recovery_rows import available, place_of, resolved


def to_be_stopped(moment: Moment, history: History, attempt_id: str) -> tuple[Change, ...]:
    """Let the stop of a Run be delivered now, and confirmed when its lease has expired (R7.1, R12.2)."""
    found = dispatches.read_target_and_lease(moment.reading, history.run_id, attempt_id)
    if found is None:
        return ()
    target, expires_at_ms = found
    return (
        dispatches.pending(target, moment.now_ms),
        available(Purpose.STOP, target, max(moment.now_ms, expires_at_ms), moment.now_ms),
        Change(LEAVE_TO_STOP, {"key_attempt_id": attempt_id}),
    )


def end_of_cancellation(moment: Moment, history: History) -> tuple[Change, ...]:
    """Take what delivers and confirms the Run's stop out of the queues, in a command that ends it (R7.6, R12.2).

    Nothing where nobody asked the Run to stop.
    """
    if history.run.intent is None:
        return ()
    stored = dispatches.read_dispatch(moment.reading, history.run_id)
    confirmed = resolved(Purpose.STOP, place_of(history), moment.now_ms)
    return (confirmed,) if stored is None else (dispatches.ended(stored.dispatch), confirmed)


def end_of_retry(moment: Moment, history: History) -> tuple[Change, ...]:
    """Take a Run out of the hands of the retry authority, in a command that moves it on (R12.1); nothing for others."""
    if history.run.status not in {RunStatus.LOST, RunStatus.RETRY_WAIT}:
        return ()
    return (resolved(Purpose.RETRY, place_of(history), moment.now_ms),)


def closing(moment: Moment, history: History) -> dict[str, int]:
    """Say when an execution is closed by what is recorded now: at the time of the fact that ends its Attempt."""
    return {"closed_at_ms": history.at_ms(moment.now_ms)}

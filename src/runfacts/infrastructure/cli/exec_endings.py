"""How a Run that ``exec`` hosted or followed has ended: its exit code, and what is said about it."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Final

from runfacts.domain.answers import Finished, LateCallback, Repeated, StopNotProven
from runfacts.domain.errors import RunfactsError
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.views import RunView
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.failures import EXEC_FAILED
from runfacts.infrastructure.cli.interruption import SIGNALLED, Interruption
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.processes.hosted import (
    Detached,
    Ended,
    HostedOutcome,
    KeeperLost,
    NeverRan,
    NotHosted,
    NotStarted,
)

TIMED_OUT: Final = 124
"""The exit code of a command that was stopped because its time was over."""
CANCELLED: Final = SIGNALLED + signal.SIGTERM
"""The exit code of a cancelled run whose command says nothing else, or 0: it must not look like success."""

_STOPPED: Final = {RunStatus.CANCELLED: "the run was cancelled", RunStatus.TIMED_OUT: "its time was over"}


def exit_code_of(run: RunView) -> int:
    """Give the exit code that stands for a Run that has ended."""
    last = run.attempts[-1] if run.attempts else None
    if run.status is RunStatus.TIMED_OUT:
        return TIMED_OUT
    if last is not None and last.signal is not None:
        return SIGNALLED + last.signal
    if run.status is RunStatus.CANCELLED:
        return (last.exit_code if last is not None else None) or CANCELLED
    if last is None:
        return EXEC_FAILED
    if run.status is RunStatus.SUCCEEDED:
        return last.exit_code or 0
    # A failure without a code of its own, or with 0, must not look like success.
    return last.exit_code or EXEC_FAILED


def status_after(outcome: HostedOutcome) -> RunStatus | None:
    """Give the status that the Run had when hosting an Attempt of it ended; None where that is not known."""
    match outcome:
        case Ended(answer=answer):
            return _status_of(answer)
        case NeverRan(answer=told):
            return None if told is None else _status_of(told)
        case NotStarted(answer=refused):
            return refused.run_status
        case NotHosted(answer=not_claimable):
            return not_claimable.status
        case Detached() | KeeperLost():
            return None


def say_how_it_ended(ledger: Ledger, outcome: HostedOutcome) -> None:
    """Say what has to be said about an end."""
    match outcome:
        case Ended(outcome=ended, answer=answer):
            if ended.error_summary is not None:
                output.say(f"runfacts: {output.visible(ended.error_summary)}")
            if (said := _STOPPED.get(_status_of(answer))) is not None:
                output.say(f"runfacts: {said}")
        case Detached(run_id=run_id):
            output.say(_left_alone(ledger, run_id))
        case NotStarted(answer=refused):
            output.say(f"runfacts: the command was not started: {refused.reason}")
        case NeverRan(detail=detail):
            output.say(f"runfacts: the command never ran: {detail}")
        case KeeperLost(reason=reason):
            output.say(f"runfacts: nobody knows how the command ended: {reason}")
        case NotHosted():
            pass


def exit_code_after(outcome: HostedOutcome, interruption: Interruption) -> int:
    """Give the exit code of a Run whose last Attempt ended so."""
    match outcome:
        case Ended(outcome=ended, answer=answer):
            code = ended.exit_code if ended.signal is None else SIGNALLED + ended.signal
            return _code_of_end(_status_of(answer), EXEC_FAILED if code is None else code)
        case Detached():
            return interruption.exit_code
        case NotStarted(answer=refused):
            return _code_of_end(refused.run_status, EXEC_FAILED)
        case NeverRan(answer=told):
            return EXEC_FAILED if told is None else _code_of_end(_status_of(told), EXEC_FAILED)
        case KeeperLost() | NotHosted():
            return EXEC_FAILED


def _status_of(answer: Finished | Repeated | LateCallback | StopNotProven) -> RunStatus:
    return answer.status if isinstance(answer, Repeated) else answer.run_status


def _code_of_end(status: RunStatus, code: int) -> int:
    """Give the exit code of a command that ended with ``code`` in a Run that has this status now."""
    if status is RunStatus.TIMED_OUT:
        return TIMED_OUT
    if status is RunStatus.CANCELLED and code in {0, EXEC_FAILED}:
        return CANCELLED
    return code


def _left_alone(ledger: Ledger, run_id: str) -> str:
    """Say what becomes of a Run whose host goes."""
    with suppress(RunfactsError):
        if ledger.run(run_id).cancellation is not None:
            return f"run {run_id} is left alone; `runfacts supervise` goes on with stopping it"
    return f"run {run_id} goes on; its outcome is recorded by `runfacts supervise` or the next `runfacts exec`"

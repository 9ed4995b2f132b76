"""Every command of the ledger, each with a Run that was brought to where the command does something."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sqlalchemy import Connection

from runfacts import AttemptClaim, IntentKind, Ledger, Outcome, RetryPolicy
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    Payload,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRunning,
)
from runfacts.testing.given_when_then import given_in
from stages import ANA, WORKER, claimed, created, finished, queued, running, started

Caller: TypeAlias = Connection | None
Act: TypeAlias = Callable[[Ledger, Caller], object]
"""Runs the command on the prepared Run, by a ledger, in its own transaction or the caller's."""

RETRIED = RetryPolicy(max_attempts=2, retry_on_failure=True)
ASKED = RunCancelRequested(kind=IntentKind.USER)
CLAIMED = (
    RunCreated(task="report", policy=RetryPolicy()),
    RunQueued(),
    RunDispatching(number=1),
    AttemptClaimed(number=1, executor_type="batch"),
)
RUNNING = (*CLAIMED, AttemptStarting(), AttemptRunning(), RunRunning())


def create(ledger: Ledger) -> Act:
    """Create a Run with a key that is new each time."""
    key = f"k{len(ledger.runs(limit=500).items)}"
    return lambda by, caller: by.create(actor=ANA, task="report", idempotency_key=key, connection=caller)


def queue(ledger: Ledger) -> Act:
    """Queue a created Run."""
    run_id = created(ledger)
    return lambda by, caller: by.queue(run_id, actor=ANA, dedupe_key="q", connection=caller)


def claim(ledger: Ledger) -> Act:
    """Claim a queued Run."""
    run_id = queued(ledger)
    return lambda by, caller: by.claim(run_id, actor=WORKER, executor_type="batch", connection=caller)


def start(ledger: Ledger) -> Act:
    """Pass the start barrier."""
    held = claimed(ledger)
    return lambda by, caller: by.start(held, actor=WORKER, timeout_ms=5, log_path="/l", connection=caller)


def start_too_late(ledger: Ledger) -> Act:
    """Come to the start barrier after somebody asked to stop."""
    held = _given(ledger, *CLAIMED, ASKED)
    return lambda by, caller: by.start(held, actor=WORKER, connection=caller)


def confirm_running(ledger: Ledger) -> Act:
    """Confirm the process."""
    held = started(ledger)
    return lambda by, caller: by.running(held, actor=WORKER, handle="h", pid=7, connection=caller)


def confirm_too_late(ledger: Ledger) -> Act:
    """Confirm the process after somebody asked to stop."""
    held = _given(ledger, *CLAIMED, AttemptStarting(), ASKED)
    return lambda by, caller: by.running(held, actor=WORKER, handle="h", connection=caller)


def wait_for_approval(ledger: Ledger) -> Act:
    """Wait for an approval."""
    held = running(ledger)
    return lambda by, caller: by.wait_for_approval(held, actor=WORKER, connection=caller)


def go_on(ledger: Ledger) -> Act:
    """Go on after an approval."""
    held = running(ledger)
    ledger.wait_for_approval(held, actor=WORKER)
    return lambda by, caller: by.go_on(held, actor=WORKER, connection=caller)


def succeed(ledger: Ledger) -> Act:
    """Finish well."""
    held = running(ledger)
    return lambda by, caller: by.finish(held, Outcome.succeeded(exit_code=0), actor=WORKER, connection=caller)


def fail_to_be_retried(ledger: Ledger) -> Act:
    """Finish badly, to be tried again."""
    held = running(ledger, policy=RETRIED)
    return lambda by, caller: by.finish(held, Outcome.failed(exit_code=1), actor=WORKER, connection=caller)


def end_as_cancelled(ledger: Ledger) -> Act:
    """Finish after somebody asked to stop."""
    held = _given(ledger, *RUNNING, ASKED)
    return lambda by, caller: by.finish(held, Outcome.failed(signal=15), actor=WORKER, connection=caller)


def report_late(ledger: Ledger) -> Act:
    """Report after the end."""
    held = finished(ledger)
    return lambda by, caller: by.finish(held, Outcome.failed(exit_code=1), actor=WORKER, sequence=9, connection=caller)


def _given(ledger: Ledger, *past: Payload) -> AttemptClaim:
    return given_in(ledger, *past).claim


COMMANDS: tuple[Callable[[Ledger], Act], ...] = (
    create,
    queue,
    claim,
    start,
    start_too_late,
    confirm_running,
    confirm_too_late,
    wait_for_approval,
    go_on,
    succeed,
    fail_to_be_retried,
    end_as_cancelled,
    report_late,
)
"""Prepares a Run and gives the command."""

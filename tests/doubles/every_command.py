"""Every command of the ledger, each with a Run that was brought to where the command does something."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sqlalchemy import Connection, text

from deliveries import LEASE_MS, OPERATOR, TWO, asked_to_stop, claim_answer, held_by, settled_with
from left_rows import left_to_operators
from runfacts import IntentKind, Ledger, Outcome, RetryPolicy
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    Escalation,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRunning,
)
from runfacts.testing.clock import ManualClock
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


def submit(ledger: Ledger) -> Act:
    """Submit a command with a key that is new each time."""
    key = f"s{len(ledger.runs(limit=500).items)}"
    return lambda by, caller: by.submit(["true"], actor=ANA, cwd="/", idempotency_key=key, connection=caller)


def queue(ledger: Ledger) -> Act:
    """Queue a created Run."""
    run_id = created(ledger)
    return lambda by, caller: by.queue(run_id, actor=ANA, dedupe_key="q", connection=caller)


def claim(ledger: Ledger) -> Act:
    """Claim a queued Run."""
    run_id = queued(ledger)
    return lambda by, caller: by.claim(run_id, actor=WORKER, executor_type="batch", connection=caller)


def claim_at_once(ledger: Ledger) -> Act:
    """Queue and claim a created Run."""
    run_id = created(ledger)
    return lambda by, caller: by.claim(run_id, actor=WORKER, executor_type="batch", queue=True, connection=caller)


def start(ledger: Ledger) -> Act:
    """Pass the start barrier."""
    held = claimed(ledger)
    return lambda by, caller: by.start(held, actor=WORKER, timeout_ms=5, log_path="/l", connection=caller)


def start_too_late(ledger: Ledger) -> Act:
    """Come to the start barrier after somebody asked to stop."""
    held = asked_to_stop(ledger, "claimed").claim
    return lambda by, caller: by.start(held, actor=WORKER, connection=caller)


def confirm_running(ledger: Ledger) -> Act:
    """Confirm the process."""
    held = started(ledger)
    return lambda by, caller: by.running(held, actor=WORKER, handle="h", pid=7, connection=caller)


def confirm_too_late(ledger: Ledger) -> Act:
    """Confirm the process after somebody asked to stop."""
    held = asked_to_stop(ledger, "starting").claim
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
    held = asked_to_stop(ledger).claim
    return lambda by, caller: by.finish(held, Outcome.failed(signal=15), actor=WORKER, connection=caller)


def report_late(ledger: Ledger) -> Act:
    """Report after the end."""
    held = finished(ledger)
    return lambda by, caller: by.finish(held, Outcome.failed(exit_code=1), actor=WORKER, sequence=9, connection=caller)


def ask_to_stop(ledger: Ledger) -> Act:
    """Ask a running Run to stop."""
    held = running(ledger)
    return lambda by, caller: by.request_cancellation(held.run_id, actor=ANA, reason="why", connection=caller)


def ask_with_nothing_to_stop(ledger: Ledger) -> Act:
    """Ask a Run to stop that has no Attempt."""
    run_id = queued(ledger)
    return lambda by, caller: by.request_cancellation(run_id, actor=ANA, connection=caller)


def claim_delivery(ledger: Ledger) -> Act:
    """Claim the delivery of a cancellation."""
    asked = asked_to_stop(ledger)
    return lambda by, _: held_by(by, asked)


def take_over_delivery(ledger: Ledger) -> Act:
    """Claim a delivery whose holder's lease has expired."""
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    _pass(ledger, LEASE_MS)
    return lambda by, _: held_by(by, asked, TWO)


def claim_once_too_often(ledger: Ledger) -> Act:
    """Claim a delivery that was tried as often as allowed."""
    asked = asked_to_stop(ledger)
    with ledger.database.engine.begin() as connection:
        tried = f"dispatch_count = {ledger.settings.dispatch_limit}, tries_since_rearm = dispatch_count"
        which = f"run_id = '{asked.run_id}'"
        connection.execute(text(f"UPDATE cancellation_dispatches SET dispatch_count = 50 WHERE {which}"))
        connection.execute(text(f"UPDATE cancellation_dispatches SET {tried} WHERE {which}"))
    return lambda by, _: claim_answer(by, asked)


def settle_delivered(ledger: Ledger) -> Act:
    """Settle a delivery that was accepted."""
    held = held_by(ledger, asked_to_stop(ledger))
    return lambda by, _: by.settle_dispatch(held, DispatchResult.TERMINATION_REQUESTED, escalation=Escalation.TERM)


def settle_blocked(ledger: Ledger) -> Act:
    """Settle a delivery that an operator must look at."""
    held = held_by(ledger, asked_to_stop(ledger))
    return lambda by, _: by.settle_dispatch(held, DispatchResult.IDENTITY_MISMATCH)


def settle_failed(ledger: Ledger) -> Act:
    """Settle a delivery that is to be tried again."""
    held = held_by(ledger, asked_to_stop(ledger))
    return lambda by, _: by.settle_dispatch(held, DispatchResult.DISPATCH_ERROR)


def settle_after_the_end(ledger: Ledger) -> Act:
    """Settle a delivery whose Run has ended."""
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    return lambda by, _: by.settle_dispatch(held, DispatchResult.TERMINATION_REQUESTED)


def rearm(ledger: Ledger) -> Act:
    """Give a blocked delivery new tries."""
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, DispatchResult.IDENTITY_MISMATCH)
    return lambda by, _: by.rearm(asked.run_id, actor=OPERATOR, because="fixed", version=2)


def abandon(ledger: Ledger) -> Act:
    """End a delivery."""
    asked = asked_to_stop(ledger)
    return lambda by, _: by.abandon(asked.run_id, actor=OPERATOR, because="hopeless", version=0)


def abandon_before_it_began(ledger: Ledger) -> Act:
    """End a delivery that has no row yet."""
    run_id = given_in(ledger, *RUNNING, ASKED).run_id
    return lambda by, _: by.abandon(run_id, actor=OPERATOR, because="hopeless", version=0)


def confirm_stopped(ledger: Ledger) -> Act:
    """End a Run on an operator's word."""
    asked = asked_to_stop(ledger)
    version = ledger.run(asked.run_id).version
    return lambda by, _: by.confirm_stopped(asked.run_id, actor=OPERATOR, because="saw it", version=version)


def release(ledger: Ledger) -> Act:
    """Let workers look again at what waits for an operator."""
    held = running(ledger)
    _pass(ledger, LEASE_MS)
    left_to_operators(ledger, held)
    return lambda by, _: by.release(held.run_id, actor=OPERATOR, because="fixed", version=2)


def attest_not_running(ledger: Ledger) -> Act:
    """Declare lost on an operator's word what waits for an operator."""
    held = running(ledger)
    _pass(ledger, LEASE_MS)
    left_to_operators(ledger, held)
    return lambda by, _: by.attest_not_running(held.run_id, actor=OPERATOR, because="saw it", version=2)


def attest_what_nobody_serves(ledger: Ledger) -> Act:
    """Declare lost on an operator's word what nobody has looked at for long."""
    held = running(ledger)
    _pass(ledger, LEASE_MS + ledger.settings.unserved_after_ms)
    return lambda by, _: by.attest_not_running(held.run_id, actor=OPERATOR, because="saw it", version=0)


def _pass(ledger: Ledger, ms: int) -> None:
    clock = ledger.database.clock
    assert isinstance(clock, ManualClock)
    clock.advance(ms)


COMMANDS: tuple[Callable[[Ledger], Act], ...] = (
    create,
    submit,
    queue,
    claim,
    claim_at_once,
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
    ask_to_stop,
    ask_with_nothing_to_stop,
)
"""Prepares a Run and gives the command."""
ALONE: tuple[Callable[[Ledger], Act], ...] = (
    claim_delivery,
    take_over_delivery,
    claim_once_too_often,
    settle_delivered,
    settle_blocked,
    settle_failed,
    settle_after_the_end,
    rearm,
    abandon,
    abandon_before_it_began,
    confirm_stopped,
    release,
    attest_not_running,
    attest_what_nobody_serves,
)
"""The same for commands that have a transaction of their own, always: what they claim or end is outside of it."""

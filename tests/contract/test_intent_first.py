"""Whoever asked a Run to stop first is heard: no new Attempt, no start, no process, no other end (R2.8, R6.4, R6.5)."""

from __future__ import annotations

import pytest

from runfacts import (
    AttemptStatus,
    Finished,
    IntentKind,
    Ledger,
    NotClaimable,
    Outcome,
    OutcomeKind,
    Refusal,
    RetryPolicy,
    RunStatus,
    StartRefused,
    StopNotProven,
)
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    AttemptTimedOut,
    Payload,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRunning,
    RunTimedOut,
)
from runfacts.testing.given_when_then import given_in
from stages import WORKER, row_of, unchanged

CREATED = RunCreated(task="report", policy=RetryPolicy())
CLAIMED = (CREATED, RunQueued(), RunDispatching(number=1), AttemptClaimed(number=1, executor_type="batch"))
STARTING = (*CLAIMED, AttemptStarting())
RUNNING = (*STARTING, AttemptRunning(), RunRunning())
ASKED = RunCancelRequested(kind=IntentKind.USER)
LATE = RunCancelRequested(kind=IntentKind.TIMEOUT)


def test_no_attempt_is_made_once_somebody_asked_to_stop(ledger: Ledger) -> None:
    run = given_in(ledger, CREATED, RunQueued(), ASKED)
    answer = run.when(lambda: ledger.claim(run.run_id, actor=WORKER, executor_type="batch")).then()
    assert answer == NotClaimable(run.run_id, RunStatus.QUEUED, Refusal.CANCELLATION_REQUESTED)


@pytest.mark.parametrize(
    ("asked", "facts", "statuses"),
    [
        (
            ASKED,
            (AttemptCancelled(reason=IntentKind.USER), RunCancelled(reason=IntentKind.USER)),
            (RunStatus.CANCELLED, AttemptStatus.CANCELLED),
        ),
        # A claimed Attempt has no way to timed_out (R2.4, R2.5); its Run has.
        (
            LATE,
            (AttemptCancelled(reason=IntentKind.TIMEOUT), RunTimedOut(reason=IntentKind.TIMEOUT)),
            (RunStatus.TIMED_OUT, AttemptStatus.CANCELLED),
        ),
    ],
)
def test_the_start_barrier_is_closed_by_an_intent(
    ledger: Ledger, asked: Payload, facts: tuple[Payload, ...], statuses: tuple[RunStatus, AttemptStatus]
) -> None:
    run = given_in(ledger, *CLAIMED, asked)
    answer = run.when(lambda: ledger.start(run.claim, actor=WORKER)).then(*facts)
    assert answer == StartRefused(*statuses, Refusal.CANCELLATION_REQUESTED)
    assert row_of(ledger, "executions")["recover_at_ms"] is None
    assert ledger.verify().clean


@pytest.mark.parametrize(
    ("asked", "facts", "statuses"),
    [
        (
            ASKED,
            (AttemptCancelled(reason=IntentKind.USER), RunCancelled(reason=IntentKind.USER)),
            (RunStatus.CANCELLED, AttemptStatus.CANCELLED),
        ),
        (
            LATE,
            (AttemptTimedOut(reason=IntentKind.TIMEOUT), RunTimedOut(reason=IntentKind.TIMEOUT)),
            (RunStatus.TIMED_OUT, AttemptStatus.TIMED_OUT),
        ),
    ],
)
def test_the_gate_is_closed_by_an_intent(
    ledger: Ledger, asked: Payload, facts: tuple[Payload, ...], statuses: tuple[RunStatus, AttemptStatus]
) -> None:
    run = given_in(ledger, *STARTING, asked)
    answer = run.when(lambda: ledger.running(run.claim, actor=WORKER, handle="h")).then(*facts)
    assert answer == StartRefused(*statuses, Refusal.CANCELLATION_REQUESTED)
    assert ledger.execution(run.claim.attempt_id).handle is None
    assert ledger.verify().clean


def test_with_the_intent_first_a_report_ends_as_cancelled_and_says_what_was_observed(ledger: Ledger) -> None:
    run = given_in(ledger, *RUNNING, ASKED)
    fields = {"reason": IntentKind.USER, "observed": OutcomeKind.SUCCEEDED, "exit_code": 0}
    answer = run.when(lambda: ledger.finish(run.claim, Outcome.succeeded(exit_code=0), actor=WORKER)).then(
        AttemptCancelled.model_validate(fields), RunCancelled.model_validate(fields)
    )
    assert answer == Finished(RunStatus.CANCELLED, AttemptStatus.CANCELLED, 10, None)
    assert ledger.run(run.run_id).attempts[0].observed == "succeeded"


def test_a_run_being_cancelled_does_not_end_while_its_group_lives(ledger: Ledger) -> None:
    run = given_in(ledger, *RUNNING, ASKED)
    with unchanged(ledger):
        answer = ledger.finish(run.claim, Outcome.failed(signal=9), actor=WORKER, group_left=True)
    assert answer == StopNotProven(RunStatus.RUNNING, AttemptStatus.RUNNING)
    assert isinstance(ledger.finish(run.claim, Outcome.failed(signal=9), actor=WORKER), Finished)

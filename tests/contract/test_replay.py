"""Replay: what was true of a Run after each of its facts, and at any moment (R14.2)."""

from __future__ import annotations

import pytest

import later_release
from runfacts import (
    AttemptStatus,
    IntentKind,
    InvalidValue,
    Ledger,
    Outcome,
    PastCancellation,
    PastDispatch,
    PastRecovery,
    RetryPolicy,
    RunNotFound,
    RunStatus,
)
from runfacts.domain.cancellation.results import DispatchStatus
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    Escalation,
    RunCancelDispatchAbandoned,
    RunCancelDispatchBlocked,
    RunCancelDispatched,
    RunCancelDispatchFailed,
    RunCancelDispatchRearmed,
    RunCancelDispatchTakenOver,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRecoveryManual,
    RunRecoveryReleased,
    RunRunning,
    RunStopConfirmed,
)
from runfacts.domain.recovery.claims import ClaimState
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from stages import ANA, claim_of, created, finished, queued

ATTEMPT = "01890000-0000-7000-8000-00000000000a"
RUNNING = (
    RunCreated(task="report", policy=RetryPolicy()),
    RunQueued(),
    RunDispatching(number=1),
    AttemptClaimed(number=1, executor_type="batch"),
    AttemptStarting(),
    AttemptRunning(),
    RunRunning(),
)


def test_a_run_is_replayed_to_each_of_its_facts(ledger: Ledger) -> None:
    run_id = finished(ledger, Outcome.failed(exit_code=7)).run_id
    states = [ledger.replay(run_id, sequence=sequence) for sequence in range(1, 10)]
    assert [state.status for state in states] == [
        RunStatus.CREATED,
        RunStatus.QUEUED,
        RunStatus.DISPATCHING,
        RunStatus.DISPATCHING,
        RunStatus.DISPATCHING,
        RunStatus.DISPATCHING,
        RunStatus.RUNNING,
        RunStatus.RUNNING,
        RunStatus.FAILED,
    ]
    assert [state.version for state in states] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [[attempt.status for attempt in state.attempts] for state in states] == [
        *([], [], []),
        [AttemptStatus.CLAIMED],
        [AttemptStatus.STARTING],
        *([AttemptStatus.RUNNING],) * 2,
        *([AttemptStatus.FAILED],) * 2,
    ]
    assert [state.attempts[0].exit_code for state in states[3:]] == [None, None, None, None, 7, 7]


def test_a_run_is_replayed_to_a_moment(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = created(ledger)
    manual_clock.advance(1_000)
    ledger.queue(run_id, actor=ANA)
    manual_clock.advance(1_000)
    claim_of(ledger, run_id)
    at = {ms: ledger.replay(run_id, at_ms=EPOCH_MS + ms) for ms in (0, 999, 1_000, 1_999, 2_000, 9_999_999)}
    assert {ms: state.version for ms, state in at.items()} == {0: 1, 999: 1, 1_000: 2, 1_999: 2, 2_000: 4, 9_999_999: 4}
    assert (at[999].status, at[999].updated_at_ms) == (RunStatus.CREATED, EPOCH_MS)
    with pytest.raises(InvalidValue, match="before the first fact"):
        ledger.replay(run_id, at_ms=EPOCH_MS - 1)


def test_the_latest_state_is_what_the_run_is(ledger: Ledger) -> None:
    run_id = finished(ledger, timeout_ms=60_000, idempotency_key="k", project="books").run_id
    state, run = ledger.replay(run_id), ledger.run(run_id)
    for name in (
        *("run_id", "project", "task", "status", "version", "execution_owner", "policy", "idempotency_key"),
        *("retry_of_run_id", "created_at_ms", "updated_at_ms", "finished_at_ms", "deadline_at_ms", "cancellation"),
    ):
        assert getattr(state, name) == getattr(run, name), name
    (then,), (now,) = state.attempts, run.attempts
    for name in then.__slots__:
        assert getattr(then, name) == getattr(now, name), name


@pytest.mark.parametrize("sequence", [0, -1, 3, 1 << 70])
def test_a_fact_that_is_not_there_is_refused(ledger: Ledger, sequence: int) -> None:
    run_id = queued(ledger)
    with pytest.raises(InvalidValue, match="none of 1 to 2"):
        ledger.replay(run_id, sequence=sequence)


def test_two_moments_are_refused_and_an_unknown_run_is_not_found(ledger: Ledger) -> None:
    run_id = created(ledger)
    with pytest.raises(InvalidValue):
        ledger.replay(run_id, sequence=1, at_ms=1)
    with pytest.raises(InvalidValue):
        ledger.replay(run_id, at_ms=1 << 70)
    with pytest.raises(RunNotFound):
        ledger.replay("01890000-0000-7000-8000-00000000dead")
    with pytest.raises(RunNotFound):
        list(ledger.facts_of("01890000-0000-7000-8000-00000000dead"))


def test_how_far_a_cancellation_had_come(ledger: Ledger) -> None:
    run = given_in(
        ledger,
        *RUNNING,
        RunCancelRequested(kind=IntentKind.USER, reason="wrong input"),
        RunCancelDispatchFailed(attempt_id=ATTEMPT, dispatch_count=1, result="dispatch_error"),
        RunCancelDispatchTakenOver(previous_owner="w-0", attempt_id=ATTEMPT, dispatch_count=2),
        RunCancelDispatchBlocked(result="not_permitted", attempt_id=ATTEMPT, dispatch_count=2),
        RunCancelDispatchRearmed(attempt_id=ATTEMPT, delay_ms=1_000),
        RunCancelDispatched(
            attempt_id=ATTEMPT, dispatch_count=3, result="termination_requested", escalation=Escalation.TERM
        ),
        RunCancelDispatchAbandoned(attempt_id=ATTEMPT),
    )
    found = [ledger.replay(run.run_id, sequence=sequence).cancellation for sequence in range(7, 15)]
    assert found[0] is None
    assert found[1] == PastCancellation(EPOCH_MS, IntentKind.USER, "wrong input", None)
    assert [None if item is None else item.dispatch for item in found[2:]] == [
        PastDispatch(DispatchStatus.RETRY_WAIT, 1, "dispatch_error"),
        PastDispatch(DispatchStatus.LEASED, 2, "dispatch_error"),
        PastDispatch(DispatchStatus.BLOCKED, 2, "not_permitted"),
        PastDispatch(DispatchStatus.RETRY_WAIT, 2, "not_permitted"),
        PastDispatch(DispatchStatus.DISPATCHED, 3, "termination_requested"),
        PastDispatch(DispatchStatus.BLOCKED, 3, "abandoned"),
    ]


def test_what_recovery_had_left_to_an_operator(ledger: Ledger) -> None:
    run = given_in(
        ledger,
        *RUNNING,
        RunCancelRequested(kind=IntentKind.USER),
        RunRecoveryManual(purpose="stop", reason="identity_unverifiable"),
        RunRecoveryReleased(purpose="stop"),
        RunStopConfirmed(evidence=Evidence.NOT_RUNNING),
        AttemptCancelled(),
        RunCancelled(),
    )
    found = [ledger.replay(run.run_id, sequence=sequence).recovery for sequence in range(8, 14)]
    assert found == [
        None,
        PastRecovery(ClaimState.MANUAL, "stop", "identity_unverifiable"),
        *(PastRecovery(ClaimState.AVAILABLE, "stop", None),) * 3,
        None,
    ]


def test_what_is_not_understood_is_named_and_the_rest_is_replayed(ledger: Ledger) -> None:
    run_id = queued(ledger)
    for _ in range(2):
        later_release.append(ledger, run_id, "run.teleported", "{}")
    state = ledger.replay(run_id)
    assert (state.status, state.version, state.unknown_types) == (RunStatus.QUEUED, 4, ("run.teleported",))
    assert ledger.replay(run_id, sequence=2).unknown_types == ()


def test_facts_come_page_by_page_and_up_to_where_they_began(ledger: Ledger) -> None:
    run_id = created(ledger)
    for _ in range(3):
        later_release.append(ledger, run_id, "run.noted", "{}")
    facts = ledger.facts_of(run_id)
    first = next(facts)
    later_release.append(ledger, run_id, "run.noted", "{}")
    assert [first.sequence, *(fact.sequence for fact in facts)] == [1, 2, 3, 4]

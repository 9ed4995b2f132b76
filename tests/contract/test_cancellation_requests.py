"""
Asking a Run to stop: what is recorded, what is not, and what it does to everything that comes later.

R2.5, R2.6, R2.10, R3.4, R4.5, R6.1 to R6.5, R7.1, R7.6; cases C21 and C23.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

import later_release
from deliveries import ONE, SERVED, Asked, asked_to_stop, brought_to, dispatch_of, due_runs, refused_as, stored
from runfacts import (
    Actor,
    AttemptStatus,
    DedupeConflict,
    ExecutionOwner,
    Finished,
    IntentKind,
    InvalidValue,
    Ledger,
    LegacyRun,
    MalformedId,
    NotClaimable,
    NotQueued,
    Outcome,
    Refusal,
    RetryPolicy,
    RunNotFound,
    RunStatus,
    RunVersionConflict,
    StartRefused,
    StopNotProven,
    UnknownFactsInRun,
)
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.terms import (
    AlreadyRequested,
    AlreadyTerminal,
    CancelRequested,
    DispatchNotClaimed,
)
from runfacts.domain.lifecycle import TERMINAL_RUN
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptLost,
    AttemptRunning,
    AttemptStarting,
    AttemptTimedOut,
    Payload,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunLost,
    RunQueued,
    RunRetryWait,
    RunRunning,
    RunTimedOut,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, created, finished, queued, row_of, types, unchanged

CREATED = (RunCreated(task="report", policy=RetryPolicy()),)
QUEUED = (*CREATED, RunQueued())
RUNNING = (
    *QUEUED,
    RunDispatching(number=1),
    AttemptClaimed(number=1, executor_type="batch"),
    AttemptStarting(),
    AttemptRunning(),
    RunRunning(),
)
RETRY_WAIT = (*RUNNING, AttemptFailed(exit_code=1), RunRetryWait(due_at_ms=EPOCH_MS + 5_000))
LOST = (*RUNNING, AttemptLost(evidence=Evidence.NOT_RUNNING), RunLost(evidence=Evidence.NOT_RUNNING))


@pytest.mark.parametrize(
    ("past", "kind", "expected"),
    [
        (CREATED, IntentKind.USER, RunStatus.CANCELLED),
        (QUEUED, IntentKind.USER, RunStatus.CANCELLED),
        (RETRY_WAIT, IntentKind.USER, RunStatus.CANCELLED),
        (LOST, IntentKind.USER, RunStatus.CANCELLED),
        (QUEUED, IntentKind.POLICY, RunStatus.CANCELLED),
        (QUEUED, IntentKind.SHUTDOWN, RunStatus.CANCELLED),
        (QUEUED, IntentKind.RECONCILE, RunStatus.CANCELLED),
        # Timed out where the table has it, else cancelled with reason timeout (R2.5).
        (CREATED, IntentKind.TIMEOUT, RunStatus.CANCELLED),
        (QUEUED, IntentKind.TIMEOUT, RunStatus.TIMED_OUT),
        (RETRY_WAIT, IntentKind.TIMEOUT, RunStatus.TIMED_OUT),
        (LOST, IntentKind.TIMEOUT, RunStatus.CANCELLED),
    ],
)
def test_with_nothing_to_stop_the_run_ends_with_the_request(
    ledger: Ledger, past: tuple[Payload, ...], kind: IntentKind, expected: RunStatus
) -> None:
    run = given_in(ledger, *past)
    end = RunTimedOut(reason=kind) if expected is RunStatus.TIMED_OUT else RunCancelled(reason=kind)
    answer = run.when(lambda: ledger.request_cancellation(run.run_id, actor=ANA, kind=kind)).then(
        RunCancelRequested(kind=kind), end
    )
    assert answer == CancelRequested(run.run_id, expected, len(past) + 2, EPOCH_MS)
    assert isinstance(answer, CancelRequested)
    assert answer.ended
    view = ledger.run(run.run_id)
    assert (view.status, view.finished_at_ms, view.retry_due_at_ms) == (expected, EPOCH_MS, None)
    # Nothing to stop is nothing to deliver (C21).
    assert dispatch_of(ledger, run.run_id) is None
    assert ledger.verify().clean


@pytest.mark.parametrize(
    ("stage", "statuses"),
    [
        ("claimed", (RunStatus.DISPATCHING, AttemptStatus.CLAIMED)),
        ("starting", (RunStatus.DISPATCHING, AttemptStatus.STARTING)),
        ("running", (RunStatus.RUNNING, AttemptStatus.RUNNING)),
        ("waiting_approval", (RunStatus.WAITING_APPROVAL, AttemptStatus.RUNNING)),
    ],
)
@pytest.mark.parametrize("kind", list(IntentKind))
def test_with_an_active_attempt_the_request_changes_no_status(
    ledger: Ledger,
    manual_clock: ManualClock,
    stage: str,
    statuses: tuple[RunStatus, AttemptStatus],
    kind: IntentKind,
) -> None:
    status, attempt_status = statuses
    claim = brought_to(ledger, stage)
    version = ledger.run(claim.run_id).version
    manual_clock.advance(7)
    answer = ledger.request_cancellation(claim.run_id, actor=ANA, kind=kind)
    assert answer == CancelRequested(claim.run_id, status, version + 1, EPOCH_MS + 7)
    assert isinstance(answer, CancelRequested)
    assert not answer.ended
    fact = ledger.history(claim.run_id)[-1]
    assert (fact.type, fact.payload, fact.attempt_id) == (
        "run.cancel_requested",
        RunCancelRequested(kind=kind),
        claim.attempt_id,
    )
    view = ledger.run(claim.run_id)
    assert (view.status, view.attempts[0].status, view.finished_at_ms) == (status, attempt_status, None)
    assert view.cancellation is not None
    assert (view.cancellation.kind, view.cancellation.requested_at_ms) == (kind, EPOCH_MS + 7)


def test_the_delivery_waits_for_a_worker_of_the_attempts_type_and_scope(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    assert row_of(ledger, "cancellation_dispatches") == {
        "run_id": asked.run_id,
        "attempt_id": asked.attempt_id,
        "executor_type": "batch",
        "scope": "here",
        "status": "pending",
        "version": 0,
        "dispatch_count": 0,
        "tries_since_rearm": 0,
        "next_attempt_at_ms": None,
        "due_at_ms": EPOCH_MS,
        "lease_owner": None,
        "lease_token_digest": None,
        "lease_expires_at_ms": None,
        "lease_boot_id": None,
        "lease_expires_boot_ms": None,
        "last_result": None,
        "last_dispatched_at_ms": None,
        "created_at_ms": EPOCH_MS,
        "updated_at_ms": EPOCH_MS,
    }


def test_the_reason_is_redacted_and_bounded(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")
    ledger.request_cancellation(claim.run_id, actor=ANA, reason="password=hunter2 " + "x" * 300)
    payload = ledger.history(claim.run_id)[-1].payload
    assert isinstance(payload, RunCancelRequested)
    assert payload.reason is not None
    assert "hunter2" not in payload.reason
    assert (len(payload.reason), payload.reason_length) == (256, 317)
    cancellation = ledger.run(claim.run_id).cancellation
    assert cancellation is not None
    assert cancellation.reason == payload.reason


@pytest.mark.parametrize("kind", list(IntentKind))
def test_a_second_request_records_nothing_whoever_makes_it_and_why(
    ledger: Ledger, manual_clock: ManualClock, kind: IntentKind
) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(1_000)
    with unchanged(ledger):
        answer = ledger.request_cancellation(asked.run_id, actor=Actor.system("x"), kind=kind, reason="now!")
    assert answer == AlreadyRequested(asked.run_id, RunStatus.RUNNING, EPOCH_MS)


@pytest.mark.parametrize("outcome", [Outcome.succeeded(), Outcome.failed(exit_code=1), Outcome.cancelled(signal=15)])
def test_c23_a_run_that_has_ended_is_not_asked_again(ledger: Ledger, outcome: Outcome) -> None:
    run_id = finished(ledger, outcome).run_id
    status = ledger.run(run_id).status
    assert status in TERMINAL_RUN
    with unchanged(ledger):
        answers = [ledger.request_cancellation(run_id, actor=ANA) for _ in range(2)]
    assert answers == [AlreadyTerminal(run_id, status)] * 2
    assert dispatch_of(ledger, run_id) is None


def test_a_run_that_ended_with_the_first_request_says_so_to_the_second(ledger: Ledger) -> None:
    run_id = queued(ledger)
    ledger.request_cancellation(run_id, actor=ANA)
    with unchanged(ledger):
        assert ledger.request_cancellation(run_id, actor=ANA) == AlreadyTerminal(run_id, RunStatus.CANCELLED)


def test_runs_of_others_and_of_later_releases_are_not_asked(ledger: Ledger) -> None:
    legacy = created(ledger, execution_owner=ExecutionOwner.LEGACY)
    later = brought_to(ledger, "running").run_id
    later_release.append(ledger, later, "run.teleported", "{}")
    with unchanged(ledger):
        with pytest.raises(LegacyRun):
            ledger.request_cancellation(legacy, actor=ANA)
        with pytest.raises(UnknownFactsInRun):
            ledger.request_cancellation(later, actor=ANA)
        with pytest.raises(RunNotFound):
            ledger.request_cancellation("01890000-0000-7000-8000-000000000001", actor=ANA)
        with pytest.raises(MalformedId):
            ledger.request_cancellation("nobody", actor=ANA)
        with pytest.raises(InvalidValue, match="kind"):
            ledger.request_cancellation(legacy, actor=ANA, kind="whim")  # type: ignore[arg-type]  # on purpose


def test_the_version_that_a_caller_names_is_checked(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")
    with unchanged(ledger), pytest.raises(RunVersionConflict) as caught:
        ledger.request_cancellation(claim.run_id, actor=ANA, expected_version=3)
    assert (caught.value.expected, caught.value.actual) == (3, 7)
    assert isinstance(ledger.request_cancellation(claim.run_id, actor=ANA, expected_version=7), CancelRequested)


@pytest.mark.parametrize("stage", ["queued", "running"])
def test_the_same_request_again_by_its_key_answers_how_it_stands(ledger: Ledger, stage: str) -> None:
    run_id = queued(ledger) if stage == "queued" else brought_to(ledger, stage).run_id
    version = ledger.run(run_id).version
    call: dict[str, Any] = {"actor": ANA, "dedupe_key": "stop", "reason": "enough"}
    first = ledger.request_cancellation(run_id, expected_version=version, **call)
    assert isinstance(first, CancelRequested)
    with unchanged(ledger):
        # Before any version check (R3.4).
        again = ledger.request_cancellation(run_id, expected_version=version, **call)
        if stage == "queued":
            assert again == AlreadyTerminal(run_id, RunStatus.CANCELLED)
        else:
            assert again == AlreadyRequested(run_id, RunStatus.RUNNING, EPOCH_MS)
        for other in ({"kind": IntentKind.POLICY}, {"reason": "other"}, {"reason": None}):
            with pytest.raises(DedupeConflict):
                ledger.request_cancellation(run_id, **(call | other))


def test_the_key_of_another_command_is_a_conflict(ledger: Ledger) -> None:
    run_id = created(ledger)
    ledger.queue(run_id, actor=ANA, dedupe_key="k")
    with unchanged(ledger), pytest.raises(DedupeConflict):
        ledger.request_cancellation(run_id, actor=ANA, dedupe_key="k")


@pytest.mark.parametrize("commit", [True, False])
def test_a_request_belongs_to_its_callers_transaction(ledger_factory: ThrowAwayLedgers, *, commit: bool) -> None:
    ledger = ledger_factory()
    running, waiting = brought_to(ledger, "running").run_id, queued(ledger)
    with ledger.database.engine.connect() as connection:
        answers = [ask(ledger, run_id, connection) for run_id in (running, waiting)]
        assert [answer.ended for answer in answers] == [False, True]
        with unchanged(ledger):
            assert due_runs(ledger_factory()) == []
        (connection.commit if commit else connection.rollback)()
    assert due_runs(ledger) == ([running] if commit else [])
    assert ledger.run(waiting).status == (RunStatus.CANCELLED if commit else RunStatus.QUEUED)
    assert (dispatch_of(ledger, running) is not None) is commit
    assert ledger.verify().clean


def ask(ledger: Ledger, run_id: str, connection: Connection) -> CancelRequested:
    answer = ledger.request_cancellation(run_id, actor=ANA, connection=connection)
    assert isinstance(answer, CancelRequested)
    return answer


@pytest.mark.parametrize(
    ("kind", "run_end"), [(IntentKind.USER, RunStatus.CANCELLED), (IntentKind.TIMEOUT, RunStatus.TIMED_OUT)]
)
def test_after_the_request_nobody_passes_the_start_barrier(
    ledger: Ledger, kind: IntentKind, run_end: RunStatus
) -> None:
    asked = asked_to_stop(ledger, "claimed", kind=kind)
    version = ledger.run(asked.run_id).version
    answer = ledger.start(asked.claim, actor=WORKER)
    # A claimed Attempt cannot time out (R2.4, R2.5).
    assert answer == StartRefused(run_end, AttemptStatus.CANCELLED, Refusal.CANCELLATION_REQUESTED)
    first, second = ledger.history(asked.run_id)[version:]
    assert first.payload == AttemptCancelled(reason=kind)
    assert second.payload == (RunTimedOut(reason=kind) if kind is IntentKind.TIMEOUT else RunCancelled(reason=kind))
    ended_without_a_signal(ledger, asked)


@pytest.mark.parametrize(
    ("kind", "run_end", "attempt_end"),
    [
        (IntentKind.USER, RunStatus.CANCELLED, AttemptStatus.CANCELLED),
        (IntentKind.TIMEOUT, RunStatus.TIMED_OUT, AttemptStatus.TIMED_OUT),
    ],
)
def test_after_the_request_no_process_is_let_through_its_gate(
    ledger: Ledger, kind: IntentKind, run_end: RunStatus, attempt_end: AttemptStatus
) -> None:
    asked = asked_to_stop(ledger, "starting", kind=kind)
    version = ledger.run(asked.run_id).version
    answer = ledger.running(asked.claim, actor=WORKER, handle="handle", pid=5)
    assert answer == StartRefused(run_end, attempt_end, Refusal.CANCELLATION_REQUESTED)
    first, second = ledger.history(asked.run_id)[version:]
    if kind is IntentKind.TIMEOUT:
        assert (first.payload, second.payload) == (AttemptTimedOut(reason=kind), RunTimedOut(reason=kind))
    else:
        assert (first.payload, second.payload) == (AttemptCancelled(reason=kind), RunCancelled(reason=kind))
    # The handle was never stored: nobody can take the process for one of this Run's.
    assert row_of(ledger, "executions")["handle"] is None
    ended_without_a_signal(ledger, asked)


def ended_without_a_signal(ledger: Ledger, asked: Asked) -> None:
    """The Run has ended, its row is history, and nobody delivers anything (R7.6)."""
    assert stored(ledger, asked, "status", "version", "due_at_ms") == ("pending", 0, None)
    assert due_runs(ledger) == []
    assert refused_as(ledger, asked) is ClaimAnswer.NOT_ELIGIBLE
    assert row_of(ledger, "executions")["recover_at_ms"] is None
    assert not [name for name in types(ledger, asked.run_id) if name.startswith("run.cancel_dispatch")]
    assert ledger.verify().clean


def test_c21_without_an_attempt_no_attempt_begins_after_the_request(ledger: Ledger) -> None:
    run_id = queued(ledger)
    ledger.request_cancellation(run_id, actor=ANA)
    with unchanged(ledger):
        answer = ledger.claim(run_id, actor=WORKER, executor_type="batch")
        assert isinstance(answer, NotClaimable)
        assert isinstance(ledger.queue(run_id, actor=ANA), NotQueued)
        unknown = ledger.claim_dispatch(run_id, run_id, EPOCH_MS, owner=ONE, served=SERVED)
        assert unknown == DispatchNotClaimed(run_id, ClaimAnswer.NOT_ELIGIBLE)
    assert types(ledger, run_id) == ["run.created", "run.queued", "run.cancel_requested", "run.cancelled"]
    assert ledger.run(run_id).attempts == ()


@pytest.mark.parametrize(
    ("outcome", "observed"),
    [
        (Outcome.succeeded(exit_code=0), {"observed": "succeeded", "exit_code": 0}),
        (Outcome.failed(exit_code=3), {"observed": "failed", "exit_code": 3}),
        (Outcome.failed(signal=9), {"observed": "failed", "signal": 9}),
        (Outcome.cancelled(signal=15), {"observed": "cancelled", "signal": 15}),
    ],
)
@pytest.mark.parametrize("kind", [IntentKind.USER, IntentKind.TIMEOUT])
def test_with_the_request_first_a_report_ends_as_it_says_and_keeps_what_was_seen(
    ledger: Ledger, kind: IntentKind, outcome: Outcome, observed: dict[str, Any]
) -> None:
    asked = asked_to_stop(ledger, kind=kind)
    answer = ledger.finish(asked.claim, outcome, actor=WORKER)
    end = "timed_out" if kind is IntentKind.TIMEOUT else "cancelled"
    assert answer == Finished(RunStatus(end), AttemptStatus(end), 10, None)
    first, second = ledger.history(asked.run_id)[-2:]
    expected = {"reason": kind.value} | observed
    assert (first.type, first.payload.model_dump(mode="json", exclude_none=True)) == (f"attempt.{end}", expected)
    assert (second.type, second.payload.model_dump(mode="json", exclude_none=True)) == (f"run.{end}", expected)
    (attempt,) = ledger.run(asked.run_id).attempts
    assert (attempt.observed, attempt.exit_code) == (observed["observed"], observed.get("exit_code"))
    assert stored(ledger, asked, "status", "version", "due_at_ms") == ("pending", 0, None)
    assert due_runs(ledger) == []


def test_a_policy_that_retries_does_not_retry_what_was_asked_to_stop(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger, policy=RetryPolicy(max_attempts=5, retry_on_failure=True))
    answer = ledger.finish(asked.claim, Outcome.failed(exit_code=1), actor=WORKER)
    assert isinstance(answer, Finished)
    assert (answer.run_status, answer.retry_due_at_ms) == (RunStatus.CANCELLED, None)


def test_living_members_of_the_group_keep_the_attempt_and_the_delivery_going(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    with unchanged(ledger):
        answer = ledger.finish(asked.claim, Outcome.succeeded(exit_code=0), actor=WORKER, group_left=True)
    assert answer == StopNotProven(RunStatus.RUNNING, AttemptStatus.RUNNING)
    assert due_runs(ledger) == [asked.run_id]
    # Once they are gone the same report ends it.
    assert isinstance(ledger.finish(asked.claim, Outcome.succeeded(exit_code=0), actor=WORKER), Finished)


def test_without_a_request_the_outcome_stands_and_says_who_was_left(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")
    ledger.finish(claim, Outcome.failed(exit_code=2), actor=WORKER, group_left=True)
    last = ledger.history(claim.run_id)[-1].payload
    assert last == RunFailed(exit_code=2, group_left=True)


def test_with_the_attempt_ended_first_nothing_is_delivered(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running", policy=RetryPolicy(max_attempts=2, retry_on_failure=True))
    ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER)
    answer = ledger.request_cancellation(claim.run_id, actor=ANA)
    assert isinstance(answer, CancelRequested)
    assert answer.ended
    assert dispatch_of(ledger, claim.run_id) is None
    assert due_runs(ledger) == []

"""Each command records its facts, in order, and moves Run and Attempt (R2.3, R2.4, R2.6 to R2.9, R10.4)."""

from __future__ import annotations

import pytest

from runfacts import (
    AttemptStatus,
    Claimed,
    Created,
    Finished,
    IllegalTransition,
    InvalidValue,
    Ledger,
    NotClaimable,
    NotQueued,
    Outcome,
    Recorded,
    Refusal,
    Repeated,
    RetryPolicy,
    RunNotFound,
    RunStatus,
    Started,
    StartRefused,
)
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptRunning,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    Payload,
    RunCancelled,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunQueued,
    RunRunning,
    RunSucceeded,
    RunTimedOut,
    RunWaitingApproval,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import GivenRun, given_in
from stages import (
    ANA,
    WORKER,
    claim_of,
    claimed,
    created,
    finished,
    queued,
    row_of,
    run_again,
    running,
    started,
    types,
    unchanged,
)

CREATED = RunCreated(task="report", policy=RetryPolicy())
CLAIMED = (CREATED, RunQueued(), RunDispatching(number=1), AttemptClaimed(number=1, executor_type="batch"))
STARTING = (*CLAIMED, AttemptStarting())
RUNNING = (*STARTING, AttemptRunning(), RunRunning())


def standing(ledger: Ledger, run: GivenRun) -> tuple[str, str]:
    view = ledger.run(run.run_id)
    return view.status.value, view.attempts[-1].status.value


def test_create_records_what_was_asked_for(ledger: Ledger) -> None:
    answer = ledger.create(actor=ANA, task="report", project="sales", correlation_id="c-1", causation_id="c-0")
    assert isinstance(answer, Created)
    assert (answer.run.status, answer.run.version, answer.run.attempts) == (RunStatus.CREATED, 1, ())
    (fact,) = ledger.history(answer.run.run_id)
    assert fact.payload == CREATED
    assert (fact.type, fact.schema_version, fact.project, fact.attempt_id) == ("run.created", 1, "sales", None)
    assert (fact.position, fact.sequence, fact.aggregate_id, fact.aggregate_version) == (1, 1, fact.run_id, 1)
    assert (fact.actor, fact.correlation_id, fact.causation_id) == (ANA, "c-1", "c-0")
    assert ledger.run(answer.run.run_id) == answer.run


def test_queue_lets_the_run_wait(ledger: Ledger) -> None:
    run = given_in(ledger, CREATED)
    answer = run.when(lambda: ledger.queue(run.run_id, actor=ANA)).then(RunQueued())
    assert isinstance(answer, Recorded)
    assert (answer.run_id, answer.status, answer.version) == (run.run_id, RunStatus.QUEUED, 2)
    assert [fact.type for fact in answer.facts] == ["run.queued"]
    assert answer.facts == ledger.history(run.run_id)[1:]


def test_queueing_a_queued_run_changes_nothing(ledger: Ledger) -> None:
    run_id = queued(ledger)
    with unchanged(ledger):
        assert ledger.queue(run_id, actor=ANA) == Repeated(run_id, RunStatus.QUEUED, 2)


def test_a_run_that_has_ended_is_not_queued(ledger: Ledger) -> None:
    claim = finished(ledger)
    with unchanged(ledger):
        answer = ledger.queue(claim.run_id, actor=ANA)
    assert answer == NotQueued(claim.run_id, RunStatus.SUCCEEDED, Refusal.ENDED)


def test_claim_begins_the_next_attempt(ledger: Ledger) -> None:
    run = given_in(ledger, CREATED, RunQueued())
    answer = run.when(
        lambda: ledger.claim(run.run_id, actor=WORKER, executor_type="batch", gated=True, worker_id="w-1")
    ).then(RunDispatching(number=1), AttemptClaimed(number=1, executor_type="batch", gated=True, worker_id="w-1"))
    assert isinstance(answer, Claimed)
    assert (answer.version, answer.lease_expires_at_ms) == (4, EPOCH_MS + 30_000)
    assert (answer.claim.run_id, answer.claim.number) == (run.run_id, 1)
    assert ledger.run(run.run_id).status == RunStatus.DISPATCHING
    dispatching, claim = ledger.history(run.run_id)[2:]
    assert dispatching.attempt_id == claim.attempt_id == answer.claim.attempt_id
    assert (dispatching.aggregate_id, dispatching.aggregate_version) == (run.run_id, 3)
    assert (claim.aggregate_id, claim.aggregate_version) == (answer.claim.attempt_id, 1)


def test_only_a_queued_run_is_claimed(ledger: Ledger) -> None:
    run_id = created(ledger)
    with unchanged(ledger):
        answer = ledger.claim(run_id, actor=WORKER, executor_type="batch")
    assert answer == NotClaimable(run_id, RunStatus.CREATED, Refusal.NOT_QUEUED)
    claim = claimed(ledger)
    with unchanged(ledger):
        answer = ledger.claim(claim.run_id, actor=WORKER, executor_type="batch")
    assert answer == NotClaimable(claim.run_id, RunStatus.DISPATCHING, Refusal.NOT_QUEUED)


def test_the_start_barrier_is_passed_once(ledger: Ledger) -> None:
    run = given_in(ledger, *CLAIMED)
    answer = run.when(lambda: ledger.start(run.claim, actor=WORKER)).then(AttemptStarting())
    assert answer == Started(None, 5)
    assert standing(ledger, run) == ("dispatching", "starting")
    again = run.when(lambda: ledger.start(run.claim, actor=WORKER)).then()
    assert again == StartRefused(RunStatus.DISPATCHING, AttemptStatus.STARTING, Refusal.REPEATED)


@pytest.mark.parametrize(
    ("of_run", "of_attempt", "left_ms"),
    [
        ({}, None, None),
        ({"timeout_ms": 5_000}, None, 5_000),
        ({"timeout_ms": 5_000}, 3_000, 3_000),
        ({}, 7_000, 7_000),
        ({"deadline_at_ms": EPOCH_MS + 7_000}, 7_000, 6_000),
        ({"deadline_at_ms": EPOCH_MS + 7_000}, None, 6_000),
    ],
)
def test_the_deadline_is_fixed_at_the_start_barrier(
    ledger: Ledger, manual_clock: ManualClock, of_run: dict[str, int], of_attempt: int | None, left_ms: int | None
) -> None:
    claim = claimed(ledger, **of_run)
    manual_clock.advance(1_000)
    expected = None if left_ms is None else EPOCH_MS + 1_000 + left_ms
    assert ledger.start(claim, actor=WORKER, timeout_ms=of_attempt) == Started(expected, 5)
    assert ledger.history(claim.run_id)[-1].payload == AttemptStarting(deadline_at_ms=expected)
    assert ledger.run(claim.run_id).attempts[0].deadline_at_ms == expected
    assert ledger.execution(claim.attempt_id).deadline_at_ms == expected


def test_a_confirmed_process_makes_attempt_and_run_running(ledger: Ledger) -> None:
    run = given_in(ledger, *STARTING)
    answer = run.when(lambda: ledger.running(run.claim, actor=WORKER, handle="h-1", pid=77)).then(
        AttemptRunning(), RunRunning()
    )
    assert isinstance(answer, Recorded)
    assert (answer.status, answer.version) == (RunStatus.RUNNING, 7)
    assert standing(ledger, run) == ("running", "running")
    execution = ledger.execution(run.claim.attempt_id)
    assert (execution.handle, execution.pid, execution.callback_sequence) == ("h-1", 77, 1)


def test_a_gated_executor_must_give_its_handle(ledger: Ledger) -> None:
    gated = AttemptClaimed(number=1, executor_type="batch", gated=True)
    run = given_in(ledger, *CLAIMED[:3], gated, AttemptStarting())
    with unchanged(ledger), pytest.raises(InvalidValue, match="handle must be given"):
        ledger.running(run.claim, actor=WORKER)
    assert isinstance(ledger.running(run.claim, actor=WORKER, handle="h"), Recorded)


def test_a_run_waits_for_an_approval_and_goes_on(ledger: Ledger) -> None:
    run = given_in(ledger, *RUNNING)
    waits = run.when(lambda: ledger.wait_for_approval(run.claim, actor=WORKER, reason="over 100 euros")).then(
        RunWaitingApproval(reason="over 100 euros")
    )
    assert isinstance(waits, Recorded)
    assert (waits.status, waits.version) == (RunStatus.WAITING_APPROVAL, 8)
    assert standing(ledger, run) == ("waiting_approval", "running")
    goes_on = run.when(lambda: ledger.go_on(run.claim, actor=WORKER)).then(RunRunning())
    assert isinstance(goes_on, Recorded)
    assert (goes_on.status, goes_on.version) == (RunStatus.RUNNING, 9)
    assert [fact.attempt_id for fact in ledger.history(run.run_id)[-2:]] == [run.claim.attempt_id] * 2


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize(
    ("outcome", "facts", "status"),
    [
        (Outcome.succeeded(exit_code=0), (AttemptSucceeded(exit_code=0), RunSucceeded(exit_code=0)), "succeeded"),
        (
            Outcome.failed(exit_code=7, error_code="E7", error_summary="no paper"),
            (
                AttemptFailed(exit_code=7, error_code="E7", error_summary="no paper"),
                RunFailed(exit_code=7, error_code="E7", error_summary="no paper"),
            ),
            "failed",
        ),
        (Outcome.cancelled(signal=15), (AttemptCancelled(signal=15), RunCancelled(signal=15)), "cancelled"),
        (Outcome.timed_out(signal=9), (AttemptTimedOut(signal=9), RunTimedOut(signal=9)), "timed_out"),
    ],
)
def test_finish_ends_attempt_and_run_together(
    ledger: Ledger, outcome: Outcome, facts: tuple[Payload, ...], status: str, *, waiting: bool
) -> None:
    run = given_in(ledger, *RUNNING, *([RunWaitingApproval()] if waiting else []))
    answer = run.when(lambda: ledger.finish(run.claim, outcome, actor=WORKER)).then(*facts)
    version = 10 if waiting else 9
    assert answer == Finished(RunStatus(status), AttemptStatus(status), version, None)
    assert standing(ledger, run) == (status, status)
    assert ledger.verify().clean


def test_a_starting_attempt_can_fail(ledger: Ledger) -> None:
    claim = started(ledger)
    ledger.finish(claim, Outcome.failed(error_code="no_such_program"), actor=WORKER)
    assert types(ledger, claim.run_id)[-2:] == ["attempt.failed", "run.failed"]


def test_a_failure_leaves_a_note_of_a_group_that_was_left(ledger: Ledger) -> None:
    run = given_in(ledger, *RUNNING)
    run.when(lambda: ledger.finish(run.claim, Outcome.succeeded(exit_code=0), actor=WORKER, group_left=True)).then(
        AttemptSucceeded(exit_code=0, group_left=True), RunSucceeded(exit_code=0, group_left=True)
    )


def test_what_the_tables_do_not_have_is_refused_without_a_trace(ledger: Ledger) -> None:
    claim = claimed(ledger)
    waiting = created(ledger)
    with unchanged(ledger):
        with pytest.raises(IllegalTransition, match="an attempt that is claimed cannot become running"):
            ledger.running(claim, actor=WORKER)
        with pytest.raises(IllegalTransition, match="an attempt that is claimed cannot become succeeded"):
            ledger.finish(claim, Outcome.succeeded(), actor=WORKER)
        with pytest.raises(IllegalTransition, match="a run that is dispatching cannot become waiting_approval"):
            ledger.wait_for_approval(claim, actor=WORKER)
        with pytest.raises(IllegalTransition, match="a run that is dispatching cannot become running"):
            ledger.go_on(claim, actor=WORKER)
        with pytest.raises(RunNotFound):
            ledger.queue(claim.attempt_id, actor=ANA)
    assert ledger.run(waiting).status == RunStatus.CREATED


def test_the_current_state_is_what_the_facts_amount_to(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = created(ledger, project="sales", idempotency_key="k", deadline_at_ms=EPOCH_MS + 90_000)
    manual_clock.advance(10)
    ledger.queue(run_id, actor=ANA)
    manual_clock.advance(10)
    claim = claim_of(ledger, run_id, worker_id="w-1", scope="here", lease_ms=20_000)
    manual_clock.advance(10)
    ledger.start(claim, actor=WORKER, log_path="/logs/1", receipt_path="/receipts/1")
    manual_clock.advance(10)
    ledger.running(claim, actor=WORKER, handle="h", pid=9)
    head = ledger.history(run_id)[-1].hash
    run = row_of(ledger, "runs")
    assert run == {
        "run_id": run_id,
        "project": "sales",
        "task": "report",
        "status": "running",
        "version": 7,
        "head_hash": head,
        "execution_owner": "runtime",
        "policy": '{"backoff_max_ms":60000,"backoff_ms":1000,"max_attempts":1,"retry_on_failure":false,'
        '"retry_on_lost":false,"safety":"unknown"}',
        "idempotency_key": "k",
        "retry_of_run_id": None,
        "active_attempt_id": claim.attempt_id,
        "attempt_count": 1,
        "intent_at_ms": None,
        "intent_kind": None,
        "deadline_at_ms": EPOCH_MS + 90_000,
        "retry_due_at_ms": None,
        "attested": 0,
        "created_at_ms": EPOCH_MS,
        "updated_at_ms": EPOCH_MS + 40,
        "finished_at_ms": None,
    }
    attempt = row_of(ledger, "attempts")
    assert attempt == {
        "attempt_id": claim.attempt_id,
        "run_id": run_id,
        "number": 1,
        "status": "running",
        "executor_type": "batch",
        "worker_id": "w-1",
        "exit_code": None,
        "signal": None,
        "error_code": None,
        "error_summary": None,
        "claimed_at_ms": EPOCH_MS + 20,
        "started_at_ms": EPOCH_MS + 30,
        "running_at_ms": EPOCH_MS + 40,
        "finished_at_ms": None,
    }
    manual_clock.advance(10)
    ledger.finish(claim, Outcome.failed(signal=9, error_code="E", error_summary="words"), actor=WORKER)
    ended = {"status": "failed", "finished_at_ms": EPOCH_MS + 50}
    changed = {"version": 9, "head_hash": ledger.history(run_id)[-1].hash, "active_attempt_id": None}
    assert row_of(ledger, "runs") == run | ended | changed | {"updated_at_ms": EPOCH_MS + 50}
    assert row_of(ledger, "attempts") == attempt | ended | {"signal": 9, "error_code": "E", "error_summary": "words"}
    execution = ledger.execution(claim.attempt_id)
    assert (execution.scope, execution.worker_id, execution.gated) == ("here", "w-1", False)
    assert (execution.log_path, execution.receipt_path) == ("/logs/1", "/receipts/1")
    assert (execution.handle, execution.pid, execution.callback_sequence) == ("h", 9, 2)
    assert execution.lease_expires_at_ms == EPOCH_MS + 20 + 20_000
    assert execution.deadline_at_ms == EPOCH_MS + 90_000
    assert ledger.verify().clean


def test_attempts_are_numbered_one_two_three(ledger: Ledger, manual_clock: ManualClock) -> None:
    policy = RetryPolicy(max_attempts=3, retry_on_failure=True, backoff_ms=0)
    claim = running(ledger, policy=policy)
    numbers = [claim.number]
    for _ in range(2):
        ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER)
        assert isinstance(ledger.queue(claim.run_id, actor=ANA), Recorded)
        manual_clock.advance(1)
        claim = run_again(ledger, claim.run_id)
        numbers.append(claim.number)
    assert numbers == [1, 2, 3]
    view = ledger.run(claim.run_id)
    assert [(item.number, item.status.value) for item in view.attempts] == [
        (1, "failed"),
        (2, "failed"),
        (3, "running"),
    ]
    assert view.active_attempt == view.attempts[2]
    assert ledger.verify().clean


def test_a_manual_retry_is_a_new_run_that_names_the_old_one(ledger: Ledger) -> None:
    first = finished(ledger).run_id
    second = created(ledger, retry_of_run_id=first)
    assert ledger.run(second).retry_of_run_id == first
    assert ledger.run(first).version == 9
    with unchanged(ledger), pytest.raises(RunNotFound):
        created(ledger, retry_of_run_id="01900000-0000-7000-8000-00000000dead")


def test_what_cannot_be_stored_is_refused_at_the_edge(ledger: Ledger) -> None:
    wrong: list[dict[str, object]] = [
        {"task": ""},
        {"task": "x" * 201},
        {"task": "a\nb"},
        {"project": ""},
        {"project": "a\x00"},
        {"idempotency_key": "x" * 201},
        {"timeout_ms": 0},
        {"deadline_at_ms": -1},
        {"correlation_id": "\ud800"},
    ]
    with unchanged(ledger):
        for options in wrong:
            with pytest.raises(InvalidValue):
                created(ledger, **options)

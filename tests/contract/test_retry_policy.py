"""A failed Attempt is tried again as the Run's policy says, when it is due, not while its group may live (R12.1)."""

from __future__ import annotations

from typing import Any

import pytest

from runfacts import (
    AttemptStatus,
    Claimed,
    Finished,
    InvalidValue,
    Ledger,
    NotClaimable,
    NotQueued,
    Outcome,
    Recorded,
    Refusal,
    RetryPolicy,
    RunStatus,
    Safety,
)
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptFailed,
    AttemptLost,
    RunCreated,
    RunDispatching,
    RunLost,
    RunQueued,
    RunRetryWait,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from stages import ANA, WORKER, created, finished, queued, run_again, running, types, unchanged

FAILED = Outcome.failed(exit_code=1)
TWICE = RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=1_000)


def test_a_failure_waits_for_its_retry(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = running(ledger, policy=TWICE)
    manual_clock.advance(500)
    answer = ledger.finish(claim, FAILED, actor=WORKER)
    assert answer == Finished(RunStatus.RETRY_WAIT, AttemptStatus.FAILED, 9, EPOCH_MS + 1_500)
    failed, waits = ledger.history(claim.run_id)[-2:]
    assert failed.payload == AttemptFailed(exit_code=1)
    assert waits.payload == RunRetryWait(due_at_ms=EPOCH_MS + 1_500)
    view = ledger.run(claim.run_id)
    assert (view.retry_due_at_ms, view.finished_at_ms, view.active_attempt) == (EPOCH_MS + 1_500, None, None)
    assert ledger.verify().clean


def test_a_retry_is_queued_when_it_is_due_and_not_a_millisecond_before(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    run_id = finished(ledger, FAILED, policy=TWICE).run_id
    manual_clock.advance(999)
    with unchanged(ledger):
        assert ledger.queue(run_id, actor=ANA) == NotQueued(run_id, RunStatus.RETRY_WAIT, Refusal.NOT_DUE)
        early = ledger.claim(run_id, actor=WORKER, executor_type="batch")
        assert early == NotClaimable(run_id, RunStatus.RETRY_WAIT, Refusal.NOT_QUEUED)
    manual_clock.advance(1)
    answer = ledger.queue(run_id, actor=ANA)
    assert isinstance(answer, Recorded)
    assert ledger.run(run_id).retry_due_at_ms is None
    claim = ledger.claim(run_id, actor=WORKER, executor_type="batch")
    assert isinstance(claim, Claimed)
    assert claim.claim.number == 2


def test_the_database_decides_what_is_due_where_it_has_a_clock(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = finished(ledger, FAILED, policy=TWICE).run_id
    manual_clock.jump_wall(1_000)
    manual_clock.jump_database(1_000)
    assert isinstance(ledger.queue(run_id, actor=ANA), Recorded)


def test_the_budget_is_spent_at_the_last_attempt(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = finished(ledger, FAILED, policy=TWICE).run_id
    manual_clock.advance(1_000)
    ledger.queue(run_id, actor=ANA)
    answer = ledger.finish(run_again(ledger, run_id), FAILED, actor=WORKER)
    assert answer == Finished(RunStatus.FAILED, AttemptStatus.FAILED, 17, None)
    assert ledger.verify().clean


def test_the_wait_doubles_up_to_its_bound(ledger: Ledger, manual_clock: ManualClock) -> None:
    policy = RetryPolicy(max_attempts=5, retry_on_failure=True, backoff_ms=1_000, backoff_max_ms=3_000)
    run_id = queued(ledger, policy=policy)
    waits = []
    for _ in range(4):
        answer = ledger.finish(run_again(ledger, run_id), FAILED, actor=WORKER)
        assert isinstance(answer, Finished)
        assert answer.retry_due_at_ms is not None
        waits.append(answer.retry_due_at_ms - manual_clock.wall_ms())
        manual_clock.advance(waits[-1])
        ledger.queue(run_id, actor=ANA)
    assert waits == [1_000, 2_000, 3_000, 3_000]


@pytest.mark.parametrize(
    ("policy", "outcome", "status"),
    [
        (RetryPolicy(), FAILED, "failed"),
        (RetryPolicy(max_attempts=2), FAILED, "failed"),
        (RetryPolicy(max_attempts=1, retry_on_failure=True), FAILED, "failed"),
        (TWICE, Outcome.succeeded(), "succeeded"),
        (TWICE, Outcome.cancelled(signal=15), "cancelled"),
        (TWICE, Outcome.timed_out(signal=9), "timed_out"),
    ],
)
def test_nothing_else_is_tried_again(ledger: Ledger, policy: RetryPolicy, outcome: Outcome, status: str) -> None:
    claim = finished(ledger, outcome, policy=policy)
    assert types(ledger, claim.run_id)[-2:] == [f"attempt.{status}", f"run.{status}"]


def test_a_run_whose_group_may_live_is_not_queued(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = running(ledger, policy=TWICE)
    ledger.finish(claim, FAILED, actor=WORKER, group_left=True)
    assert ledger.history(claim.run_id)[-1].payload == RunRetryWait(due_at_ms=EPOCH_MS + 1_000, group_left=True)
    with unchanged(ledger):
        early = ledger.queue(claim.run_id, actor=ANA)
        manual_clock.advance(1_000)
        due = ledger.queue(claim.run_id, actor=ANA)
    assert early == NotQueued(claim.run_id, RunStatus.RETRY_WAIT, Refusal.NOT_DUE)
    assert due == NotQueued(claim.run_id, RunStatus.RETRY_WAIT, Refusal.GROUP_LIVES)


def test_a_lost_run_is_not_queued_by_hand(ledger: Ledger) -> None:
    run = given_in(
        ledger,
        RunCreated(task="report", policy=TWICE),
        RunQueued(),
        RunDispatching(number=1),
        AttemptClaimed(number=1, executor_type="batch"),
        AttemptLost(evidence=Evidence.PRE_START),
        RunLost(evidence=Evidence.PRE_START),
    )
    with unchanged(ledger):
        assert isinstance(ledger.queue(run.run_id, actor=ANA), NotQueued)
    assert ledger.verify().clean


def test_the_policy_is_frozen_with_the_run(ledger: Ledger) -> None:
    policy = RetryPolicy(16, retry_on_failure=True, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=0)
    run_id = created(ledger, policy=policy)
    assert ledger.run(run_id).policy == policy
    payload = ledger.history(run_id)[0].payload
    assert payload == RunCreated(task="report", policy=policy)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 17}, "max_attempts"),
        ({"retry_on_lost": True}, "retry_on_lost"),
        ({"backoff_ms": -1}, "backoff_ms"),
        ({"backoff_max_ms": 86_400_001}, "backoff_max_ms"),
        ({"safety": "perhaps"}, "safety"),
    ],
)
def test_a_policy_out_of_its_bounds_is_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        RetryPolicy(**fields)
    assert caught.value.name == name

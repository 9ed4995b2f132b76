"""A fact's time is the later of now, as the database has it, and the Run's previous fact's (R3.4, R5.1)."""

from __future__ import annotations

from runfacts import Finished, Ledger, Outcome, RetryPolicy
from runfacts.testing.clock import EPOCH_MS, ManualClock
from stages import ANA, WORKER, claim_of, created, finished, one_writer, queued, run_again


def times(ledger: Ledger, run_id: str) -> list[int]:
    return [fact.recorded_at_ms - EPOCH_MS for fact in ledger.history(run_id)]


def test_the_facts_of_one_command_have_one_time(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = created(ledger)
    manual_clock.advance(3)
    ledger.queue(run_id, actor=ANA)
    manual_clock.advance(4)
    claim_of(ledger, run_id)
    assert times(ledger, run_id) == [0, 3, 7, 7]


def test_a_clock_that_steps_back_does_not_take_a_run_back(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = created(ledger)
    manual_clock.jump_wall(-1_000)
    manual_clock.jump_database(-1_000)
    ledger.queue(run_id, actor=ANA)
    manual_clock.advance(999)
    claim_of(ledger, run_id)
    assert times(ledger, run_id) == [0, 0, 0, 0]
    manual_clock.advance(2)
    ledger.claim(created(ledger), actor=WORKER, executor_type="batch")
    assert ledger.verify().clean


def test_other_runs_are_recorded_at_the_time_that_is(ledger: Ledger, manual_clock: ManualClock) -> None:
    created(ledger)
    manual_clock.jump_wall(-1_000)
    manual_clock.jump_database(-1_000)
    assert times(ledger, created(ledger)) == [-1_000]


def test_the_databases_time_is_recorded_where_it_has_one(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = created(ledger)
    manual_clock.jump_wall(500)
    ledger.queue(run_id, actor=ANA)
    manual_clock.jump_database(20)
    claim_of(ledger, run_id)
    assert times(ledger, run_id) == ([0, 500, 500, 500] if one_writer(ledger) else [0, 0, 20, 20])


def test_a_retry_is_due_after_the_failure_that_it_follows(ledger: Ledger, manual_clock: ManualClock) -> None:
    policy = RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=1_000)
    run_id = queued(ledger, policy=policy)
    claim = run_again(ledger, run_id)
    manual_clock.jump_wall(-10_000)
    manual_clock.jump_database(-10_000)
    answer = ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER)
    assert isinstance(answer, Finished)
    assert answer.retry_due_at_ms == EPOCH_MS + 1_000


def test_current_state_has_the_times_of_the_facts(ledger: Ledger, manual_clock: ManualClock) -> None:
    manual_clock.advance(1)
    claim = finished(ledger)
    manual_clock.jump_wall(-50)
    manual_clock.jump_database(-50)
    ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER)
    view = ledger.run(claim.run_id)
    assert (view.created_at_ms, view.updated_at_ms, view.finished_at_ms) == (EPOCH_MS + 1,) * 3
    assert times(ledger, claim.run_id) == [1] * 10

"""What a ledger measures, on every database (R7.7, R3.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from deliveries import (
    LEASE_MS,
    ONE,
    OPERATOR,
    TWO,
    asked_to_stop,
    brought_to,
    claim_answer,
    held_by,
    settled_with,
)
from measured import Measured
from runfacts import Finished, Ledger, Outcome, StopNotProven, TokenRefused
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.measures import (
    CLAIMS,
    CYCLE_COUNTS,
    CYCLE_DURATION,
    MEASURES,
    QUEUE_DEPTH,
    QUEUE_OLDEST_AGE,
    REFUSALS,
    REQUEST_TO_SIGNAL,
    REQUEST_TO_STOP,
    SETTLES,
)
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, queued
from stoppers import Stopper


@pytest.fixture
def measured() -> Iterator[Measured]:
    """Measures in memory."""
    measured = Measured()
    yield measured
    measured.close()


@pytest.fixture
def ledger(ledger_factory: ThrowAwayLedgers, measured: Measured) -> Ledger:
    """A ledger that measures."""
    return ledger_factory(measures=measured.measures)


def test_claims_are_counted_by_answer_and_settles_by_result(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    claim_answer(ledger, replace(asked, requested_at_ms=1))
    held_by(ledger, asked, ONE)
    claim_answer(ledger, asked, TWO)
    manual_clock.advance(LEASE_MS)
    settled_with(ledger, asked, DispatchResult.ALREADY_EXITED, TWO)
    claim_answer(ledger, asked, ONE)
    assert measured.counts(CLAIMS) == {
        "not_eligible": 1,
        "claimed": 1,
        "leased": 1,
        "taken_over": 1,
        "dispatched": 1,
    }
    assert measured.counts(SETTLES) == {"already_exited": 1}


def test_what_is_fenced_or_has_a_wrong_token_is_counted_and_no_settle(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    old = held_by(ledger, asked, ONE)
    manual_clock.advance(LEASE_MS)
    new = held_by(ledger, asked, TWO)
    ledger.settle_dispatch(old, DispatchResult.TERMINATION_REQUESTED)
    ledger.settle_dispatch(new, DispatchResult.TERMINATION_REQUESTED)
    # The very same again is no refusal; another result of the same term is.
    ledger.settle_dispatch(new, DispatchResult.TERMINATION_REQUESTED)
    ledger.settle_dispatch(new, DispatchResult.DISPATCH_ERROR)
    with pytest.raises(TokenRefused):
        ledger.go_on(replace(asked.claim, callback_token="rft_wrong"), actor=WORKER)
    with pytest.raises(TokenRefused):
        ledger.renew(replace(asked.claim, lease_token="rft_wrong"))
    assert measured.counts(REFUSALS) == ledger.refused == {"dispatch_term": 2, "token": 2}
    assert measured.counts(SETTLES) == {"termination_requested": 1}


def test_the_time_to_the_signal_is_the_databases_up_to_the_claim(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    asked_to_stop(ledger)
    manual_clock.advance(60_000)
    ledger.supervise(controllers=[Stopper()], local=False).cycle()
    total, count = measured.sum_and_count(REQUEST_TO_SIGNAL)
    assert count == 1
    # What real time the test itself took from the claim to the signal comes on top.
    assert 60_000 <= total < 90_000


def test_a_stop_is_timed_once_it_is_proven(ledger: Ledger, measured: Measured, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(1_500)
    assert isinstance(
        ledger.finish(asked.claim, Outcome.failed(signal=15), actor=WORKER, group_left=True), StopNotProven
    )
    assert measured.sum_and_count(REQUEST_TO_STOP) == (0, 0)
    manual_clock.advance(500)
    assert isinstance(ledger.finish(asked.claim, Outcome.failed(signal=15), actor=WORKER), Finished)
    assert measured.sum_and_count(REQUEST_TO_STOP) == (2_000, 1)
    manual_clock.advance(500)
    ledger.finish(asked.claim, Outcome.failed(signal=9), actor=WORKER, sequence=9)
    assert measured.sum_and_count(REQUEST_TO_STOP) == (2_000, 1)


def test_neither_a_run_with_nothing_to_stop_nor_an_operators_word_nor_an_own_end_is_a_proven_stop(
    ledger: Ledger, measured: Measured
) -> None:
    ledger.request_cancellation(queued(ledger), actor=ANA)
    asked = asked_to_stop(ledger)
    version = ledger.run(asked.run_id).version
    ledger.confirm_stopped(asked.run_id, actor=OPERATOR, because="the machine is scrap", version=version)
    ledger.finish(brought_to(ledger, "running"), Outcome.succeeded(exit_code=0), actor=WORKER)
    assert measured.sum_and_count(REQUEST_TO_STOP) == (0, 0)


def test_the_queue_is_told_as_it_is_by_status(
    ledger_factory: ThrowAwayLedgers, measured: Measured, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(measures=measured.measures, execution_lease_ms=600_000)
    assert measured.counts(QUEUE_DEPTH) == {}
    asked_to_stop(ledger)
    manual_clock.advance(10)
    asked_to_stop(ledger)
    held_by(ledger, asked_to_stop(ledger))
    settled_with(ledger, asked_to_stop(ledger), DispatchResult.DISPATCH_ERROR)
    settled_with(ledger, asked_to_stop(ledger), DispatchResult.TERMINATION_REQUESTED)
    settled_with(ledger, asked_to_stop(ledger), DispatchResult.INVALID)
    abandoned = asked_to_stop(ledger)
    ledger.abandon(abandoned.run_id, actor=OPERATOR, because="the machine is scrap", version=0)
    ended = asked_to_stop(ledger)
    settled_with(ledger, ended, DispatchResult.NOT_PERMITTED)
    ledger.finish(ended.claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    brought_to(ledger, "running")
    manual_clock.advance(5)
    assert measured.counts(QUEUE_DEPTH) == {
        "pending": 2,
        "leased": 1,
        "retry_wait": 1,
        "dispatched": 1,
        "blocked": 1,
        "abandoned": 1,
    }
    assert measured.counts(QUEUE_OLDEST_AGE) == {
        "pending": 15,
        "leased": 5,
        "retry_wait": 5,
        "dispatched": 5,
        "blocked": 5,
        "abandoned": 5,
    }


def test_a_closed_ledger_is_not_measured_any_more(ledger: Ledger, measured: Measured) -> None:
    asked_to_stop(ledger)
    ledger.close()
    assert measured.points(QUEUE_DEPTH) == []


def test_the_parts_of_a_cycle_are_counted_and_timed(ledger: Ledger, measured: Measured) -> None:
    asked_to_stop(ledger)
    worker = ledger.supervise(controllers=[Stopper()], local=False)
    worker.cycle()
    worker.cycle()
    assert {point.attributes["part"]: point.count for point in measured.points(CYCLE_DURATION)} == {
        "deadlines": 2,
        "cancellation": 2,
        "recovery": 2,
        "stop": 2,
        "retry": 2,
        "projections": 2,
    }
    assert {
        (point.attributes["part"], point.attributes["counter"]): point.value for point in measured.points(CYCLE_COUNTS)
    } == {
        ("cancellation", "seen"): 1,
        ("cancellation", "claimed"): 1,
        ("cancellation", "termination_requested"): 1,
        # Eight facts of a Run that was asked to stop, and the delivery, in two projections.
        ("projections", "seen"): 18,
        ("projections", "projected"): 18,
    }


def test_no_label_has_an_id_a_handle_a_process_number_or_a_text(ledger: Ledger, measured: Measured) -> None:
    told = [
        asked_to_stop(ledger, project="secret-project", task="secret task"),
        asked_to_stop(ledger, project="secret-project"),
    ]
    ledger.abandon(told[1].run_id, actor=OPERATOR, because="secret reason", version=0)
    ledger.supervise(controllers=[Stopper()], local=False).cycle()
    with pytest.raises(TokenRefused):
        ledger.renew(replace(told[0].claim, lease_token="rft_wrong"))
    ledger.finish(told[0].claim, Outcome.failed(exit_code=77, error_summary="secret words"), actor=WORKER)
    closed = {measure.name: measure.labels for measure in MEASURES}
    seen: set[str] = set()
    for metric in measured.metrics():
        for point in metric.data.data_points:
            for label, value in (point.attributes or {}).items():
                assert value in closed[metric.name][label], (metric.name, label)
                seen.add(str(value))
    assert {"claimed", "termination_requested", "token", "abandoned", "cancellation"} <= seen
    # Not even one of the closed values is something that was chosen by somebody here.
    assert seen.isdisjoint({"batch", "here", "handle-1", "4711", ONE, WORKER.id, told[0].run_id, told[0].attempt_id})

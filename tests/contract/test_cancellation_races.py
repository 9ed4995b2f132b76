"""
Cancellation and its rivals at once, on real connections: whichever commits first wins, and nobody is lost.

R4.3, R4.4, R6.1, R6.3, R6.4, R7.2, R7.4, R7.6. Who joins no caller's transaction is held right before its commit
instead: on SQLite it then has the one writer's place, on PostgreSQL it has decided and not yet written.
"""

from __future__ import annotations

import pytest

from deliveries import (
    LEASE_MS,
    ONE,
    OPERATOR,
    TWO,
    Asked,
    asked_to_stop,
    brought_to,
    claim_answer,
    dispatch_of,
    due_runs,
    held_by,
    settled_with,
    stored,
)
from every_command import ASKED, RUNNING
from racing import crowd, overtake, race
from runfacts import (
    AttemptStatus,
    Claimed,
    Finished,
    Ledger,
    NotClaimable,
    Outcome,
    RunStatus,
    RunVersionConflict,
    Started,
    StartRefused,
)
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.operators import StopConfirmed
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import (
    AlreadyRequested,
    AlreadyTerminal,
    CancelRequested,
    DispatchAlreadySettled,
    DispatchClaimed,
    DispatchFenced,
    DispatchNotClaimed,
    DispatchSettled,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, claimed, one_writer, queued, types

REQUESTED = DispatchResult.TERMINATION_REQUESTED


def test_of_two_claims_of_one_delivery_one_is_granted(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory()
    asked = asked_to_stop(ledger)
    slow, fast = overtake(
        ledger_factory, lambda one: claim_answer(one, asked, ONE), lambda two: claim_answer(two, asked, TWO)
    )
    winner, loser = (slow, fast) if one_writer(ledger) else (fast, slow)
    assert isinstance(winner, DispatchClaimed)
    assert loser == DispatchNotClaimed(asked.run_id, ClaimAnswer.LEASED)
    assert stored(ledger, asked, "version", "dispatch_count", "lease_owner") == (1, 1, winner.owner)


def test_of_two_take_overs_one_is_granted(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    ledger = ledger_factory()
    asked = asked_to_stop(ledger)
    held_by(ledger, asked, "worker-0")
    manual_clock.advance(LEASE_MS)
    slow, fast = overtake(
        ledger_factory, lambda one: claim_answer(one, asked, ONE), lambda two: claim_answer(two, asked, TWO)
    )
    winner, loser = (slow, fast) if one_writer(ledger) else (fast, slow)
    assert isinstance(winner, DispatchClaimed)
    assert winner.taken_over
    assert loser == DispatchNotClaimed(asked.run_id, ClaimAnswer.LEASED)
    assert types(ledger, asked.run_id)[8:] == ["run.cancel_dispatch_taken_over"]


@pytest.mark.parametrize("stage", ["leased", "waiting"])
def test_what_was_begun_since_the_time_was_read_is_no_clock_that_stepped_back(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock, stage: str
) -> None:
    longest_ms, day_ms = 300_000, 86_400_000
    ledger = ledger_factory()
    asked = asked_to_stop(ledger)
    if stage == "waiting":
        settled_with(ledger, asked, DispatchResult.IDENTITY_MISMATCH)

    def begin(other: Ledger) -> object:
        # Ends later than the bound from the moment that the slow one has read (R5.3).
        manual_clock.advance(1)
        if stage == "leased":
            return claim_answer(other, asked, TWO, lease_ms=longest_ms)
        return other.rearm(asked.run_id, actor=OPERATOR, because="mended", version=2, delay_ms=day_ms)

    slow, _ = overtake(
        ledger_factory, lambda one: claim_answer(one, asked, ONE), begin, step="sql:before:select_dispatch_to_claim"
    )
    if one_writer(ledger):
        assert isinstance(slow, DispatchClaimed if stage == "leased" else DispatchNotClaimed)
    else:
        answer = ClaimAnswer.LEASED if stage == "leased" else ClaimAnswer.NOT_DUE
        assert slow == DispatchNotClaimed(asked.run_id, answer)
        assert stored(ledger, asked, "version") == ((1,) if stage == "leased" else (3,))


def six_of(ledgers: ThrowAwayLedgers, *, shared: bool) -> list[Ledger]:
    """Six threads' ledgers: one that they share, or one for each."""
    return [ledgers()] * 6 if shared else [ledgers() for _ in range(6)]


@pytest.mark.parametrize("shared", [True, False])
def test_a_crowd_gets_one_lease(ledger_factory: ThrowAwayLedgers, *, shared: bool) -> None:
    ledger = ledger_factory()
    asked = asked_to_stop(ledger)
    answers = crowd(six_of(ledger_factory, shared=shared), lambda each: claim_answer(each, asked))
    (held,) = [answer for answer in answers if isinstance(answer, DispatchClaimed)]
    others = [answer for answer in answers if answer is not held]
    assert others == [DispatchNotClaimed(asked.run_id, ClaimAnswer.LEASED)] * 5
    settled = crowd(six_of(ledger_factory, shared=shared), lambda each: each.settle_dispatch(held, REQUESTED))
    names = sorted(type(answer).__name__ for answer in settled)
    assert names == ["DispatchAlreadySettled"] * 5 + ["DispatchSettled"]
    assert types(ledger, asked.run_id)[8:] == ["run.cancel_dispatched"]
    assert ledger.verify().clean


@pytest.mark.parametrize("commit", [True, False])
def test_a_claim_that_waits_for_the_end_of_the_run_is_not_granted(
    ledger_factory: ThrowAwayLedgers, *, commit: bool
) -> None:
    asked = asked_to_stop(ledger_factory())
    end, claim = race(
        ledger_factory,
        lambda ledger, caller: ledger.finish(asked.claim, Outcome.cancelled(), actor=WORKER, connection=caller),
        lambda ledger: claim_answer(ledger, asked),
        commit=commit,
    )
    assert isinstance(end, Finished)
    if commit:
        assert claim == DispatchNotClaimed(asked.run_id, ClaimAnswer.NOT_ELIGIBLE)
        assert stored(ledger_factory(), asked, "status", "due_at_ms") == ("pending", None)
    else:
        assert isinstance(claim, DispatchClaimed)


def test_an_end_that_overtakes_a_claim_takes_it_out_of_the_queue(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory()
    asked = asked_to_stop(ledger)
    claim, end = overtake(
        ledger_factory,
        lambda one: claim_answer(one, asked),
        lambda two: two.finish(asked.claim, Outcome.cancelled(), actor=WORKER),
    )
    assert isinstance(end, Finished)
    # On SQLite the claim was first, and its holder may still settle.
    assert isinstance(claim, DispatchClaimed) is one_writer(ledger)
    assert stored(ledger, asked, "due_at_ms") == (None,)
    assert due_runs(ledger) == []
    if isinstance(claim, DispatchClaimed):
        assert isinstance(ledger.settle_dispatch(claim, REQUESTED), DispatchSettled)


def test_an_end_that_overtakes_the_claim_that_makes_the_row_leaves_none(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory()
    asked = Asked(given_in(ledger, *RUNNING, ASKED).claim, EPOCH_MS)
    claim, end = overtake(
        ledger_factory,
        lambda one: claim_answer(one, asked, served=frozenset({("batch", "")})),
        lambda two: two.confirm_stopped(asked.run_id, actor=OPERATOR, because="saw it", version=8),
    )
    assert isinstance(end, StopConfirmed)
    if one_writer(ledger):
        assert isinstance(claim, DispatchClaimed)
        assert stored(ledger, asked, "status", "due_at_ms") == ("leased", None)
    else:
        assert claim == DispatchNotClaimed(asked.run_id, ClaimAnswer.NOT_ELIGIBLE)
        assert dispatch_of(ledger, asked.run_id) is None


def expired(ledger: Ledger, clock: ManualClock) -> tuple[Asked, DispatchClaimed]:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked, ONE)
    clock.advance(LEASE_MS)
    return asked, held


def test_a_settle_that_a_take_over_overtakes_is_fenced(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory()
    asked, held = expired(ledger, manual_clock)
    settle, claim = overtake(
        ledger_factory, lambda one: one.settle_dispatch(held, REQUESTED), lambda two: claim_answer(two, asked, TWO)
    )
    if one_writer(ledger):
        assert isinstance(settle, DispatchSettled)
        assert claim == DispatchNotClaimed(asked.run_id, ClaimAnswer.DISPATCHED)
    else:
        assert settle == DispatchFenced(asked.run_id)
        assert isinstance(claim, DispatchClaimed)
        assert types(ledger, asked.run_id)[8:] == ["run.cancel_dispatch_taken_over"]


def test_a_take_over_that_a_settle_overtakes_finds_it_dispatched(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory()
    asked, held = expired(ledger, manual_clock)
    claim, settle = overtake(
        ledger_factory, lambda one: claim_answer(one, asked, TWO), lambda two: two.settle_dispatch(held, REQUESTED)
    )
    if one_writer(ledger):
        assert isinstance(claim, DispatchClaimed)
        assert settle == DispatchFenced(asked.run_id)
    else:
        assert isinstance(settle, DispatchSettled)
        assert claim == DispatchNotClaimed(asked.run_id, ClaimAnswer.DISPATCHED)
        assert types(ledger, asked.run_id)[8:] == ["run.cancel_dispatched"]


def test_a_settle_that_its_own_repetition_overtakes_knows_itself(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory()
    held = held_by(ledger, asked_to_stop(ledger))
    # It has read the Run, and the dispatch not yet.
    slow, fast = overtake(
        ledger_factory,
        lambda one: one.settle_dispatch(held, REQUESTED),
        lambda two: two.settle_dispatch(held, REQUESTED),
        step="sql:before:select_dispatch",
    )
    settled, again = (slow, fast) if one_writer(ledger) else (fast, slow)
    assert isinstance(settled, DispatchSettled)
    assert again == DispatchAlreadySettled(held.target.run_id)


def test_a_settle_that_waits_for_the_end_of_the_run_is_recorded_after_it(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory()
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    end, settle = race(
        ledger_factory,
        lambda one, caller: one.finish(asked.claim, Outcome.cancelled(), actor=WORKER, connection=caller),
        lambda two: two.settle_dispatch(held, REQUESTED),
    )
    assert isinstance(end, Finished)
    assert isinstance(settle, DispatchSettled)
    assert types(ledger, asked.run_id)[8:] == ["attempt.cancelled", "run.cancelled", "run.cancel_dispatched"]
    assert stored(ledger, asked, "status", "due_at_ms") == ("dispatched", None)


def test_an_attempt_does_not_begin_once_the_request_is_first(ledger_factory: ThrowAwayLedgers) -> None:
    run_id = queued(ledger_factory())
    asked, claim = race(
        ledger_factory,
        lambda ledger, caller: ledger.request_cancellation(run_id, actor=ANA, connection=caller),
        lambda ledger: ledger.claim(run_id, actor=WORKER, executor_type="batch"),
    )
    assert isinstance(asked, CancelRequested)
    assert asked.ended
    assert isinstance(claim, NotClaimable)
    assert claim.status is RunStatus.CANCELLED
    assert ledger_factory().run(run_id).attempts == ()


def test_a_request_that_waits_for_a_claim_finds_the_attempt(ledger_factory: ThrowAwayLedgers) -> None:
    run_id = queued(ledger_factory())
    claim, asked = race(
        ledger_factory,
        lambda ledger, caller: ledger.claim(run_id, actor=WORKER, executor_type="batch", connection=caller),
        lambda ledger: ledger.request_cancellation(run_id, actor=ANA),
    )
    assert isinstance(claim, Claimed)
    assert isinstance(asked, CancelRequested)
    assert (asked.ended, asked.status) == (False, RunStatus.DISPATCHING)
    row = dispatch_of(ledger_factory(), run_id)
    assert row is not None
    assert row["attempt_id"] == claim.claim.attempt_id


def test_the_start_barrier_stays_shut_once_the_request_is_first(ledger_factory: ThrowAwayLedgers) -> None:
    held = claimed(ledger_factory())
    asked, start = race(
        ledger_factory,
        lambda ledger, caller: ledger.request_cancellation(held.run_id, actor=ANA, connection=caller),
        lambda ledger: ledger.start(held, actor=WORKER),
    )
    assert isinstance(asked, CancelRequested)
    assert isinstance(start, StartRefused)
    assert (start.run_status, start.attempt_status) == (RunStatus.CANCELLED, AttemptStatus.CANCELLED)


def test_a_request_that_waits_for_the_start_is_to_be_delivered(ledger_factory: ThrowAwayLedgers) -> None:
    held = brought_to(ledger_factory(), "claimed")
    start, asked = race(
        ledger_factory,
        lambda ledger, caller: ledger.start(held, actor=WORKER, connection=caller),
        lambda ledger: ledger.request_cancellation(held.run_id, actor=ANA),
    )
    assert isinstance(start, Started)
    assert isinstance(asked, CancelRequested)
    assert not asked.ended
    assert due_runs(ledger_factory()) == [held.run_id]


@pytest.mark.parametrize(("commit", "expected"), [(True, AlreadyRequested), (False, CancelRequested)])
def test_of_two_requests_one_is_recorded(
    ledger_factory: ThrowAwayLedgers, expected: type[object], *, commit: bool
) -> None:
    held = brought_to(ledger_factory(), "running")
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.request_cancellation(held.run_id, actor=ANA, connection=caller),
        lambda ledger: ledger.request_cancellation(held.run_id, actor=OPERATOR),
        commit=commit,
    )
    assert isinstance(one, CancelRequested)
    assert isinstance(two, expected)
    assert types(ledger_factory(), held.run_id).count("run.cancel_requested") == 1


def test_a_request_that_waits_for_the_end_comes_too_late(ledger_factory: ThrowAwayLedgers) -> None:
    held = brought_to(ledger_factory(), "running")
    end, asked = race(
        ledger_factory,
        lambda ledger, caller: ledger.finish(held, Outcome.succeeded(), actor=WORKER, connection=caller),
        lambda ledger: ledger.request_cancellation(held.run_id, actor=ANA),
    )
    assert isinstance(end, Finished)
    assert asked == AlreadyTerminal(held.run_id, RunStatus.SUCCEEDED)
    assert dispatch_of(ledger_factory(), held.run_id) is None


def test_an_operators_word_that_waits_for_the_report_hears_of_it(ledger_factory: ThrowAwayLedgers) -> None:
    asked = asked_to_stop(ledger_factory())
    end, verb = race(
        ledger_factory,
        lambda one, caller: one.finish(asked.claim, Outcome.cancelled(), actor=WORKER, connection=caller),
        lambda two: two.confirm_stopped(asked.run_id, actor=OPERATOR, because="saw it", version=8),
    )
    assert isinstance(end, Finished)
    assert isinstance(verb, RunVersionConflict)


@pytest.mark.parametrize("verb", ["rearm", "abandon"])
def test_a_crowd_of_operators_says_it_once(ledger_factory: ThrowAwayLedgers, verb: str) -> None:
    ledger = ledger_factory()
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, DispatchResult.IDENTITY_MISMATCH)
    answers = crowd(
        six_of(ledger_factory, shared=False),
        lambda each: getattr(each, verb)(asked.run_id, actor=OPERATOR, because="so be it", version=2),
    )
    assert len(set(answers)) == 1
    assert len(ledger.history(asked.run_id)) == 10
    assert ledger.verify().clean

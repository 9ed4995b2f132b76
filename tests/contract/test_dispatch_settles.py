"""
Settling a delivery: the row and one fact together, by the very term that holds it, or nothing at all.

R1.3, R3.5, R3.6, R7.4, R7.6, R7.7; cases C15 and C17.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from deliveries import (
    LEASE_MS,
    ONE,
    TWO,
    Asked,
    asked_to_stop,
    due_runs,
    held_by,
    last_fact,
    refused_as,
    stored,
)
from failing_database import failing
from runfacts import ActorType, AttemptStatus, InvalidValue, Ledger, Outcome, RunStatus
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.domain.cancellation.terms import (
    DispatchAlreadySettled,
    DispatchClaimed,
    DispatchFenced,
    DispatchSettled,
)
from runfacts.domain.payloads import Escalation
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import WORKER, types, unchanged

DELIVERED = ("termination_requested", "already_exited")
BLOCKED = (
    "identity_mismatch",
    "pid_mismatch",
    "unsupported",
    "invalid",
    "scope_mismatch",
    "group_survivors",
    "not_permitted",
)
FAILED = ("controller_missing", "handle_missing", "dispatch_error")
REQUESTED = DispatchResult.TERMINATION_REQUESTED


@pytest.mark.parametrize("result", DELIVERED)
@pytest.mark.parametrize("escalation", ["none", "term", "kill"])
def test_a_delivered_cancellation(ledger: Ledger, manual_clock: ManualClock, result: str, escalation: str) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    manual_clock.advance(40)
    answer = ledger.settle_dispatch(held, DispatchResult(result), escalation=Escalation(escalation))
    assert answer == DispatchSettled(asked.run_id, DispatchStatus.DISPATCHED, 2, None)
    said = {"attempt_id": asked.attempt_id, "dispatch_count": 1, "result": result, "escalation": escalation}
    assert last_fact(ledger, asked.run_id) == ("run.cancel_dispatched", said, f"cancel-dispatch:{asked.attempt_id}:1")
    columns = ("status", "version", "last_result", "last_dispatched_at_ms", "next_attempt_at_ms", "due_at_ms")
    assert stored(ledger, asked, *columns) == ("dispatched", 2, result, EPOCH_MS + 40, None, None)
    lease_is_gone_and_the_run_goes_on(ledger, asked)


@pytest.mark.parametrize("result", BLOCKED)
def test_a_blocked_one(ledger: Ledger, result: str) -> None:
    asked = asked_to_stop(ledger)
    answer = ledger.settle_dispatch(held_by(ledger, asked), DispatchResult(result))
    assert answer == DispatchSettled(asked.run_id, DispatchStatus.BLOCKED, 2, None)
    said = {"attempt_id": asked.attempt_id, "dispatch_count": 1, "result": result}
    expected = ("run.cancel_dispatch_blocked", said, f"cancel-dispatch:{asked.attempt_id}:1")
    assert last_fact(ledger, asked.run_id) == expected
    columns = ("status", "version", "last_result", "last_dispatched_at_ms", "next_attempt_at_ms", "due_at_ms")
    assert stored(ledger, asked, *columns) == ("blocked", 2, result, None, None, None)
    lease_is_gone_and_the_run_goes_on(ledger, asked)


@pytest.mark.parametrize("result", FAILED)
def test_a_failed_one_is_tried_again_later(ledger: Ledger, manual_clock: ManualClock, result: str) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    manual_clock.advance(40)
    answer = ledger.settle_dispatch(held, DispatchResult(result))
    # The first wait is the base, 1 s (R7.5, R15).
    due_at_ms = EPOCH_MS + 40 + 1_000
    assert answer == DispatchSettled(asked.run_id, DispatchStatus.RETRY_WAIT, 2, due_at_ms)
    said = {"attempt_id": asked.attempt_id, "dispatch_count": 1, "result": result}
    expected = ("run.cancel_dispatch_failed", said, f"cancel-dispatch:{asked.attempt_id}:1")
    assert last_fact(ledger, asked.run_id) == expected
    columns = ("status", "version", "last_result", "last_dispatched_at_ms", "next_attempt_at_ms", "due_at_ms")
    assert stored(ledger, asked, *columns) == ("retry_wait", 2, result, None, due_at_ms, due_at_ms)
    lease_is_gone_and_the_run_goes_on(ledger, asked)


def lease_is_gone_and_the_run_goes_on(ledger: Ledger, asked: Asked) -> None:
    """The row has no holder, the Run one fact more by the worker, and no other status (R6.2)."""
    lease = ("lease_owner", "lease_token_digest", "lease_expires_at_ms", "lease_boot_id", "lease_expires_boot_ms")
    assert stored(ledger, asked, *lease) == (None,) * 5
    view = ledger.run(asked.run_id)
    assert (view.status, view.attempts[0].status, view.version) == (RunStatus.RUNNING, AttemptStatus.RUNNING, 9)
    fact = ledger.history(asked.run_id)[-1]
    assert (fact.actor.type, fact.actor.id, fact.attempt_id) == (ActorType.SUPERVISOR, ONE, asked.attempt_id)
    assert ledger.verify().clean


@pytest.mark.parametrize("result", [DispatchResult.LIMIT, DispatchResult.ABANDONED])
def test_what_only_claims_and_operators_write_is_refused(ledger: Ledger, result: DispatchResult) -> None:
    held = held_by(ledger, asked_to_stop(ledger))
    with unchanged(ledger), pytest.raises(InvalidValue, match="result"):
        ledger.settle_dispatch(held, result)


@pytest.mark.parametrize("part", ["owner", "token", "version", "older version", "attempt"])
def test_a_term_that_differs_in_any_part_is_fenced_and_counted(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    other_target = replace(held.target, attempt_id="01890000-0000-7000-8000-000000000001")
    wrong = {
        "owner": replace(held, owner=TWO),
        "token": replace(held, token=held.token[:-1] + "!"),
        "version": replace(held, version=2),
        "older version": replace(held, version=0),
        "attempt": replace(held, target=other_target),
    }[part]
    with unchanged(ledger), caplog.at_level(logging.WARNING, "runfacts"):
        assert ledger.settle_dispatch(wrong, REQUESTED) == DispatchFenced(asked.run_id)
    assert ledger.refused == {"dispatch_term": 1}
    assert caplog.messages == [f"refused a dispatch_term for attempt {wrong.target.attempt_id}"]
    # And the holder itself is not disturbed.
    assert isinstance(ledger.settle_dispatch(held, REQUESTED), DispatchSettled)


@pytest.mark.parametrize("result", [REQUESTED, DispatchResult.IDENTITY_MISMATCH, DispatchResult.DISPATCH_ERROR])
def test_c17_the_old_holder_changes_nothing_after_a_take_over(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock, result: DispatchResult
) -> None:
    one, two = ledger_factory(), ledger_factory()
    asked = asked_to_stop(one)
    late = held_by(one, asked, ONE)
    manual_clock.advance(LEASE_MS)
    held = held_by(two, asked, TWO)
    with unchanged(two):
        assert one.settle_dispatch(late, result) == DispatchFenced(asked.run_id)
    assert one.refused == {"dispatch_term": 1}
    assert isinstance(two.settle_dispatch(held, DispatchResult.ALREADY_EXITED), DispatchSettled)
    with unchanged(two):
        # Nor after it, and not by saying the same.
        assert one.settle_dispatch(late, result) == DispatchFenced(asked.run_id)
        assert one.settle_dispatch(late, DispatchResult.ALREADY_EXITED) == DispatchFenced(asked.run_id)
    assert types(two, asked.run_id)[8:] == ["run.cancel_dispatch_taken_over", "run.cancel_dispatched"]
    assert two.verify().clean


def test_a_term_of_the_same_owner_is_another_term(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    late = held_by(ledger, asked)
    manual_clock.advance(LEASE_MS)
    held = held_by(ledger, asked)
    with unchanged(ledger):
        assert ledger.settle_dispatch(late, REQUESTED) == DispatchFenced(asked.run_id)
        assert ledger.settle_dispatch(replace(held, token=late.token), REQUESTED) == DispatchFenced(asked.run_id)
    assert isinstance(ledger.settle_dispatch(held, REQUESTED), DispatchSettled)


def test_a_lease_that_expired_and_was_not_taken_over_still_settles(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    manual_clock.advance(10 * LEASE_MS)
    manual_clock.reboot()
    assert isinstance(ledger.settle_dispatch(held, REQUESTED), DispatchSettled)
    assert refused_as(ledger, asked, TWO) is ClaimAnswer.DISPATCHED


def test_the_same_result_again_is_settled_already_and_another_is_fenced(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    ledger.settle_dispatch(held, DispatchResult.DISPATCH_ERROR)
    with unchanged(ledger):
        again = ledger.settle_dispatch(held, DispatchResult.DISPATCH_ERROR)
        assert again == DispatchAlreadySettled(asked.run_id)
        assert ledger.settle_dispatch(held, REQUESTED) == DispatchFenced(asked.run_id)
    assert ledger.refused == {"dispatch_term": 1}


def test_a_repeat_is_known_after_the_next_term_has_begun(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    ledger.settle_dispatch(held, DispatchResult.DISPATCH_ERROR)
    manual_clock.advance(1_000)
    held_by(ledger, asked, TWO)
    with unchanged(ledger):
        again = ledger.settle_dispatch(held, DispatchResult.DISPATCH_ERROR)
        assert again == DispatchAlreadySettled(asked.run_id)
        assert ledger.settle_dispatch(held, REQUESTED) == DispatchFenced(asked.run_id)


@pytest.mark.parametrize(
    ("result", "status", "fact"),
    [
        (REQUESTED, "dispatched", "run.cancel_dispatched"),
        (DispatchResult.IDENTITY_MISMATCH, "blocked", "run.cancel_dispatch_blocked"),
        (DispatchResult.DISPATCH_ERROR, "retry_wait", "run.cancel_dispatch_failed"),
    ],
)
def test_the_holder_settles_also_when_the_run_has_ended_meanwhile(
    ledger: Ledger, manual_clock: ManualClock, result: DispatchResult, status: str, fact: str
) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    answer = ledger.settle_dispatch(held, result)
    assert isinstance(answer, DispatchSettled)
    assert answer.status.value == status
    view = ledger.run(asked.run_id)
    assert (view.status, view.version) == (RunStatus.CANCELLED, 11)
    assert types(ledger, asked.run_id)[8:] == ["attempt.cancelled", "run.cancelled", fact]
    # The row is history: nobody tries again (R7.6).
    assert stored(ledger, asked, "status", "due_at_ms") == (status, None)
    manual_clock.advance(3_600_000)
    assert due_runs(ledger) == []
    assert ledger.blocked().items == ()
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.NOT_ELIGIBLE
    assert ledger.verify().clean


@pytest.mark.parametrize(
    ("table", "operation", "fact_type"),
    [
        ("facts", "INSERT", "run.cancel_dispatched"),
        ("runs", "UPDATE", ""),
        ("cancellation_dispatches", "UPDATE", ""),
    ],
)
def test_c15_a_settle_that_fails_leaves_the_term_as_it_was(
    ledger: Ledger, manual_clock: ManualClock, table: str, operation: str, fact_type: str
) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    injected = pytest.raises(ledger.database.driver_error, match="injected")
    with unchanged(ledger), failing(ledger, table, operation, fact_type), injected:
        ledger.settle_dispatch(held, REQUESTED)
    assert stored(ledger, asked, "status", "version", "lease_owner") == ("leased", 1, ONE)
    # After the expiry it converges with one fact.
    manual_clock.advance(LEASE_MS)
    next_held = held_by(ledger, asked, TWO)
    assert isinstance(ledger.settle_dispatch(next_held, DispatchResult.ALREADY_EXITED), DispatchSettled)
    assert types(ledger, asked.run_id).count("run.cancel_dispatched") == 1
    assert ledger.verify().clean


def test_facts_of_others_between_claim_and_settle_are_no_fence(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    held: DispatchClaimed = held_by(ledger, asked)
    ledger.wait_for_approval(asked.claim, actor=WORKER)
    ledger.go_on(asked.claim, actor=WORKER)
    assert isinstance(ledger.settle_dispatch(held, REQUESTED), DispatchSettled)
    assert types(ledger, asked.run_id)[8:] == ["run.waiting_approval", "run.running", "run.cancel_dispatched"]
    assert ledger.verify().clean


def test_a_clock_that_steps_back_between_claim_and_settle_breaks_nothing(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    manual_clock.jump_wall(-3_600_000)
    manual_clock.jump_database(-3_600_000)
    assert isinstance(ledger.settle_dispatch(held, DispatchResult.DISPATCH_ERROR), DispatchSettled)
    # The wait is from the time that is now, and no longer than it should be.
    assert stored(ledger, asked, "next_attempt_at_ms") == (EPOCH_MS - 3_600_000 + 1_000,)
    manual_clock.advance(999)
    assert refused_as(ledger, asked) is ClaimAnswer.NOT_DUE
    manual_clock.advance(1)
    assert held_by(ledger, asked).dispatch_count == 2

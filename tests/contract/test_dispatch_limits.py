"""Trying again: waits that grow, are stored and outlast a restart, and an end to all tries (R5.3, R7.5, R15)."""

from __future__ import annotations

import pytest

from deliveries import (
    LEASE_MS,
    ONE,
    OPERATOR,
    TWO,
    asked_to_stop,
    due_runs,
    held_by,
    last_fact,
    refused_as,
    settled_with,
    stored,
)
from runfacts import ActorType
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import one_writer, types, unchanged

ERROR = DispatchResult.DISPATCH_ERROR
DAY = 86_400_000


def test_waits_double_up_to_the_longest(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    ledger = ledger_factory(backoff_base_ms=1_000, backoff_max_ms=5_000)
    asked = asked_to_stop(ledger)
    for tries, wait_ms in enumerate((1_000, 2_000, 4_000, 5_000, 5_000), start=1):
        answer = settled_with(ledger, asked, ERROR)
        now_ms = manual_clock.database_ms()
        assert answer.next_attempt_at_ms == now_ms + wait_ms
        assert stored(ledger, asked, "dispatch_count", "tries_since_rearm", "due_at_ms") == (
            tries,
            tries,
            now_ms + wait_ms,
        )
        manual_clock.advance(wait_ms - 1)
        with unchanged(ledger):
            assert refused_as(ledger, asked) is ClaimAnswer.NOT_DUE
            assert due_runs(ledger) == []
        manual_clock.advance(1)
        assert due_runs(ledger) == [asked.run_id]


def test_the_exponent_has_its_cap(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    ledger = ledger_factory(backoff_base_ms=100, backoff_max_ms=DAY, backoff_exponent_cap=1)
    asked = asked_to_stop(ledger)
    waits = []
    for _ in range(4):
        due_at_ms = settled_with(ledger, asked, ERROR).next_attempt_at_ms
        assert due_at_ms is not None
        waits.append(due_at_ms - manual_clock.database_ms())
        manual_clock.advance(waits[-1])
    assert waits == [100, 200, 200, 200]


def test_a_restart_forgets_no_wait(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    before = ledger_factory(backoff_base_ms=7_000)
    asked = asked_to_stop(before)
    settled_with(before, asked, ERROR)
    before.close()
    manual_clock.reboot()
    # Another base does not change what is stored.
    after = ledger_factory(backoff_base_ms=1)
    manual_clock.advance(6_999)
    with unchanged(after):
        assert refused_as(after, asked, TWO) is ClaimAnswer.NOT_DUE
    manual_clock.advance(1)
    assert held_by(after, asked, TWO).dispatch_count == 2


def test_a_wait_further_ahead_than_any_may_be_is_over(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(backoff_base_ms=1_000)
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, ERROR)
    # The clock that judges steps back: exactly 24 h ahead is waited for, a millisecond more is not (R5.3).
    jump = manual_clock.jump_wall if one_writer(ledger) else manual_clock.jump_database
    jump(1_000 - DAY)
    with unchanged(ledger):
        assert refused_as(ledger, asked) is ClaimAnswer.NOT_DUE
        assert due_runs(ledger) == []
    jump(-1)
    assert due_runs(ledger) == [asked.run_id]
    held_by(ledger, asked)


def test_the_claim_that_would_be_one_too_many_blocks_instead(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(dispatch_limit=2)
    asked = asked_to_stop(ledger)
    for _ in range(2):
        settled_with(ledger, asked, ERROR)
        manual_clock.advance(60_000)
    version = ledger.run(asked.run_id).version
    assert refused_as(ledger, asked, TWO) is ClaimAnswer.BLOCKED
    said = {"attempt_id": asked.attempt_id, "dispatch_count": 2, "result": "limit"}
    expected = ("run.cancel_dispatch_blocked", said, f"cancel-limit:{asked.attempt_id}:2")
    assert last_fact(ledger, asked.run_id) == expected
    fact = ledger.history(asked.run_id)[-1]
    assert (fact.sequence, fact.actor.type, fact.actor.id) == (version + 1, ActorType.SUPERVISOR, TWO)
    columns = ("status", "version", "dispatch_count", "tries_since_rearm", "last_result", "due_at_ms", "lease_owner")
    assert stored(ledger, asked, *columns) == ("blocked", 5, 2, 2, "limit", None, None)
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.BLOCKED
        assert due_runs(ledger) == []
    (item,) = ledger.blocked().items
    assert (item.run_id, item.reason, item.version) == (asked.run_id, "limit", 5)
    assert ledger.verify().clean


def test_a_row_that_kills_its_workers_ends_too(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    ledger = ledger_factory(dispatch_limit=3)
    asked = asked_to_stop(ledger)
    for number in range(1, 4):
        held_by(ledger, asked, f"worker-{number}")  # and dies
        manual_clock.advance(LEASE_MS)
    assert due_runs(ledger) == [asked.run_id]
    assert refused_as(ledger, asked, "worker-4") is ClaimAnswer.BLOCKED
    assert stored(ledger, asked, "status", "dispatch_count", "last_result", "lease_owner", "lease_token_digest") == (
        "blocked",
        3,
        "limit",
        None,
        None,
    )
    assert types(ledger, asked.run_id)[8:] == [
        "run.cancel_dispatch_taken_over",
        "run.cancel_dispatch_taken_over",
        "run.cancel_dispatch_blocked",
    ]
    assert ledger.verify().clean


def test_the_last_holder_may_not_settle_what_the_limit_has_blocked(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(dispatch_limit=1)
    asked = asked_to_stop(ledger)
    late = held_by(ledger, asked)
    manual_clock.advance(LEASE_MS)
    assert refused_as(ledger, asked, TWO) is ClaimAnswer.BLOCKED
    with unchanged(ledger):
        answer = ledger.settle_dispatch(late, DispatchResult.TERMINATION_REQUESTED)
    assert type(answer).__name__ == "DispatchFenced"


def test_while_the_last_lease_is_valid_the_limit_blocks_nothing(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory(dispatch_limit=1)
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED


def test_a_rearm_gives_new_tries_and_short_waits_and_the_count_goes_on(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(dispatch_limit=2)
    asked = asked_to_stop(ledger)
    for _ in range(2):
        settled_with(ledger, asked, ERROR)
        manual_clock.advance(60_000)
    refused_as(ledger, asked)
    ledger.rearm(asked.run_id, actor=OPERATOR, because="mended", version=5)
    manual_clock.advance(1_000)
    answer = settled_with(ledger, asked, ERROR, ONE)
    assert answer.next_attempt_at_ms == manual_clock.database_ms() + 1_000
    assert stored(ledger, asked, "dispatch_count", "tries_since_rearm") == (3, 1)
    assert last_fact(ledger, asked.run_id)[2] == f"cancel-dispatch:{asked.attempt_id}:3"
    manual_clock.advance(1_000)
    settled_with(ledger, asked, ERROR, ONE)
    manual_clock.advance(60_000)
    assert refused_as(ledger, asked) is ClaimAnswer.BLOCKED
    assert last_fact(ledger, asked.run_id)[2] == f"cancel-limit:{asked.attempt_id}:4"
    assert manual_clock.database_ms() > EPOCH_MS
    assert ledger.verify().clean


@pytest.mark.parametrize("limit", [1, 50])
def test_the_limit_counts_every_try(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock, limit: int) -> None:
    ledger = ledger_factory(dispatch_limit=limit, backoff_max_ms=1_000)
    asked = asked_to_stop(ledger)
    for _ in range(limit):
        settled_with(ledger, asked, ERROR)
        manual_clock.advance(1_000)
    assert refused_as(ledger, asked) is ClaimAnswer.BLOCKED
    assert types(ledger, asked.run_id).count("run.cancel_dispatch_failed") == limit

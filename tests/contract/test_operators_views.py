"""What people see of cancellations: on the board, at a Run, in the operators' queues (R6.2, R7.1, R13.1)."""

from __future__ import annotations

import pytest

from deliveries import OPERATOR, asked_to_stop, brought_to, held_by, settled_with, stored
from runfacts import BlockedDispatch, DispatchResult, DispatchStatus, DispatchView, InvalidCursor, Ledger, RunStatus
from runfacts.domain.cancellation.operators import DIAGNOSES
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, created


def on_the_board(ledger: Ledger) -> dict[str, DispatchStatus | None]:
    return {item.run_id: item.dispatch for item in ledger.runs().items}


def delivery(ledger: Ledger, run_id: str) -> DispatchView | None:
    cancellation = ledger.run(run_id).cancellation
    assert cancellation is not None
    return cancellation.dispatch


def test_the_board_says_where_each_delivery_stands(ledger: Ledger) -> None:
    nothing_asked = brought_to(ledger, "running").run_id
    nothing_to_deliver = created(ledger)
    ledger.request_cancellation(nothing_to_deliver, actor=ANA)
    waiting, held, done = asked_to_stop(ledger), asked_to_stop(ledger), asked_to_stop(ledger)
    held_by(ledger, held)
    settled_with(ledger, done, DispatchResult.TERMINATION_REQUESTED)
    assert on_the_board(ledger) == {
        nothing_asked: None,
        nothing_to_deliver: None,
        waiting.run_id: DispatchStatus.PENDING,
        held.run_id: DispatchStatus.LEASED,
        done.run_id: DispatchStatus.DISPATCHED,
    }


def test_the_boards_filters_and_pages_hold_with_deliveries_too(ledger: Ledger) -> None:
    asked = [asked_to_stop(ledger, project="a") for _ in range(3)]
    brought_to(ledger, "running", project="b")
    first = ledger.runs(project="a", status=RunStatus.RUNNING, limit=2)
    rest = ledger.runs(project="a", status=RunStatus.RUNNING, limit=2, after=first.next)
    assert [item.run_id for item in (*first.items, *rest.items)] == [one.run_id for one in asked[::-1]]
    assert rest.next is None


def test_a_run_shows_its_delivery_from_request_to_result(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    assert delivery(ledger, asked.run_id) == DispatchView(DispatchStatus.PENDING, 0, 0, None, None)
    manual_clock.advance(5)
    settled_with(ledger, asked, DispatchResult.HANDLE_MISSING)
    assert delivery(ledger, asked.run_id) == DispatchView(
        DispatchStatus.RETRY_WAIT, 2, 1, DispatchResult.HANDLE_MISSING, EPOCH_MS + 5 + 1_000
    )
    manual_clock.advance(1_000)
    settled_with(ledger, asked, DispatchResult.GROUP_SURVIVORS)
    assert delivery(ledger, asked.run_id) == DispatchView(
        DispatchStatus.BLOCKED, 4, 2, DispatchResult.GROUP_SURVIVORS, None
    )


def test_a_run_with_nothing_to_deliver_shows_none(ledger: Ledger) -> None:
    run_id = created(ledger)
    assert ledger.run(run_id).cancellation is None
    ledger.request_cancellation(run_id, actor=ANA)
    assert delivery(ledger, run_id) is None


def test_the_version_that_a_run_shows_is_what_the_verbs_take(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, DispatchResult.NOT_PERMITTED)
    shown = delivery(ledger, asked.run_id)
    (queued,) = ledger.blocked().items
    assert shown is not None
    assert shown.version == queued.version == 2
    rearmed = ledger.rearm(asked.run_id, actor=OPERATOR, because="stopped by hand", version=shown.version)
    shown = delivery(ledger, asked.run_id)
    assert shown is not None
    assert (shown.version, shown.status, shown.last_result, shown.next_attempt_at_ms) == (
        rearmed.version,
        DispatchStatus.RETRY_WAIT,
        DispatchResult.NOT_PERMITTED,
        rearmed.next_attempt_at_ms,
    )
    abandoned = ledger.abandon(asked.run_id, actor=OPERATOR, because="it is harmless", version=shown.version)
    shown = delivery(ledger, asked.run_id)
    assert shown == DispatchView(DispatchStatus.BLOCKED, abandoned.version, 1, DispatchResult.ABANDONED, None)


def test_the_blocked_come_first_by_age_then_those_that_nobody_serves(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(unserved_after_ms=60_000)
    unserved = asked_to_stop(ledger)
    older, younger = asked_to_stop(ledger), asked_to_stop(ledger)
    manual_clock.advance(10)
    settled_with(ledger, older, DispatchResult.INVALID)
    manual_clock.advance(10)
    settled_with(ledger, younger, DispatchResult.SCOPE_MISMATCH)
    assert [item.run_id for item in ledger.blocked().items] == [older.run_id, younger.run_id]
    manual_clock.advance(60_000)
    found = ledger.blocked().items
    assert [(item.run_id, item.attempt_id, item.reason, item.since_ms, item.version) for item in found] == [
        (older.run_id, older.attempt_id, "invalid", EPOCH_MS + 10, 2),
        (younger.run_id, younger.attempt_id, "scope_mismatch", EPOCH_MS + 20, 2),
        (unserved.run_id, unserved.attempt_id, "scope_unserved", EPOCH_MS, 0),
    ]
    assert [item.diagnosis for item in found] == [DIAGNOSES[item.reason] for item in found]
    pages: list[BlockedDispatch] = []
    after = None
    while True:
        page = ledger.blocked(limit=1, after=after)
        pages += page.items
        after = page.next
        if after is None:
            break
    assert tuple(pages) == found


def test_what_an_operator_abandoned_is_out_of_the_queue_and_still_unproven(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    ledger.abandon(asked.run_id, actor=OPERATOR, because="it is harmless", version=0)
    assert ledger.blocked().items == ()
    (item,) = ledger.unproven().items
    assert (item.run_id, item.reason) == (asked.run_id, "abandoned")


def test_unproven_says_how_far_each_stop_has_come(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = []
    for _ in range(4):
        asked.append(asked_to_stop(ledger))
        manual_clock.advance(1)
    _, held, signalled, confirmed = asked
    held_by(ledger, held)
    settled_with(ledger, signalled, DispatchResult.TERMINATION_REQUESTED)
    version = ledger.run(confirmed.run_id).version
    ledger.confirm_stopped(confirmed.run_id, actor=OPERATOR, because="the machine is scrap", version=version)
    never_started = asked_to_stop(ledger, "claimed")
    found = [(item.run_id, item.reason, item.version) for item in ledger.unproven().items]
    assert found == [
        (asked[0].run_id, "waiting", ledger.run(asked[0].run_id).version),
        (held.run_id, "delivering", ledger.run(held.run_id).version),
        (signalled.run_id, "signalled", ledger.run(signalled.run_id).version),
        (confirmed.run_id, "attested", ledger.run(confirmed.run_id).version),
    ]
    assert never_started.run_id not in {run_id for run_id, _, _ in found}
    assert stored(ledger, held, "status") == ("leased",)


def test_a_cursor_that_is_none_of_the_queues_is_refused(ledger: Ledger) -> None:
    run_id = created(ledger)
    places = [
        "5",
        "5:",
        ":",
        f"-1:{run_id}",
        f"{1 << 70}:{run_id}",
        f"{'9' * 5_000}:{run_id}",
        "5:no-id",
        "5:\x00",
        "5:\ud800",
    ]
    for cursor in ["", "x", f"x5:{run_id}", f"b x:{run_id}", *(f"{part}{place}" for part in "bu" for place in places)]:
        for read in (ledger.blocked, ledger.unproven):
            with pytest.raises(InvalidCursor):
                read(after=cursor)

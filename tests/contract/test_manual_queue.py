"""The operators' queue of recovery: what no worker can tell, and what nobody looks at (R8.2, R11.7, R11.10, R13.1)."""

from __future__ import annotations

import pytest

from deliveries import OPERATOR, asked_to_stop, brought_to
from left_rows import left_to_operators, put_row
from runfacts import InvalidCursor, Ledger, ManualRecovery, Outcome, Renewed, RetryPolicy
from runfacts.domain.recovery.claims import ClaimState, ItemKind, ManualReason, Purpose
from runfacts.domain.recovery.operators import UNSERVED, diagnosis
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, created, queued

LEASE_MS = 30_000
MINUTE = 60_000
LONG_MS = 10 * MINUTE
POLICY = RetryPolicy(max_attempts=2, retry_on_failure=True)


def listed(ledger: Ledger, limit: int | None = None) -> list[tuple[str, str, str]]:
    """Run, purpose and reason of all items, page by page."""
    found: list[tuple[str, str, str]] = []
    after: str | None = None
    while True:
        page = ledger.manual(limit=limit, after=after)
        assert limit is None or len(page.items) <= limit
        found += [(item.run_id, item.purpose.value, item.reason) for item in page.items]
        after = page.next
        if after is None:
            return found


def test_what_no_worker_can_tell_is_listed_with_age_reason_and_diagnosis(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + 9)
    left_to_operators(ledger, claim, version=4)
    words = diagnosis(Purpose.RECOVERY, ItemKind.ATTEMPT, ManualReason.IDENTITY_UNVERIFIABLE)
    assert ledger.manual().items == (
        ManualRecovery(
            run_id=claim.run_id,
            attempt_id=claim.attempt_id,
            reason="identity_unverifiable",
            since_ms=EPOCH_MS + LEASE_MS + 9,
            diagnosis=words,
            version=4,
            purpose=Purpose.RECOVERY,
            run_version=7,
        ),
    )
    assert ledger.manual().next is None


def test_stops_retries_and_stuck_runs_are_listed_too(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    left_to_operators(ledger, asked.claim, Purpose.STOP, reason="conflicting_evidence")
    manual_clock.advance(1)
    retried = brought_to(ledger, "running", policy=POLICY)
    ledger.finish(retried, Outcome.failed(exit_code=1), actor=WORKER, group_left=True)
    left_to_operators(ledger, retried, Purpose.RETRY)
    manual_clock.advance(1)
    stuck = created(ledger)
    put_row(ledger, Purpose.RECOVERY, ClaimState.MANUAL, stuck, reason="stuck_created", executor_type="", scope="")
    assert listed(ledger) == [
        (asked.run_id, "stop", "conflicting_evidence"),
        (retried.run_id, "retry", "identity_unverifiable"),
        (stuck, "recovery", "stuck_created"),
    ]
    versions = [(item.version, item.run_version) for item in ledger.manual().items]
    assert versions == [(2, 8), (2, 9), (2, 1)]


@pytest.mark.parametrize("state", [ClaimState.AVAILABLE, ClaimState.CLAIMED, ClaimState.RETRY, ClaimState.RESOLVED])
def test_what_workers_look_after_is_not_listed(ledger: Ledger, manual_clock: ManualClock, state: ClaimState) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    put_row(ledger, Purpose.RECOVERY, state, claim.run_id, claim.attempt_id)
    assert listed(ledger) == []


def test_the_oldest_come_first_page_by_page_also_those_of_one_moment(ledger: Ledger, manual_clock: ManualClock) -> None:
    claims = [brought_to(ledger, "running") for _ in range(5)]
    manual_clock.advance(LEASE_MS)
    for claim in claims[3:]:
        left_to_operators(ledger, claim)
    manual_clock.advance(1)
    for claim in claims[:3]:
        left_to_operators(ledger, claim)
    by_attempt = {claim.attempt_id: claim.run_id for claim in claims}
    first = sorted(claim.attempt_id for claim in claims[3:])
    then = sorted(claim.attempt_id for claim in claims[:3])
    expected = [(by_attempt[item], "recovery", "identity_unverifiable") for item in (*first, *then)]
    for limit in (1, 2, 3, 4, 5, 6, None):
        assert listed(ledger, limit) == expected, limit


def test_rows_left_over_are_not_listed(ledger: Ledger, manual_clock: ManualClock) -> None:
    ended, asked_since, stopped, queued_since = (brought_to(ledger, "running", policy=POLICY) for _ in range(4))
    stuck = created(ledger)
    put_row(ledger, Purpose.RECOVERY, ClaimState.MANUAL, stuck, reason="stuck_created", executor_type="", scope="")
    for claim in (ended, asked_since):
        left_to_operators(ledger, claim)
    ledger.finish(ended, Outcome.succeeded(exit_code=0), actor=WORKER)
    ledger.request_cancellation(asked_since.run_id, actor=ANA)
    ledger.request_cancellation(stopped.run_id, actor=ANA)
    left_to_operators(ledger, stopped, Purpose.STOP)
    ledger.finish(stopped, Outcome.cancelled(signal=15), actor=WORKER)
    ledger.finish(queued_since, Outcome.failed(exit_code=1), actor=WORKER)
    left_to_operators(ledger, queued_since, Purpose.RETRY)
    manual_clock.advance(1_000)
    ledger.queue(queued_since.run_id, actor=ANA)
    ledger.queue(stuck, actor=ANA)
    # Written again, where a command has resolved its row: as a claim does that was about to commit.
    left_to_operators(ledger, ended)
    left_to_operators(ledger, stopped, Purpose.STOP)
    left_to_operators(ledger, queued_since, Purpose.RETRY)
    assert listed(ledger) == []


def test_an_expired_attempt_that_nobody_looks_at_is_listed_after_a_while(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + LONG_MS - 1)
    assert listed(ledger) == []
    manual_clock.advance(1)
    (item,) = ledger.manual().items
    assert item == ManualRecovery(
        run_id=claim.run_id,
        attempt_id=claim.attempt_id,
        reason="scope_unserved",
        since_ms=EPOCH_MS + LEASE_MS,
        diagnosis=UNSERVED[Purpose.RECOVERY],
        version=0,
        purpose=Purpose.RECOVERY,
        run_version=7,
    )


def test_a_machine_that_comes_back_takes_its_runs_out_again(ledger: Ledger, manual_clock: ManualClock) -> None:
    back, ends, never = (brought_to(ledger, "running") for _ in range(3))
    manual_clock.advance(LEASE_MS + LONG_MS)
    assert {run_id for run_id, _, _ in listed(ledger)} == {back.run_id, ends.run_id, never.run_id}
    assert isinstance(ledger.renew(back), Renewed)
    ledger.finish(ends, Outcome.succeeded(exit_code=0), actor=WORKER)
    assert listed(ledger) == [(never.run_id, "recovery", "scope_unserved")]


def test_a_renewal_takes_what_waits_for_an_operator_out_of_the_queue(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, claim, reason="scope_unserved")
    assert listed(ledger) == [(claim.run_id, "recovery", "scope_unserved")]
    assert isinstance(ledger.renew(claim), Renewed)
    assert listed(ledger) == []


def test_a_stop_that_nobody_confirms_is_listed_after_a_while(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS + LONG_MS - 1)
    assert listed(ledger) == []
    manual_clock.advance(1)
    (item,) = ledger.manual().items
    assert (item.run_id, item.attempt_id, item.purpose) == (asked.run_id, asked.attempt_id, Purpose.STOP)
    assert (item.reason, item.since_ms, item.version) == ("scope_unserved", EPOCH_MS + LEASE_MS, 0)
    assert (item.diagnosis, item.run_version) == (UNSERVED[Purpose.STOP], 8)
    ledger.confirm_stopped(asked.run_id, actor=OPERATOR, because="I looked", version=item.run_version)
    assert listed(ledger) == []


def test_a_retry_that_is_due_and_that_nobody_queues_is_listed_after_a_while(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running", policy=POLICY)
    ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER, group_left=True)
    # The retry waits for a second first.
    manual_clock.advance(1_000 + LONG_MS - 1)
    assert listed(ledger) == []
    manual_clock.advance(1)
    (item,) = ledger.manual().items
    assert (item.run_id, item.attempt_id, item.purpose) == (claim.run_id, claim.attempt_id, Purpose.RETRY)
    assert (item.reason, item.since_ms, item.version) == ("scope_unserved", EPOCH_MS + 1_000, 0)
    assert item.diagnosis == UNSERVED[Purpose.RETRY]
    ledger.request_cancellation(claim.run_id, actor=ANA)
    assert listed(ledger) == []


@pytest.mark.parametrize(("state", "due_ms"), [(ClaimState.CLAIMED, 30_000), (ClaimState.RETRY, 5_000)])
def test_somebody_who_looked_and_went_is_waited_for_as_long(
    ledger: Ledger, manual_clock: ManualClock, state: ClaimState, due_ms: int
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + LONG_MS)
    put_row(ledger, Purpose.RECOVERY, state, claim.run_id, claim.attempt_id, version=7)
    manual_clock.advance(due_ms + LONG_MS - 1)
    assert listed(ledger) == []
    manual_clock.advance(1)
    (item,) = ledger.manual().items
    assert (item.reason, item.version) == ("scope_unserved", 7)
    assert item.since_ms == EPOCH_MS + LEASE_MS + LONG_MS + due_ms


def test_what_waits_for_an_operator_comes_before_what_nobody_serves(ledger: Ledger, manual_clock: ManualClock) -> None:
    unserved, asked = brought_to(ledger, "running"), asked_to_stop(ledger)
    manual_clock.advance(5)
    late = brought_to(ledger, "starting")
    manual_clock.advance(LEASE_MS + LONG_MS)
    manual = brought_to(ledger, "running")
    left_to_operators(ledger, manual)
    # The id of the item is the Attempt's of the one, the Run's of the other.
    of_one_moment = sorted([(unserved.attempt_id, unserved.run_id, "recovery"), (asked.run_id, asked.run_id, "stop")])
    expected = [
        (manual.run_id, "recovery", "identity_unverifiable"),
        *((run_id, purpose, "scope_unserved") for _, run_id, purpose in of_one_moment),
        (late.run_id, "recovery", "scope_unserved"),
    ]
    for limit in (1, 2, 3, 4, 5, None):
        assert listed(ledger, limit) == expected, limit


def test_the_unserved_time_is_a_setting(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    ledger = ledger_factory(unserved_after_ms=1_000)
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + 999)
    assert listed(ledger) == []
    manual_clock.advance(1)
    assert len(listed(ledger)) == 1


def test_runs_that_need_nobody_are_not_listed(ledger: Ledger, manual_clock: ManualClock) -> None:
    queued(ledger)
    created(ledger)
    done = brought_to(ledger, "running")
    ledger.finish(done, Outcome.succeeded(exit_code=0), actor=WORKER)
    ledger.request_cancellation(queued(ledger), actor=ANA)
    manual_clock.advance(60 * MINUTE)
    assert listed(ledger) == []


def test_a_cursor_that_is_none_of_ours_is_refused(ledger: Ledger) -> None:
    run_id = created(ledger)
    places = [
        "",
        "5",
        f"5:{run_id}",
        f"5:{run_id}:",
        f"5:{run_id}:else",
        f"-1:{run_id}:stop",
        f"{1 << 70}:{run_id}:stop",
        f"{'9' * 5_000}:{run_id}:stop",
        "5:no-id:stop",
        "5:\x00:stop",
        "5:\ud800:stop",
    ]
    for cursor in [
        "x",
        f"x5:{run_id}:stop",
        f"b5:{run_id}:stop",
        *(f"{part}{place}" for part in "mu" for place in places),
    ]:
        with pytest.raises(InvalidCursor):
            ledger.manual(after=cursor)

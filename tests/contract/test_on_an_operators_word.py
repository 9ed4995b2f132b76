"""What stands on an operator's word alone stays visible, and a confirmed stop ends its claim (R6.2, R12.2, R13.2)."""

from __future__ import annotations

import pytest

from deliveries import OPERATOR, asked_to_stop, brought_to
from left_rows import execution_of, left_to_operators, put_row, stood
from runfacts import AttemptClaim, Ledger, Outcome, RetryPolicy, RunStatus
from runfacts.domain.recovery.claims import ClaimState, Purpose
from runfacts.testing.clock import EPOCH_MS, ManualClock
from stages import ANA, WORKER, types

LEASE_MS = 30_000


def attest(ledger: Ledger, run_id: str) -> None:
    ledger.attest_not_running(run_id, actor=OPERATOR, because="I looked", version=2)


@pytest.fixture
def manual(ledger: Ledger, manual_clock: ManualClock) -> AttemptClaim:
    """A running Run that waits for an operator; its row is at version 2."""
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, claim)
    return claim


def unproven(ledger: Ledger) -> dict[str, str]:
    return {item.run_id: item.reason for item in ledger.unproven().items}


def test_what_was_lost_on_a_word_is_unproven_and_says_when_its_attempt_reports_after_all(
    ledger: Ledger, manual_clock: ManualClock, manual: AttemptClaim
) -> None:
    attest(ledger, manual.run_id)
    (item,) = ledger.unproven().items
    assert (item.run_id, item.attempt_id, item.reason) == (manual.run_id, None, "attested")
    assert (item.since_ms, item.version) == (EPOCH_MS + LEASE_MS, 10)
    manual_clock.advance(9)
    ledger.finish(manual, Outcome.succeeded(exit_code=0), actor=WORKER)
    (item,) = ledger.unproven().items
    assert (item.run_id, item.reason, item.version) == (manual.run_id, "reported_since", 11)
    assert item.since_ms == EPOCH_MS + LEASE_MS + 9
    assert "the attempt has reported since" in item.diagnosis


def test_a_report_from_before_the_word_is_not_taken_for_one_after_it(ledger: Ledger, manual_clock: ManualClock) -> None:
    policy = RetryPolicy(max_attempts=2, retry_on_failure=True)
    claim = brought_to(ledger, "running", policy=policy)
    ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER)
    ledger.finish(claim, Outcome.failed(exit_code=2), actor=WORKER)
    assert types(ledger, claim.run_id)[-1] == "attempt.late_callback_ignored"
    manual_clock.advance(1_000)
    ledger.queue(claim.run_id, actor=ANA)
    second = ledger.claim(claim.run_id, actor=WORKER, executor_type="batch", scope="here").claim  # type: ignore[union-attr] # it is queued
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, second)
    attest(ledger, claim.run_id)
    assert unproven(ledger) == {claim.run_id: "attested"}
    # The other Attempt's reports say nothing of the one that the word was about.
    ledger.finish(claim, Outcome.failed(exit_code=3), actor=WORKER)
    assert unproven(ledger) == {claim.run_id: "attested"}


def test_an_end_on_a_word_says_so_too_when_the_attempt_reports_after_all(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    ledger.confirm_stopped(asked.run_id, actor=OPERATOR, because="I looked", version=8)
    assert unproven(ledger) == {asked.run_id: "attested"}
    ledger.finish(asked.claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    assert unproven(ledger) == {asked.run_id: "reported_since"}


def test_a_confirmed_stop_ends_its_row_whatever_that_is_doing(ledger: Ledger, manual_clock: ManualClock) -> None:
    for state in (ClaimState.MANUAL, ClaimState.AVAILABLE, ClaimState.CLAIMED, ClaimState.RETRY):
        asked = asked_to_stop(ledger)
        manual_clock.advance(LEASE_MS)
        put_row(ledger, Purpose.STOP, state, asked.run_id, asked.attempt_id, version=4)
        answer = ledger.confirm_stopped(asked.run_id, actor=OPERATOR, because="I looked", version=8)
        assert answer.status is RunStatus.CANCELLED
        columns = ("state", "version", "due_at_ms", "owner", "reason")
        assert stood(ledger, Purpose.STOP, asked.run_id, *columns) == ("resolved", 5, None, None, None)
        assert execution_of(ledger, asked.attempt_id)["closed_at_ms"] is not None
    assert ledger.manual().items == ()
    assert ledger.verify().clean

"""
What commands write of stop and retry rows, in the transaction of what they record (R7.1, R12.1, R12.2).

All times are of a clock that stands at ``EPOCH_MS`` until the test moves it; leases last 30,000 ms.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from claim_rows import change_row, claimed_until, rows_of, state_of
from deliveries import OPERATOR, Asked, asked_to_stop, brought_to, claim_answer, held_by, settled_with
from runfacts import (
    AlreadyRequested,
    Claimed,
    Finished,
    Ledger,
    Outcome,
    Recorded,
    Refusal,
    RetryPolicy,
    RunStatus,
    Safety,
    StartRefused,
    StopNotProven,
)
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptLost,
    RunCreated,
    RunDispatching,
    RunLost,
    RunQueued,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import RecordedSteps, listening
from stages import ANA, WORKER, claim_of, created, finished, queued, run_again, running, unchanged

FAILED = Outcome.failed(exit_code=1)
TWICE = RetryPolicy(max_attempts=3, retry_on_failure=True, backoff_ms=1_000)
LEASE_END = EPOCH_MS + 30_000


def test_a_request_that_finds_an_active_attempt_makes_the_stop_row(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    assert rows_of(ledger, asked.run_id) == {
        "stop": {
            "purpose": "stop",
            "kind": "run",
            "item_id": asked.run_id,
            "run_id": asked.run_id,
            "attempt_id": asked.attempt_id,
            "executor_type": "batch",
            "scope": "here",
            "state": "available",
            "version": 0,
            "owner": None,
            "token_digest": None,
            "claim_expires_at_ms": None,
            "claim_boot_id": None,
            "claim_expires_boot_ms": None,
            "next_claim_at_ms": None,
            "due_at_ms": EPOCH_MS + 30_000,
            "delays": 0,
            "failures": 0,
            "reason": None,
            "seen": None,
            "created_at_ms": EPOCH_MS,
            "updated_at_ms": EPOCH_MS,
        }
    }
    assert ledger.verify().clean


def test_where_the_lease_has_expired_its_stop_is_due_at_once(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(45_000)
    ledger.request_cancellation(claim.run_id, actor=ANA)
    assert state_of(ledger, "stop", claim.run_id) == ("available", 0, EPOCH_MS + 45_000)


def test_a_second_request_changes_no_row(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(1_000)
    with unchanged(ledger):
        assert isinstance(ledger.request_cancellation(asked.run_id, actor=ANA), AlreadyRequested)


@pytest.mark.parametrize("make", [created, queued])
def test_with_nothing_to_stop_there_is_no_row(ledger: Ledger, make: Callable[[Ledger], str]) -> None:
    run_id = make(ledger)
    ledger.request_cancellation(run_id, actor=ANA)
    assert ledger.run(run_id).status is RunStatus.CANCELLED
    assert rows_of(ledger, run_id) == {}


def test_what_was_asked_to_stop_is_no_longer_recoverys(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")

    def recover_at_ms() -> int | None:
        with ledger.database.engine.connect() as connection:
            found: int | None = connection.exec_driver_sql("SELECT recover_at_ms FROM executions").scalar_one()
            return found

    assert recover_at_ms() == LEASE_END
    ledger.request_cancellation(claim.run_id, actor=ANA)
    assert recover_at_ms() is None
    ledger.renew(claim)
    assert recover_at_ms() is None
    assert ledger.verify().clean


@pytest.mark.parametrize(
    ("result", "due_at_ms", "version"),
    [
        # Delivered, or an operator's: the host has 10,000 ms to report from here.
        (DispatchResult.TERMINATION_REQUESTED, EPOCH_MS + 12_000, 1),
        (DispatchResult.ALREADY_EXITED, EPOCH_MS + 12_000, 1),
        (DispatchResult.IDENTITY_MISMATCH, EPOCH_MS + 12_000, 1),
        # It is tried again.
        (DispatchResult.DISPATCH_ERROR, EPOCH_MS + 30_000, 0),
    ],
)
def test_the_end_of_a_delivery_brings_the_confirmation_forward(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock, result: DispatchResult, due_at_ms: int, version: int
) -> None:
    ledger = ledger_factory(stop_report_grace_ms=10_000)
    asked = asked_to_stop(ledger)
    manual_clock.advance(2_000)
    settled_with(ledger, asked, result)
    assert state_of(ledger, "stop", asked.run_id) == ("available", version, due_at_ms)
    assert ledger.verify().clean


def test_a_confirmation_that_is_due_sooner_anyhow_stays(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(2_000)
    settled_with(ledger, asked, DispatchResult.TERMINATION_REQUESTED)
    assert state_of(ledger, "stop", asked.run_id) == ("available", 0, EPOCH_MS + 30_000)


def test_a_row_that_backs_off_is_brought_forward_too(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory(stop_report_grace_ms=10_000)
    asked = asked_to_stop(ledger)
    later = EPOCH_MS + 300_000
    change_row(ledger, "stop", asked.run_id, state="retry", next_claim_at_ms=later, due_at_ms=later, delays=4)
    settled_with(ledger, asked, DispatchResult.TERMINATION_REQUESTED)
    row = rows_of(ledger, asked.run_id)["stop"]
    assert (row["state"], row["version"]) == ("retry", 1)
    assert (row["next_claim_at_ms"], row["due_at_ms"], row["delays"]) == (EPOCH_MS + 10_000, EPOCH_MS + 10_000, 4)


def test_whoever_holds_the_stop_keeps_it_when_the_delivery_ends(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    change_row(ledger, "stop", asked.run_id, **claimed_until(ledger, EPOCH_MS + 900_000))
    before = rows_of(ledger, asked.run_id)
    settled_with(ledger, asked, DispatchResult.TERMINATION_REQUESTED)
    assert rows_of(ledger, asked.run_id) == before


def test_an_operators_stop_stays_theirs_when_the_delivery_ends(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    change_row(ledger, "stop", asked.run_id, state="manual", reason="scope_unserved", seen="what was seen")
    before = rows_of(ledger, asked.run_id)
    settled_with(ledger, asked, DispatchResult.TERMINATION_REQUESTED)
    assert rows_of(ledger, asked.run_id) == before


def test_a_delivery_that_is_used_up_brings_the_confirmation_forward(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(dispatch_limit=1, stop_report_grace_ms=1_000)
    asked = asked_to_stop(ledger)
    held_by(ledger, asked, lease_ms=5_000)
    manual_clock.advance(5_000)
    claim_answer(ledger, asked)
    assert state_of(ledger, "stop", asked.run_id) == ("available", 1, EPOCH_MS + 6_000)


def test_abandoning_brings_it_forward_and_rearming_puts_it_off(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(stop_report_grace_ms=5_000)
    asked = asked_to_stop(ledger)
    manual_clock.advance(1_000)
    ledger.abandon(asked.run_id, actor=OPERATOR, because="hopeless", version=0)
    assert state_of(ledger, "stop", asked.run_id) == ("available", 1, EPOCH_MS + 6_000)
    ledger.rearm(asked.run_id, actor=OPERATOR, because="not so", version=1)
    assert state_of(ledger, "stop", asked.run_id) == ("available", 2, EPOCH_MS + 30_000)
    assert ledger.verify().clean


def start_too_late(ledger: Ledger) -> Asked:
    asked = asked_to_stop(ledger, "claimed")
    assert isinstance(ledger.start(asked.claim, actor=WORKER), StartRefused)
    return asked


def confirm_too_late(ledger: Ledger) -> Asked:
    asked = asked_to_stop(ledger, "starting")
    assert isinstance(ledger.running(asked.claim, actor=WORKER, handle="h"), StartRefused)
    return asked


def finish(ledger: Ledger) -> Asked:
    asked = asked_to_stop(ledger)
    assert isinstance(ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER), Finished)
    return asked


def confirm_stopped(ledger: Ledger) -> Asked:
    asked = asked_to_stop(ledger)
    version = ledger.run(asked.run_id).version
    ledger.confirm_stopped(asked.run_id, actor=OPERATOR, because="seen", version=version)
    return asked


@pytest.mark.parametrize("end", [start_too_late, confirm_too_late, finish, confirm_stopped])
def test_whatever_ends_the_run_resolves_its_stop_row(ledger: Ledger, end: Callable[[Ledger], Asked]) -> None:
    asked = end(ledger)
    assert ledger.run(asked.run_id).status is RunStatus.CANCELLED
    assert state_of(ledger, "stop", asked.run_id) == ("resolved", 1, None)
    assert ledger.verify().clean


@pytest.mark.parametrize("state", ["claimed", "retry", "manual"])
def test_the_end_resolves_a_row_in_any_state(ledger: Ledger, state: str) -> None:
    asked = asked_to_stop(ledger)
    columns = {
        "claimed": claimed_until(ledger, EPOCH_MS + 30_000),
        "retry": {"state": "retry", "next_claim_at_ms": EPOCH_MS + 9, "due_at_ms": EPOCH_MS + 9},
        "manual": {"state": "manual", "reason": "unexpected", "seen": "s"},
    }[state]
    change_row(ledger, "stop", asked.run_id, **columns)
    ledger.finish(asked.claim, Outcome.succeeded(), actor=WORKER)
    row = rows_of(ledger, asked.run_id)["stop"]
    assert (row["state"], row["version"], row["owner"], row["reason"]) == ("resolved", 1, None, None)


def test_a_settle_after_the_end_leaves_the_row_resolved(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    ledger.settle_dispatch(held, DispatchResult.TERMINATION_REQUESTED)
    assert state_of(ledger, "stop", asked.run_id) == ("resolved", 1, None)


def test_a_stop_that_is_not_proven_stays_in_the_queue(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    answer = ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER, group_left=True)
    assert isinstance(answer, StopNotProven)
    assert state_of(ledger, "stop", asked.run_id) == ("available", 0, LEASE_END)


def test_a_failure_that_is_tried_again_makes_the_retry_row(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = claim_of(ledger, queued(ledger, policy=TWICE), scope="here")
    ledger.start(claim, actor=WORKER)
    manual_clock.advance(500)
    assert isinstance(ledger.finish(claim, FAILED, actor=WORKER), Finished)
    row = rows_of(ledger, claim.run_id)["retry"]
    assert (row["kind"], row["run_id"], row["attempt_id"]) == ("run", claim.run_id, claim.attempt_id)
    assert (row["executor_type"], row["scope"], row["state"], row["version"]) == ("batch", "", "available", 0)
    assert (row["due_at_ms"], row["created_at_ms"]) == (ledger.run(claim.run_id).retry_due_at_ms, EPOCH_MS + 500)
    assert ledger.verify().clean


def test_any_other_end_makes_and_reads_no_row(ledger: Ledger) -> None:
    claim = running(ledger)
    recorded = RecordedSteps()
    with listening(ledger, recorded):
        ledger.finish(claim, FAILED, actor=WORKER)
    assert rows_of(ledger, claim.run_id) == {}
    read = [name for name in recorded.names if name.startswith("sql:before:select")]
    assert read == ["sql:before:select_ground"]


def test_queueing_a_retry_resolves_its_row_and_the_next_failure_opens_it_again(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    run_id = finished(ledger, FAILED, policy=TWICE).run_id
    assert state_of(ledger, "retry", run_id) == ("available", 0, EPOCH_MS + 1_000)
    manual_clock.advance(1_000)
    assert isinstance(ledger.queue(run_id, actor=ANA), Recorded)
    assert state_of(ledger, "retry", run_id) == ("resolved", 1, None)
    second = run_again(ledger, run_id)
    ledger.finish(second, FAILED, actor=WORKER)
    assert state_of(ledger, "retry", run_id) == ("available", 2, EPOCH_MS + 3_000)
    assert rows_of(ledger, run_id)["retry"]["attempt_id"] == second.attempt_id
    assert ledger.verify().clean


def test_a_claim_that_queues_a_retry_resolves_its_row(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = finished(ledger, FAILED, policy=TWICE).run_id
    manual_clock.advance(1_000)
    answer = ledger.claim(run_id, actor=WORKER, executor_type="batch", queue=True)
    assert isinstance(answer, Claimed)
    assert state_of(ledger, "retry", run_id) == ("resolved", 1, None)
    assert ledger.verify().clean


def test_a_retry_that_is_cancelled_resolves_its_row(ledger: Ledger) -> None:
    run_id = finished(ledger, FAILED, policy=TWICE).run_id
    ledger.request_cancellation(run_id, actor=ANA)
    assert ledger.run(run_id).status is RunStatus.CANCELLED
    assert state_of(ledger, "retry", run_id) == ("resolved", 1, None)
    assert rows_of(ledger, run_id).keys() == {"retry"}
    assert ledger.verify().clean


def test_a_lost_run_that_is_cancelled_resolves_its_row(ledger: Ledger) -> None:
    run = given_in(
        ledger,
        RunCreated(task="report", policy=RetryPolicy(2, retry_on_lost=True, safety=Safety.IDEMPOTENT)),
        RunQueued(),
        RunDispatching(number=1),
        AttemptClaimed(number=1, executor_type="batch"),
        AttemptLost(evidence=Evidence.PRE_START),
        RunLost(evidence=Evidence.PRE_START),
    )
    assert state_of(ledger, "retry", run.run_id) == ("available", 0, EPOCH_MS)
    ledger.request_cancellation(run.run_id, actor=ANA)
    assert state_of(ledger, "retry", run.run_id) == ("resolved", 1, None)
    assert ledger.verify().clean


def test_a_failure_ends_the_term_of_whoever_had_queued_the_run(ledger: Ledger, manual_clock: ManualClock) -> None:
    # The holder has queued Attempt 2 and not settled yet; it fails first. Its settle must not close the new row.
    run_id = finished(ledger, FAILED, policy=TWICE).run_id
    manual_clock.advance(1_000)
    ledger.queue(run_id, actor=ANA)
    change_row(ledger, "retry", run_id, **claimed_until(ledger, EPOCH_MS + 31_000))
    ledger.finish(run_again(ledger, run_id), FAILED, actor=WORKER)
    row = rows_of(ledger, run_id)["retry"]
    assert (row["state"], row["owner"], row["version"]) == ("available", None, 2)


def test_a_refused_queueing_leaves_the_row(ledger: Ledger) -> None:
    run_id = finished(ledger, FAILED, policy=TWICE).run_id
    with unchanged(ledger):
        assert getattr(ledger.queue(run_id, actor=ANA), "reason", None) is Refusal.NOT_DUE

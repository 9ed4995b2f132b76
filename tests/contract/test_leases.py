"""Execution leases: exact to the millisecond, by the time that decides, and renewed from now (R5.1 to R5.3, R10.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runfacts import (
    AttemptClaim,
    AttemptStatus,
    Claimed,
    Finished,
    IntentKind,
    InvalidValue,
    LeaseState,
    Ledger,
    Outcome,
    RenewalRefused,
    Renewed,
    RetryPolicy,
    RunStatus,
    Started,
)
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRunning,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, claim_of, claimed, finished, one_writer, queued, row_of, running, unchanged

HOUR = 3_600_000


def lease(ledger: Ledger, claim: AttemptClaim) -> LeaseState:
    return ledger.run(claim.run_id).attempts[-1].lease


def test_a_lease_lasts_as_long_as_it_was_asked_for(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = claim_of(ledger, queued(ledger), lease_ms=10_000)
    assert ledger.run(claim.run_id).attempts[0].lease_expires_at_ms == EPOCH_MS + 10_000
    manual_clock.advance(9_999)
    assert lease(ledger, claim) == LeaseState.VALID
    manual_clock.advance(1)
    assert lease(ledger, claim) == LeaseState.EXPIRED


def test_without_a_length_the_setting_decides(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    ledger = ledger_factory(execution_lease_ms=2_000)
    claim = claimed(ledger)
    manual_clock.advance(1_999)
    assert lease(ledger, claim) == LeaseState.VALID
    renewed = ledger.renew(claim)
    assert renewed == Renewed(EPOCH_MS + 3_999, AttemptStatus.CLAIMED, None)
    manual_clock.advance(2_000)
    assert lease(ledger, claim) == LeaseState.EXPIRED


def test_no_lease_is_shorter_or_longer_than_the_settings_bounds(ledger: Ledger) -> None:
    run_id = queued(ledger)
    claim = claim_of(ledger, queued(ledger), lease_ms=600_000)
    with unchanged(ledger):
        wrong: list[Any] = [-5, 0, 1_999, 600_001, 5_000.5, True]
        for lease_ms in wrong:
            with pytest.raises(InvalidValue, match="lease_ms"):
                ledger.claim(run_id, actor=WORKER, executor_type="batch", lease_ms=lease_ms)
            with pytest.raises(InvalidValue, match="lease_ms"):
                ledger.renew(claim, lease_ms=lease_ms)


def test_a_renewal_lasts_from_now(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = claimed(ledger)
    manual_clock.advance(20_000)
    assert ledger.renew(claim, lease_ms=5_000) == Renewed(EPOCH_MS + 25_000, AttemptStatus.CLAIMED, None)
    assert row_of(ledger, "executions")["recover_at_ms"] == EPOCH_MS + 25_000
    manual_clock.advance(4_999)
    assert lease(ledger, claim) == LeaseState.VALID
    manual_clock.advance(1)
    assert lease(ledger, claim) == LeaseState.EXPIRED


def test_a_renewal_knows_ids_in_every_usual_form(ledger: Ledger) -> None:
    claim = claimed(ledger)
    written = replace(claim, run_id=claim.run_id.upper(), attempt_id=claim.attempt_id.replace("-", ""))
    assert isinstance(ledger.renew(written), Renewed)


def test_an_expired_lease_can_be_renewed_while_its_attempt_is_active(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = running(ledger)
    manual_clock.advance(HOUR)
    assert lease(ledger, claim) == LeaseState.EXPIRED
    assert ledger.renew(claim) == Renewed(EPOCH_MS + HOUR + 30_000, AttemptStatus.RUNNING, None)
    assert lease(ledger, claim) == LeaseState.VALID


def test_renewing_writes_no_fact_and_no_version(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = running(ledger)
    facts, run = ledger.history(claim.run_id), row_of(ledger, "runs")
    manual_clock.advance(7)
    ledger.renew(claim)
    assert ledger.history(claim.run_id) == facts
    assert row_of(ledger, "runs") == run


def test_an_ended_attempt_has_no_lease_and_renews_none(ledger: Ledger) -> None:
    claim = finished(ledger)
    assert lease(ledger, claim) == LeaseState.NONE
    with unchanged(ledger):
        answer = ledger.renew(claim)
    assert answer == RenewalRefused(RunStatus.SUCCEEDED, AttemptStatus.SUCCEEDED)


def test_finishing_is_always_allowed(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = claimed(ledger)
    manual_clock.advance(HOUR)
    assert isinstance(ledger.start(claim, actor=WORKER), Started)
    ledger.running(claim, actor=WORKER)
    manual_clock.reboot()
    assert isinstance(ledger.finish(claim, Outcome.succeeded(), actor=WORKER), Finished)


def test_a_renewal_says_that_somebody_asked_to_stop(ledger: Ledger) -> None:
    run = given_in(
        ledger,
        RunCreated(task="report", policy=RetryPolicy()),
        RunQueued(),
        RunDispatching(number=1),
        AttemptClaimed(number=1, executor_type="batch"),
        AttemptStarting(),
        AttemptRunning(),
        RunRunning(),
        RunCancelRequested(kind=IntentKind.SHUTDOWN),
    )
    assert ledger.renew(run.claim) == Renewed(EPOCH_MS + 30_000, AttemptStatus.RUNNING, IntentKind.SHUTDOWN)


@pytest.mark.parametrize("jump_ms", [-HOUR, 1, 400 * 24 * HOUR])
def test_a_jump_of_the_wall_clock_neither_shortens_nor_stretches_a_lease(
    ledger: Ledger, manual_clock: ManualClock, jump_ms: int
) -> None:
    claim = claimed(ledger)
    manual_clock.advance(10_000)
    manual_clock.jump_wall(jump_ms)
    assert lease(ledger, claim) == LeaseState.VALID
    manual_clock.advance(19_999)
    assert lease(ledger, claim) == LeaseState.VALID
    manual_clock.advance(1)
    assert lease(ledger, claim) == LeaseState.EXPIRED


def test_a_lease_of_another_boot_is_expired_where_the_boot_clock_decides(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = claimed(ledger)
    manual_clock.reboot()
    by_boot = one_writer(ledger)
    assert lease(ledger, claim) == (LeaseState.EXPIRED if by_boot else LeaseState.VALID)
    ledger.renew(claim)
    assert lease(ledger, claim) == LeaseState.VALID


def test_a_boot_clock_that_began_anew_does_not_revive_an_old_lease(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = claimed(ledger)
    manual_clock.advance(HOUR)
    manual_clock.reboot()
    manual_clock.advance(HOUR + 10_000)
    assert lease(ledger, claim) == LeaseState.EXPIRED


def test_the_databases_clock_decides_where_there_is_one(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = claimed(ledger)
    manual_clock.jump_database(30_000)
    by_database = not one_writer(ledger)
    assert lease(ledger, claim) == (LeaseState.EXPIRED if by_database else LeaseState.VALID)


def test_a_database_clock_that_stepped_back_beyond_the_bound_frees_the_lease(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = claimed(ledger)
    manual_clock.jump_database(-570_000)
    assert lease(ledger, claim) == LeaseState.VALID
    manual_clock.jump_database(-1)
    by_database = not one_writer(ledger)
    assert lease(ledger, claim) == (LeaseState.EXPIRED if by_database else LeaseState.VALID)


def test_leases_of_two_runs_are_their_own(ledger: Ledger, manual_clock: ManualClock) -> None:
    one = claimed(ledger)
    manual_clock.advance(20_000)
    two = claimed(ledger)
    manual_clock.advance(10_000)
    assert (lease(ledger, one), lease(ledger, two)) == (LeaseState.EXPIRED, LeaseState.VALID)
    ledger.renew(one, lease_ms=2_000)
    assert (lease(ledger, one), lease(ledger, two)) == (LeaseState.VALID, LeaseState.VALID)


def test_an_expired_lease_ends_nothing_by_itself(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = claimed(ledger)
    manual_clock.advance(HOUR)
    view = ledger.run(claim.run_id)
    assert (view.status, view.version, view.attempts[0].status) == (RunStatus.DISPATCHING, 4, AttemptStatus.CLAIMED)
    assert not isinstance(ledger.claim(claim.run_id, actor=WORKER, executor_type="batch"), Claimed)
    assert ledger.verify().clean
    assert ledger.run(claim.run_id).active_attempt is not None
    assert ledger.queue(queued(ledger), actor=ANA).status == RunStatus.QUEUED

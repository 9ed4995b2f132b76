"""Operators and workers of recovery at the same rows, each by the version it has seen (R11.2, R11.7, R13.1, R13.2)."""

from __future__ import annotations

import pytest

from deliveries import OPERATOR, asked_to_stop, brought_to
from recoveries import (
    ELSEWHERE,
    LEASE_MS,
    RETRIED,
    TWO,
    UNSERVED_MS,
    applied,
    only,
    page,
    row_of_claim,
    seen,
    settled,
    without_an_attempt,
)
from runfacts import Ledger, ManualRecovery, RecoveryVersionConflict, RunStatus, VerbRefused
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import ManualReason, Purpose, RecoveryClaimed, RecoveryFenced
from runfacts.testing.clock import EPOCH_MS, ManualClock
from stages import WORKER, created, types, unchanged

UNPROVEN = ManualReason.IDENTITY_UNVERIFIABLE
RELEASED = ["run.recovery_manual", "run.recovery_released"]


def given_up(ledger: Ledger, purpose: Purpose = Purpose.RECOVERY, reason: ManualReason = UNPROVEN) -> RecoveryClaimed:
    """Let a worker claim what there is and leave it to the operators."""
    claim = only(ledger, purpose)
    settled(ledger, claim, manual=reason)
    return claim


def item_in_queue(ledger: Ledger) -> ManualRecovery:
    (item,) = ledger.manual().items
    return item


def release(ledger: Ledger, item: ManualRecovery) -> int:
    return ledger.release(item.run_id, actor=OPERATOR, because="look again", version=item.version).version


def test_what_a_worker_gives_up_waits_for_an_operator_and_is_claimed_again_when_released(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    held = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    first = given_up(ledger)
    assert page(ledger) == ()
    item = item_in_queue(ledger)
    assert (item.run_id, item.attempt_id, item.reason) == (held.run_id, held.attempt_id, "identity_unverifiable")
    assert (item.version, item.since_ms) == (first.version + 1, EPOCH_MS + LEASE_MS)
    assert release(ledger, item) == first.version + 2
    again = only(ledger, owner=TWO)
    assert (again.version, again.delays, again.failures) == (first.version + 3, 0, 0)
    assert types(ledger, held.run_id)[7:] == RELEASED
    # Nothing has changed, so that it is given up on the same ground: that stands in the facts already (R11.10).
    settled(ledger, again, manual=UNPROVEN)
    assert item_in_queue(ledger).version == again.version + 1
    assert types(ledger, held.run_id)[7:] == RELEASED


def test_a_stop_that_a_worker_gives_up_is_released_to_the_workers_or_confirmed(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS)
    given_up(ledger, Purpose.STOP, ManualReason.CONFLICTING_EVIDENCE)
    item = item_in_queue(ledger)
    assert (item.purpose, item.reason) == (Purpose.STOP, "conflicting_evidence")
    release(ledger, item)
    given_up(ledger, Purpose.STOP)
    item = item_in_queue(ledger)
    ledger.confirm_stopped(asked.run_id, actor=OPERATOR, because="I looked", version=item.run_version)
    assert page(ledger, Purpose.STOP) == ()
    assert ledger.manual().items == ()
    assert ledger.verify().clean


def test_a_run_that_is_stuck_is_looked_at_again_when_released(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = created(ledger)
    manual_clock.advance(ledger.settings.stuck_created_ms)
    given_up(ledger, reason=ManualReason.STUCK_CREATED)
    assert page(ledger) == ()
    item = item_in_queue(ledger)
    assert (item.run_id, item.reason, item.attempt_id) == (run_id, "stuck_created", None)
    release(ledger, item)
    assert only(ledger).run_id == run_id


def test_a_run_without_an_attempt_is_looked_at_again_when_released(ledger: Ledger) -> None:
    run_id = without_an_attempt(ledger)
    given_up(ledger, reason=ManualReason.FAILURE_LIMIT)
    assert page(ledger) == ()
    release(ledger, item_in_queue(ledger))
    assert only(ledger).run_id == run_id


@pytest.mark.parametrize("retried", [True, False])
def test_what_is_attested_is_the_retry_authoritys_next(
    ledger: Ledger, manual_clock: ManualClock, *, retried: bool
) -> None:
    held = brought_to(ledger, "running", **({"policy": RETRIED} if retried else {}))
    manual_clock.advance(LEASE_MS)
    given_up(ledger)
    item = item_in_queue(ledger)
    ledger.attest_not_running(held.run_id, actor=OPERATOR, because="I looked", version=item.version)
    assert page(ledger) == ()
    claim = only(ledger, Purpose.RETRY)
    answer = applied(ledger.apply_retry(claim, seen(ledger, claim)))
    assert answer.run_status == (RunStatus.RETRY_WAIT if retried else RunStatus.FAILED)
    assert ledger.verify().clean


def test_a_worker_that_comes_too_late_for_a_word_is_fenced(ledger: Ledger, manual_clock: ManualClock) -> None:
    held = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    with unchanged(ledger), pytest.raises(VerbRefused, match="a worker looks at it right now"):
        ledger.attest_not_running(held.run_id, actor=OPERATOR, because="I looked", version=claim.version)
    manual_clock.advance(LEASE_MS + UNSERVED_MS)
    item = item_in_queue(ledger)
    assert (item.reason, item.version) == ("scope_unserved", claim.version)
    ledger.attest_not_running(held.run_id, actor=OPERATOR, because="I looked", version=item.version)
    with unchanged(ledger):
        assert isinstance(ledger.apply_lost(claim, snapshot, Evidence.NOT_RUNNING, "batch"), RecoveryFenced)
        assert isinstance(ledger.settle_recovery(claim), RecoveryFenced)
    assert ledger.run(held.run_id).status is RunStatus.LOST


def test_a_worker_from_elsewhere_that_can_prove_nothing_leaves_it_in_the_queue(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    held = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + UNSERVED_MS)
    unserved = item_in_queue(ledger)
    claim = only(ledger, served=ELSEWHERE)
    assert claim.foreign
    assert ledger.manual().items == ()
    settled(ledger, claim, manual=ManualReason.SCOPE_UNSERVED)
    item = item_in_queue(ledger)
    assert (item.run_id, item.reason, item.version) == (held.run_id, "scope_unserved", claim.version + 1)
    # What an operator saw before is not what is there now.
    with unchanged(ledger), pytest.raises(RecoveryVersionConflict):
        ledger.attest_not_running(held.run_id, actor=OPERATOR, because="scrap", version=unserved.version)
    ledger.attest_not_running(held.run_id, actor=OPERATOR, because="scrap", version=item.version)
    assert ledger.run(held.run_id).status is RunStatus.LOST


def test_what_comes_back_by_itself_leaves_the_queue_and_its_row_is_done_with(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    held = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = given_up(ledger)
    ledger.renew(held)
    assert ledger.manual().items == ()
    assert row_of_claim(ledger, claim)["state"] == "resolved"
    ledger.wait_for_approval(held, actor=WORKER)
    manual_clock.advance(LEASE_MS)
    # It vanished anew, which is another matter.
    assert only(ledger).version == claim.version + 3

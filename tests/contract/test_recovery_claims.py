"""
Claiming what nobody looks after: who may, from when on, for how long, and that only one does.

R5.1 to R5.3, R8.2, R10.3, R11.1, R11.2, R11.8, R12.2; case C35.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256

import pytest

from deliveries import asked_to_stop, brought_to, held_by
from racing import crowd
from recoveries import (
    ELSEWHERE,
    LEASE_MS,
    ONE,
    SCOPE,
    SERVED,
    TWO,
    UNSERVED_MS,
    change,
    copied,
    execution_of,
    only,
    page,
    row_of_claim,
    row_of_item,
    seen,
    settled,
    vanish,
)
from runfacts import AttemptStatus, InvalidValue, Ledger, Outcome, RenewalRefused, Renewed, RetryPolicy, RunStatus
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import (
    ClaimState,
    ItemKind,
    ManualReason,
    Purpose,
    RecoveryClaimed,
    RecoveryFenced,
    RecoveryKey,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import PauseAt, listening
from stages import ANA, WORKER, created, finished, one_writer, unchanged

HOUR = 3_600_000


def test_an_attempt_is_claimed_when_its_lease_expires_and_not_a_millisecond_before(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS - 1)
    with unchanged(ledger):
        assert page(ledger) == ()
    manual_clock.advance(1)
    taken = only(ledger)
    assert taken.key == RecoveryKey(Purpose.RECOVERY, ItemKind.ATTEMPT, claim.attempt_id)
    assert (taken.run_id, taken.attempt_id) == (claim.run_id, claim.attempt_id)
    assert (taken.executor_type, taken.scope, taken.owner) == ("batch", SCOPE, ONE)
    assert (taken.version, taken.expires_at_ms) == (1, EPOCH_MS + 2 * LEASE_MS)
    assert (taken.delays, taken.failures, taken.foreign) == (0, 0, False)


@pytest.mark.parametrize("status", ["claimed", "starting", "running", "waiting_approval"])
def test_an_attempt_is_found_in_every_status_of_an_active_one(
    ledger: Ledger, manual_clock: ManualClock, status: str
) -> None:
    claim = brought_to(ledger, status)
    manual_clock.advance(LEASE_MS)
    assert only(ledger).attempt_id == claim.attempt_id


def test_the_database_has_the_digest_of_the_token_and_no_lease_is_touched(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    lease = ("lease_token_digest", "lease_expires_at_ms", "lease_boot_id", "lease_expires_boot_ms", "seen_at_ms")
    before = execution_of(ledger, claim.attempt_id)
    manual_clock.advance(LEASE_MS)
    facts = ledger.history(claim.run_id)
    taken = only(ledger)
    row = row_of_claim(ledger, taken)
    assert row["token_digest"] == sha256(f"runfacts:recovery:{taken.token}".encode()).hexdigest()
    assert taken.token not in repr(taken)
    assert (row["state"], row["owner"], row["version"]) == ("claimed", ONE, 1)
    assert row["claim_expires_at_ms"] == row["due_at_ms"] == EPOCH_MS + 2 * LEASE_MS
    after = execution_of(ledger, claim.attempt_id)
    assert [after[name] for name in lease] == [before[name] for name in lease]
    # Recovery looks next when the claim expires.
    assert after["recover_at_ms"] == EPOCH_MS + 2 * LEASE_MS
    assert ledger.history(claim.run_id) == facts


def test_a_claim_that_expired_is_taken_over_and_not_a_millisecond_before(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    first = only(ledger)
    manual_clock.advance(LEASE_MS - 1)
    assert page(ledger, owner=TWO) == ()
    manual_clock.advance(1)
    second = only(ledger, owner=TWO)
    assert (second.version, second.owner, second.key) == (2, TWO, first.key)
    assert second.token != first.token
    # Whoever held it did not come back, which counts as a failure.
    assert (second.failures, second.delays) == (1, 0)


def test_an_old_holder_changes_nothing(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    first = only(ledger)
    snapshot = seen(ledger, first)
    manual_clock.advance(LEASE_MS)
    second = only(ledger, owner=TWO)
    old = (
        first,
        replace(second, owner=ONE),
        replace(second, token=first.token),
        replace(second, version=first.version),
        replace(second, version=second.version + 1),
        replace(second, key=replace(second.key, kind=ItemKind.RUN)),
        replace(second, key=replace(second.key, purpose=Purpose.STOP)),
    )
    for claim in old:
        fenced = RecoveryFenced(claim.key)
        with unchanged(ledger):
            assert ledger.apply_lost(claim, snapshot, Evidence.NOT_RUNNING, "batch") == fenced
            assert ledger.apply_stopped(claim, snapshot, Evidence.NOT_RUNNING, "batch") == fenced
            assert ledger.apply_retry(claim, snapshot) == fenced
            assert ledger.settle_recovery(claim) == fenced
            assert ledger.settle_recovery(claim, retry_in_ms=5_000, failed=True) == fenced
            assert ledger.settle_recovery(claim, manual=ManualReason.IDENTITY_UNVERIFIABLE) == fenced
            assert ledger.give_back((claim,)) == 0
    assert ledger.refused == {"recovery_term": 6 * len(old)}
    assert settled(ledger, second).version == 3


def test_a_term_ends_with_its_time(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger, lease_ms=1_000)
    snapshot = seen(ledger, claim)
    manual_clock.advance(1_000)
    with unchanged(ledger):
        assert ledger.settle_recovery(claim) == RecoveryFenced(claim.key)
        assert ledger.settle_recovery(claim, manual=ManualReason.UNEXPECTED) == RecoveryFenced(claim.key)
        assert ledger.apply_lost(claim, snapshot, Evidence.PRE_START, None) == RecoveryFenced(claim.key)
        assert ledger.give_back((claim,)) == 0


def test_no_two_workers_claim_one_item(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    first = ledger_factory()
    claim = brought_to(first, "running")
    made = copied(first, claim, 119)
    manual_clock.advance(LEASE_MS)

    def drain(ledger: Ledger) -> list[RecoveryClaimed]:
        taken: list[RecoveryClaimed] = []
        while more := ledger.claim_recoveries(Purpose.RECOVERY, owner=ONE, served=SERVED, limit=8):
            assert len(more) <= 8
            taken += more
        return taken

    taken = crowd([ledger_factory() for _ in range(4)], drain)
    ids = [claim.key.item_id for page in taken for claim in page]
    assert sorted(ids) == sorted([*made, claim.attempt_id])
    assert len({claim.token for page in taken for claim in page}) == 120


def test_workers_do_not_wait_for_each_other(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    one, two = ledger_factory(), ledger_factory(busy_timeout_ms=0)
    claim = brought_to(one, "running")
    copied(one, claim, 9)
    manual_clock.advance(LEASE_MS)
    if one_writer(one):
        assert len(page(one, limit=4)) == 4
        assert len(page(two, owner=TWO, limit=4)) == 4
        return
    pause = PauseAt("sql:before:commit")
    with listening(one, pause), ThreadPoolExecutor(1) as pool:
        future = pool.submit(page, one, limit=4)
        pause.wait()
        # The first page is not committed, and nothing of it is seen or waited for.
        second = page(two, owner=TWO, limit=4)
        pause.resume()
        first = future.result(timeout=30)
    assert (len(first), len(second)) == (4, 4)
    assert not {item.key for item in first} & {item.key for item in second}


def test_a_renewal_is_refused_while_somebody_finds_out(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    taken = only(ledger)
    with unchanged(ledger):
        assert isinstance(ledger.renew(claim), RenewalRefused)
    settled(ledger, taken, retry_in_ms=5_000)
    assert isinstance(ledger.renew(claim), Renewed)
    assert row_of_claim(ledger, taken)["state"] == "resolved"
    manual_clock.advance(LEASE_MS - 1)
    assert page(ledger) == ()
    manual_clock.advance(1)
    again = only(ledger)
    # A resolved row of a candidate is available again, with nothing counted.
    assert (again.version, again.delays, again.failures) == (4, 0, 0)


def test_whose_lease_is_renewed_between_look_and_claim_is_not_claimed(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    one, two = ledger_factory(), ledger_factory()
    claim = brought_to(one, "running")
    manual_clock.advance(LEASE_MS)
    pause = PauseAt("sql:after:select_due_attempts")
    with listening(one, pause), ThreadPoolExecutor(1) as pool:
        future = pool.submit(page, one)
        pause.wait()
        assert isinstance(two.renew(claim), Renewed)
        pause.resume()
        assert future.result(timeout=30) == ()
    assert execution_of(one, claim.attempt_id)["recover_at_ms"] == EPOCH_MS + 2 * LEASE_MS


def test_what_has_ended_or_never_began_is_not_found(ledger: Ledger, manual_clock: ManualClock) -> None:
    finished(ledger)
    created(ledger)
    ledger.queue(created(ledger), actor=ANA)
    manual_clock.advance(LEASE_MS)
    for purpose in Purpose:
        with unchanged(ledger):
            assert page(ledger, purpose) == ()


def test_only_what_the_worker_serves_is_claimed(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    for served in (ELSEWHERE, frozenset({("other", SCOPE)}), frozenset[tuple[str, str]]()):
        with unchanged(ledger):
            assert page(ledger, served=served) == ()
    assert only(ledger).scope == SCOPE


def test_a_machine_that_never_comes_back_is_served_from_elsewhere_and_not_a_millisecond_too_soon(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + UNSERVED_MS - 1)
    with unchanged(ledger):
        assert page(ledger, served=ELSEWHERE) == ()
        assert page(ledger, served=frozenset({("other", "there")})) == ()
    manual_clock.advance(1)
    assert page(ledger, served=frozenset({("other", "there")})) == ()
    taken = only(ledger, served=ELSEWHERE)
    assert (taken.attempt_id, taken.scope, taken.foreign) == (claim.attempt_id, SCOPE, True)
    # Given back, it has waited as long as it must.
    assert ledger.give_back((taken,)) == 1
    again = only(ledger, served=ELSEWHERE, owner=TWO)
    assert again.foreign
    # Looked at, it waits for its own again first.
    settled(ledger, again, retry_in_ms=5_000)
    manual_clock.advance(5_000 + UNSERVED_MS - 1)
    assert page(ledger, served=ELSEWHERE) == ()
    manual_clock.advance(1)
    assert only(ledger, served=ELSEWHERE).delays == 1


def test_ones_own_come_before_foreign_ones(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + UNSERVED_MS)
    mine = brought_to(ledger, "running")
    change(ledger, "executions", "scope = 'there'", f"attempt_id = '{mine.attempt_id}'")
    manual_clock.advance(LEASE_MS)
    assert only(ledger, served=ELSEWHERE, limit=1).attempt_id == mine.attempt_id
    assert only(ledger, served=ELSEWHERE, limit=1).foreign


def test_a_stop_of_a_machine_that_never_comes_back_is_served_from_elsewhere(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS + UNSERVED_MS - 1)
    assert page(ledger, Purpose.STOP, served=ELSEWHERE) == ()
    manual_clock.advance(1)
    taken = only(ledger, Purpose.STOP, served=ELSEWHERE)
    assert (taken.run_id, taken.scope, taken.foreign) == (asked.run_id, SCOPE, True)


def test_a_run_that_was_asked_to_stop_is_the_stop_confirmations(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS - 1)
    assert page(ledger, Purpose.STOP) == ()
    manual_clock.advance(1)
    with unchanged(ledger):
        assert page(ledger) == ()
    taken = only(ledger, Purpose.STOP)
    assert taken.key == RecoveryKey(Purpose.STOP, ItemKind.RUN, asked.run_id)
    assert (taken.attempt_id, taken.executor_type, taken.scope) == (asked.attempt_id, "batch", SCOPE)


def test_a_stop_whose_host_is_alive_waits_for_its_report_or_its_lease(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS - 5_000)
    ledger.renew(asked.claim)
    manual_clock.advance(5_000)
    # Due, but the lease is valid again: the row gets the time at which it ends.
    assert page(ledger, Purpose.STOP) == ()
    assert row_of_item(ledger, Purpose.STOP, asked.run_id)["due_at_ms"] == EPOCH_MS + 2 * LEASE_MS - 5_000
    with unchanged(ledger):
        assert page(ledger, Purpose.STOP) == ()
    # A delivered cancellation brings that forward: the host has half a minute to report.
    ledger.settle_dispatch(held_by(ledger, asked), DispatchResult.TERMINATION_REQUESTED)
    ledger.renew(asked.claim, lease_ms=600_000)
    manual_clock.advance(29_999)
    assert page(ledger, Purpose.STOP) == ()
    manual_clock.advance(1)
    taken = only(ledger, Purpose.STOP)
    snapshot = seen(ledger, taken)
    assert (snapshot.lease_valid, snapshot.dispatch_finished_at_ms) == (True, EPOCH_MS + LEASE_MS)


def test_a_stop_of_a_run_without_an_attempt_is_claimed_when_due(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    vanish(ledger, asked.claim)
    change(ledger, "recovery_claims", f"due_at_ms = {EPOCH_MS}")
    assert only(ledger, Purpose.STOP).run_id == asked.run_id
    assert manual_clock.database_ms() == EPOCH_MS


def test_the_row_of_a_run_that_has_ended_is_resolved_instead_of_claimed(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    assert ledger.run(asked.run_id).status is RunStatus.CANCELLED
    change(ledger, "recovery_claims", f"state = 'available', due_at_ms = {EPOCH_MS}")
    assert page(ledger, Purpose.STOP) == ()
    assert row_of_item(ledger, Purpose.STOP, asked.run_id)["state"] == "resolved"
    manual_clock.advance(UNSERVED_MS)
    with unchanged(ledger):
        assert page(ledger, Purpose.STOP, served=ELSEWHERE) == ()


def test_a_run_without_an_attempt_is_claimed_by_anybody(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")
    vanish(ledger, claim)
    taken = only(ledger, served=frozenset({("other", "there")}))
    assert taken.key == RecoveryKey(Purpose.RECOVERY, ItemKind.RUN, claim.run_id)
    assert (taken.attempt_id, taken.foreign) == (claim.attempt_id, False)
    with unchanged(ledger):
        assert page(ledger) == ()


def test_a_run_that_was_never_queued_is_found_after_an_hour_and_not_a_millisecond_before(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    run_id = created(ledger)
    manual_clock.advance(HOUR - 1)
    with unchanged(ledger):
        assert page(ledger) == ()
    manual_clock.advance(1)
    taken = only(ledger)
    assert taken.key == RecoveryKey(Purpose.RECOVERY, ItemKind.RUN, run_id)
    assert taken.attempt_id is None
    settled(ledger, taken, manual=ManualReason.STUCK_CREATED)
    manual_clock.advance(10 * HOUR)
    with unchanged(ledger):
        assert page(ledger) == ()


def test_what_is_given_back_is_available_at_once_and_nothing_is_counted(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    copied(ledger, claim, 2)
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS)
    taken = page(ledger)
    stop = only(ledger, Purpose.STOP)
    assert len(taken) == 3
    assert ledger.give_back((*taken[1:], stop)) == 3
    assert ledger.give_back((*taken[1:], stop)) == 0
    assert ledger.give_back(()) == 0
    again = page(ledger, owner=TWO)
    assert {item.key for item in again} == {item.key for item in taken[1:]}
    assert [(item.version, item.delays, item.failures) for item in again] == [(3, 0, 0), (3, 0, 0)]
    assert only(ledger, Purpose.STOP).run_id == asked.run_id


def test_what_was_asked_to_stop_meanwhile_is_not_recoverys_any_more_when_given_back(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    taken = only(ledger)
    ledger.request_cancellation(claim.run_id, actor=ANA)
    assert ledger.give_back((taken,)) == 1
    assert execution_of(ledger, claim.attempt_id)["recover_at_ms"] is None
    with unchanged(ledger):
        assert page(ledger) == ()
    assert only(ledger, Purpose.STOP).run_id == claim.run_id


@pytest.mark.parametrize("jump_ms", [-HOUR, HOUR])
def test_c35_a_jump_of_the_clock_neither_shortens_nor_stretches_a_lease(
    ledger: Ledger, manual_clock: ManualClock, jump_ms: int
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.jump_wall(jump_ms)
    if not one_writer(ledger) and jump_ms < 0:
        manual_clock.jump_database(jump_ms)
        # The database's clock decides: a lease further ahead than any may be was never given by it.
        assert only(ledger).attempt_id == claim.attempt_id
        return
    manual_clock.advance(LEASE_MS - 1)
    with unchanged(ledger):
        assert page(ledger) == ()
    manual_clock.advance(1)
    taken = only(ledger)
    manual_clock.jump_wall(-jump_ms)
    manual_clock.advance(LEASE_MS - 1)
    assert page(ledger, owner=TWO) == ()
    manual_clock.advance(1)
    assert only(ledger, owner=TWO).key == taken.key


def test_c35_a_small_step_back_is_noticed_by_who_looks(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running")
    assert page(ledger) == ()
    manual_clock.jump_wall(-HOUR // 12)
    manual_clock.advance(LEASE_MS - 1)
    with unchanged(ledger):
        assert page(ledger) == ()
    manual_clock.advance(1)
    taken = only(ledger)
    assert taken.attempt_id == claim.attempt_id
    settled(ledger, taken, retry_in_ms=5_000)
    # The wait is by the wall clock, as it is now.
    with unchanged(ledger):
        assert page(ledger) == ()
    manual_clock.advance(5_000)
    assert only(ledger).delays == 1


def test_after_a_reboot_every_lease_and_claim_of_before_is_over(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    first = only(ledger)
    manual_clock.reboot()
    manual_clock.advance(LEASE_MS)
    second = only(ledger, owner=TWO)
    assert (second.key, second.version) == (first.key, 2)


def test_a_page_has_at_most_what_was_asked_for_oldest_first(ledger: Ledger, manual_clock: ManualClock) -> None:
    made = []
    for _ in range(5):
        made.append(brought_to(ledger, "running").attempt_id)
        manual_clock.advance(1)
    manual_clock.advance(LEASE_MS)
    assert [item.attempt_id for item in page(ledger, limit=3)] == made[:3]
    assert [item.attempt_id for item in page(ledger, limit=3)] == made[3:]
    with pytest.raises(InvalidValue):
        page(ledger, limit=129)
    with pytest.raises(InvalidValue):
        page(ledger, lease_ms=999)
    with pytest.raises(InvalidValue):
        page(ledger, owner="")


def test_the_default_page_has_sixteen(ledger: Ledger, manual_clock: ManualClock) -> None:
    copied(ledger, brought_to(ledger, "running"), 19)
    manual_clock.advance(LEASE_MS)
    assert [len(page(ledger)), len(page(ledger)), len(page(ledger))] == [16, 4, 0]


def test_a_manual_item_is_found_again_only_when_what_was_seen_has_changed(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    settled(ledger, only(ledger), manual=ManualReason.IDENTITY_UNVERIFIABLE)
    change(ledger, "executions", f"recover_at_ms = {EPOCH_MS}")
    manual_clock.advance(UNSERVED_MS)
    with unchanged(ledger):
        assert page(ledger) == ()
        assert page(ledger, served=ELSEWHERE) == ()
    ledger.wait_for_approval(claim, actor=WORKER)
    again = only(ledger)
    assert (again.version, again.delays, again.failures) == (3, 0, 0)
    snapshot = seen(ledger, again)
    assert (snapshot.run_status, snapshot.attempt_status) == (RunStatus.WAITING_APPROVAL, AttemptStatus.RUNNING)
    assert row_of_claim(ledger, again)["reason"] is None
    assert ClaimState(row_of_claim(ledger, again)["state"]) is ClaimState.CLAIMED


@pytest.mark.parametrize("group_left", [False, True])
def test_a_retry_needs_its_own_scope_only_where_somebody_must_be_proven_gone(
    ledger: Ledger, manual_clock: ManualClock, *, group_left: bool
) -> None:
    policy = RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=1_000)
    claim = brought_to(ledger, "running", policy=policy)
    ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER, group_left=group_left)
    manual_clock.advance(999)
    with unchanged(ledger):
        assert page(ledger, Purpose.RETRY) == ()
    manual_clock.advance(1)
    if group_left:
        with unchanged(ledger):
            assert page(ledger, Purpose.RETRY, served=ELSEWHERE) == ()
        assert only(ledger, Purpose.RETRY).run_id == claim.run_id
    else:
        taken = only(ledger, Purpose.RETRY, served=ELSEWHERE)
        assert (taken.run_id, taken.foreign) == (claim.run_id, False)

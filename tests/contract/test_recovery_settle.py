"""
Ending a term: resolved, again later, an operator's; and what is left over is swept.

R4.6, R11.2, R11.7 to R11.10, R12.2.
"""

from __future__ import annotations

from hashlib import sha256

import pytest

from deliveries import asked_to_stop, brought_to, last_fact
from recoveries import (
    ELSEWHERE,
    FREE,
    LEASE_MS,
    RECONCILER,
    RETRIED,
    SERVED,
    TWO,
    applied,
    change,
    copied,
    execution_of,
    only,
    page,
    put_rows,
    row_of_claim,
    row_of_item,
    seen,
    settled,
    states,
    without_an_attempt,
)
from runfacts import ExecutionOwner, InvalidValue, Ledger, Outcome, RunStatus
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import (
    ClaimState,
    ManualReason,
    Purpose,
    RecoveryScan,
    RecoverySettled,
    SweepReport,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import CallAt, FailAt, RecordedSteps, listening
from stages import ANA, WORKER, created, one_writer, types, unchanged

NOW = EPOCH_MS + LEASE_MS
NOTHING = SweepReport(0, 0)


def test_a_retry_waits_as_long_as_was_said_and_counts(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    assert settled(ledger, claim, retry_in_ms=5_000) == RecoverySettled(claim.key, ClaimState.RETRY, 2, NOW + 5_000)
    row = row_of_claim(ledger, claim)
    assert (row["state"], row["next_claim_at_ms"], row["due_at_ms"]) == ("retry", NOW + 5_000, NOW + 5_000)
    assert execution_of(ledger, attempt.attempt_id)["recover_at_ms"] == NOW + 5_000
    assert types(ledger, attempt.run_id)[-1] == "run.running"
    manual_clock.advance(4_999)
    with unchanged(ledger):
        assert page(ledger) == ()
    manual_clock.advance(1)
    again = only(ledger, owner=TWO)
    assert (again.version, again.delays, again.failures) == (3, 1, 0)
    settled(ledger, again, retry_in_ms=10_000)
    manual_clock.advance(10_000)
    assert only(ledger).delays == 2


def test_exceptions_are_counted_until_a_look_succeeds(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    settled(ledger, only(ledger), retry_in_ms=0, failed=True)
    settled(ledger, only(ledger), retry_in_ms=0, failed=True)
    only(ledger)
    manual_clock.advance(LEASE_MS)
    third = only(ledger)
    # Two exceptions, and a term that nobody ended.
    assert (third.failures, third.delays) == (3, 2)
    settled(ledger, third, retry_in_ms=0)
    fourth = only(ledger)
    assert (fourth.failures, fourth.delays) == (0, 3)


def test_resolved_forgets_what_was_counted_and_what_is_still_expired_is_found_again(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    settled(ledger, only(ledger), retry_in_ms=0, failed=True)
    claim = only(ledger)
    assert settled(ledger, claim) == RecoverySettled(claim.key, ClaimState.RESOLVED, 4)
    assert execution_of(ledger, attempt.attempt_id)["recover_at_ms"] == NOW
    again = only(ledger)
    assert (again.version, again.delays, again.failures) == (5, 0, 0)


def test_an_operators_item_is_recorded_and_never_claimed_by_itself(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    answer = settled(ledger, claim, manual=ManualReason.IDENTITY_UNVERIFIABLE)
    assert answer == RecoverySettled(claim.key, ClaimState.MANUAL, 2)
    what_was_seen = f"running running {NOW} -"
    row = row_of_claim(ledger, claim)
    assert (row["state"], row["reason"], row["seen"], row["due_at_ms"]) == (
        "manual",
        "identity_unverifiable",
        what_was_seen,
        None,
    )
    assert execution_of(ledger, attempt.attempt_id)["recover_at_ms"] is None
    digest = sha256(what_was_seen.encode()).hexdigest()[:16]
    assert last_fact(ledger, attempt.run_id) == (
        "run.recovery_manual",
        {"purpose": "recovery", "reason": "identity_unverifiable"},
        f"recovery-manual:recovery:{attempt.attempt_id}:{digest}",
    )
    assert ledger.history(attempt.run_id)[-1].actor == RECONCILER
    manual_clock.advance(100 * LEASE_MS)
    with unchanged(ledger):
        assert page(ledger) == ()
        assert page(ledger, served=ELSEWHERE) == ()
        assert ledger.sweep_recoveries() == NOTHING
    assert ledger.verify().clean


def test_the_same_verdict_on_the_same_is_recorded_once(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    settled(ledger, only(ledger), manual=ManualReason.IDENTITY_UNVERIFIABLE)
    change(ledger, "recovery_claims", f"state = 'available', reason = NULL, seen = NULL, due_at_ms = {NOW}")
    change(ledger, "executions", f"recover_at_ms = {NOW}")
    settled(ledger, only(ledger), manual=ManualReason.IDENTITY_UNVERIFIABLE)
    assert types(ledger, attempt.run_id).count("run.recovery_manual") == 1
    # The host renews, and vanishes again: that is another thing to see.
    ledger.renew(attempt)
    manual_clock.advance(LEASE_MS)
    settled(ledger, only(ledger), manual=ManualReason.IDENTITY_UNVERIFIABLE)
    assert types(ledger, attempt.run_id).count("run.recovery_manual") == 2


def test_a_stop_that_nobody_can_prove_is_an_operators(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS)
    settled(ledger, only(ledger, Purpose.STOP), manual=ManualReason.SCOPE_UNSERVED)
    assert last_fact(ledger, asked.run_id)[1] == {"purpose": "stop", "reason": "scope_unserved"}
    row = row_of_item(ledger, Purpose.STOP, asked.run_id)
    assert row["seen"] == f"running running {NOW} {EPOCH_MS}"
    manual_clock.advance(100 * LEASE_MS)
    with unchanged(ledger):
        assert page(ledger, Purpose.STOP) == ()


def test_nothing_is_recorded_on_what_another_system_executes(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    facts = ledger.history(attempt.run_id)
    # A later release may have written something that this one does not understand.
    change(ledger, "runs", f"execution_owner = '{ExecutionOwner.LEGACY}'")
    assert settled(ledger, claim).state is ClaimState.RESOLVED
    assert execution_of(ledger, attempt.attempt_id)["recover_at_ms"] is None
    assert ledger.history(attempt.run_id) == facts
    with unchanged(ledger):
        assert page(ledger) == ()


def test_the_intent_that_appeared_takes_an_attempt_out_of_recovery(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    ledger.request_cancellation(attempt.run_id, actor=ANA)
    settled(ledger, claim, retry_in_ms=5_000)
    assert execution_of(ledger, attempt.attempt_id)["recover_at_ms"] is None
    manual_clock.advance(LEASE_MS)
    assert page(ledger) == ()
    assert only(ledger, Purpose.STOP).run_id == attempt.run_id
    # The row that says retry is left over.
    assert ledger.sweep_recoveries().swept == 1
    assert states(ledger) == ["resolved"]


def test_a_stop_that_was_settled_without_an_end_is_looked_at_again(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS)
    claim = only(ledger, Purpose.STOP)
    assert settled(ledger, claim).state is ClaimState.AVAILABLE
    manual_clock.advance(4_999)
    assert page(ledger, Purpose.STOP) == ()
    manual_clock.advance(1)
    assert only(ledger, Purpose.STOP).key == claim.key


def test_a_settle_takes_one_way_only(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    with unchanged(ledger):
        for wrong in (
            {"retry_in_ms": 5, "manual": ManualReason.UNEXPECTED},
            {"retry_in_ms": -1},
            {"retry_in_ms": 300_001},
        ):
            with pytest.raises(InvalidValue):
                ledger.settle_recovery(claim, **wrong)


class InjectedError(Exception):
    """What a test makes the product run into."""


@pytest.mark.parametrize(
    "how", [{}, {"retry_in_ms": 5_000}, {"manual": ManualReason.UNEXPECTED}], ids=["resolved", "retry", "manual"]
)
def test_a_settle_that_fails_anywhere_leaves_no_trace(
    ledger: Ledger, manual_clock: ManualClock, how: dict[str, object]
) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    recorded = RecordedSteps()
    with listening(ledger, recorded):
        ledger.settle_recovery(only(ledger), **how)  # type: ignore[arg-type]  # one of three ways
    for name in _settling(recorded):
        attempt = brought_to(ledger, "running")
        manual_clock.advance(LEASE_MS)
        (claim,) = [claim for claim in page(ledger, limit=128) if claim.run_id == attempt.run_id]
        with unchanged(ledger), listening(ledger, FailAt(name, InjectedError)), pytest.raises(InjectedError):
            ledger.settle_recovery(claim, **how)  # type: ignore[arg-type]  # one of three ways
        assert isinstance(ledger.settle_recovery(claim, **how), RecoverySettled)  # type: ignore[arg-type]  # the same
    assert ledger.verify().clean


def _settling(recorded: RecordedSteps) -> list[str]:
    """Give the steps of the settle, which begins after the page's commit, but for the one after its own."""
    names = list(recorded.names)
    own = names[names.index("sql:after:commit") + 1 :]
    steps = [name for name in dict.fromkeys(own) if name != "sql:after:commit"]
    assert "sql:before:commit" in steps
    return steps


def test_a_row_whose_holder_died_after_the_mutation_is_swept(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    applied(ledger.apply_lost(claim, seen(ledger, claim), Evidence.NOT_RUNNING, "batch"))
    manual_clock.advance(LEASE_MS - 1)
    # Its holder may still settle.
    with unchanged(ledger):
        assert ledger.sweep_recoveries() == NOTHING
    manual_clock.advance(1)
    assert ledger.sweep_recoveries() == SweepReport(1, LEASE_MS)
    row = row_of_claim(ledger, claim)
    assert (row["state"], row["version"], row["owner"], row["token_digest"]) == ("resolved", 2, None, None)
    with unchanged(ledger):
        assert ledger.sweep_recoveries() == NOTHING


@pytest.mark.parametrize("state", ["available", "retry", "manual", "claimed"])
def test_a_row_in_any_state_is_swept_once_its_target_is_no_candidate(
    ledger: Ledger, manual_clock: ManualClock, state: str
) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    if state == "available":
        assert ledger.give_back((claim,)) == 1
    elif state == "retry":
        settled(ledger, claim, retry_in_ms=300_000)
    elif state == "manual":
        settled(ledger, claim, manual=ManualReason.UNEXPECTED)
    else:
        manual_clock.advance(LEASE_MS)
    with unchanged(ledger):
        # It still is one.
        assert ledger.sweep_recoveries() == NOTHING
    ledger.finish(attempt, Outcome.succeeded(exit_code=0), actor=WORKER)
    manual_clock.advance(7)
    assert ledger.sweep_recoveries() == SweepReport(1, 7)
    assert states(ledger) == ["resolved"]
    assert execution_of(ledger, attempt.attempt_id)["recover_at_ms"] is None
    assert ledger.verify().clean


def test_rows_of_every_purpose_are_swept_and_those_of_candidates_are_not(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    stop, waiting = asked_to_stop(ledger), brought_to(ledger, "running", policy=RETRIED)
    stuck = created(ledger)
    ownerless = without_an_attempt(ledger)
    manual_clock.advance(3_600_000)
    for claim in page(ledger):
        if claim.run_id == waiting.run_id:
            applied(ledger.apply_lost(claim, seen(ledger, claim), Evidence.NOT_RUNNING, "batch"))
            settled(ledger, claim)
        else:
            settled(ledger, claim, manual=ManualReason.UNEXPECTED)
    settled(ledger, only(ledger, Purpose.STOP), retry_in_ms=300_000)
    settled(ledger, only(ledger, Purpose.RETRY), manual=ManualReason.UNEXPECTED)
    with unchanged(ledger):
        assert ledger.sweep_recoveries() == NOTHING
    assert sorted(states(ledger)) == ["manual", "manual", "resolved"]
    # Each is moved on by what does not know of recovery.
    ledger.queue(stuck, actor=ANA)
    change(ledger, "runs", "status = 'queued'", f"run_id IN ('{ownerless}', '{waiting.run_id}')")
    ended = "status = 'failed', finished_at_ms = 1, active_attempt_id = NULL"
    change(ledger, "runs", ended, f"run_id = '{stop.run_id}'")
    assert ledger.sweep_recoveries(limit=1).swept == 1
    swept = 1 + sum(ledger.sweep_recoveries(limit=1).swept for _ in range(8))
    assert swept == 4
    assert {*states(ledger), *states(ledger, Purpose.STOP), *states(ledger, Purpose.RETRY)} == {"resolved"}


def test_the_sweep_gets_round_in_pieces(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    settled(ledger, claim, retry_in_ms=300_000)
    waiting = copied(ledger, attempt, 20, recover_at_ms=None)
    put_rows(ledger, waiting, claim)
    manual = copied(ledger, attempt, 20, recover_at_ms=None)
    put_rows(
        ledger,
        manual,
        claim,
        state="manual",
        reason="unexpected",
        seen=f"running running {NOW} -",
        next_claim_at_ms=None,
        due_at_ms=None,
    )
    over = (waiting[-1], manual[-1])
    change(ledger, "executions", "closed_at_ms = 5", f"attempt_id IN {over}")
    # 41 rows in pieces of 8: after six or seven everything was seen, wherever it begins.
    for _ in range(2):
        ledger.sweep_recoveries(limit=8)
    swept = [ledger.sweep_recoveries(limit=8).swept for _ in range(6)]
    assert sum(swept) <= 2
    assert {row_of_item(ledger, Purpose.RECOVERY, item)["state"] for item in over} == {"resolved"}
    assert sorted(states(ledger)) == ["manual"] * 19 + ["resolved"] * 2 + ["retry"] * 20


def test_workers_look_again_at_an_operators_item_whose_attempt_goes_on(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    settled(ledger, only(ledger), manual=ManualReason.IDENTITY_UNVERIFIABLE)
    # Its host reports something, and is gone before it renews the lease.
    ledger.wait_for_approval(attempt, actor=WORKER)
    manual_clock.advance(1)
    assert ledger.sweep_recoveries() == NOTHING
    again = only(ledger)
    assert (again.key.item_id, again.version, again.delays, again.failures) == (attempt.attempt_id, 4, 0, 0)
    settled(ledger, again, manual=ManualReason.IDENTITY_UNVERIFIABLE)
    with unchanged(ledger):
        assert ledger.sweep_recoveries() == NOTHING
    assert ledger.verify().clean


def test_workers_look_again_at_an_operators_stop_whose_host_came_back(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS)
    settled(ledger, only(ledger, Purpose.STOP), manual=ManualReason.SCOPE_UNSERVED)
    ledger.renew(asked.claim)
    assert ledger.sweep_recoveries() == NOTHING
    # Taken out of the queue, and due when the lease that was renewed is over.
    assert ledger.manual().items == ()
    manual_clock.advance(LEASE_MS - 1)
    with unchanged(ledger):
        assert page(ledger, Purpose.STOP) == ()
    manual_clock.advance(1)
    assert only(ledger, Purpose.STOP).run_id == asked.run_id


def test_the_sweep_reads_what_its_rows_are_about_at_once(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt, stuck = brought_to(ledger, "running"), created(ledger)
    manual_clock.advance(3_600_000)
    claim, other = page(ledger)
    assert {claim.run_id, other.run_id} == {attempt.run_id, stuck}
    for each in (claim, other):
        settled(ledger, each, retry_in_ms=300_000)
    put_rows(ledger, copied(ledger, attempt, 20, recover_at_ms=None), claim if claim.attempt_id else other)
    steps = RecordedSteps()
    with listening(ledger, steps):
        assert ledger.sweep_recoveries() == NOTHING
    assert [name for name in steps.names if "before:select_targets" in name] == [
        "sql:before:select_targets_of_attempts",
        "sql:before:select_targets_of_runs",
    ]


def test_a_renewed_lease_resolves_what_was_left_over(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    settled(ledger, claim, retry_in_ms=1_000)
    change(ledger, "recovery_claims", "version = 7")
    ledger.renew(attempt)
    change(ledger, "recovery_claims", f"state = 'retry', next_claim_at_ms = {NOW}, due_at_ms = {NOW}")
    assert ledger.sweep_recoveries().swept == 1
    assert execution_of(ledger, attempt.attempt_id)["recover_at_ms"] == NOW + LEASE_MS
    manual_clock.advance(LEASE_MS)
    assert only(ledger).key == claim.key


def test_the_scan_counts_what_is_unsafe_and_what_waits_and_writes_nothing(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    def scan(limit: int = 1) -> tuple[int, int]:
        with unchanged(ledger):
            found = ledger.scan_recoveries(SERVED, limit=limit)
        assert isinstance(found, RecoveryScan)
        return found.unsafe, found.waiting

    assert scan() == (0, 0)
    attempt = brought_to(ledger, "running")
    assert scan() == (0, 0)
    manual_clock.advance(LEASE_MS)
    assert scan() == (1, 0)
    copied(ledger, attempt, 3)
    assert scan() == (1, 0)
    assert scan(9) == (4, 0)
    first, second, third, fourth = page(ledger)
    assert scan(9) == (4, 0)
    settled(ledger, first, retry_in_ms=5_000)
    assert scan(9) == (3, 1)
    # A copy has no facts, and cannot be an operator's.
    real = next(claim for claim in (second, third, fourth, first) if claim.run_id == attempt.run_id)
    if real is first:
        manual_clock.advance(5_000)
        real = only(ledger)
    settled(ledger, real, manual=ManualReason.UNEXPECTED)
    assert scan(9)[1] in {1, 2}
    assert ledger.give_back((second, third, fourth)) >= 2
    assert scan(9)[0] >= 2
    with unchanged(ledger):
        assert ledger.scan_recoveries(ELSEWHERE, limit=9) == RecoveryScan(0, 0)


def test_a_stuck_run_that_an_operator_ends_is_swept(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = created(ledger)
    manual_clock.advance(3_600_000)
    settled(ledger, only(ledger), manual=ManualReason.STUCK_CREATED)
    assert last_fact(ledger, run_id)[1] == {"purpose": "recovery", "reason": "stuck_created"}
    ledger.request_cancellation(run_id, actor=ANA)
    assert ledger.run(run_id).status is RunStatus.CANCELLED
    assert ledger.sweep_recoveries().swept == 1
    assert row_of_item(ledger, Purpose.RECOVERY, run_id) | FREE == row_of_item(ledger, Purpose.RECOVERY, run_id)


def test_a_request_to_stop_that_comes_between_keeps_the_attempt_out_of_recovery(
    ledger: Ledger, ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    if one_writer(ledger):
        # Nobody gets between: the transaction has the one right to write from its beginning.
        return
    attempt, other = brought_to(ledger, "running"), ledger_factory()
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    asking = CallAt(
        "sql:after:select_targets_of_attempts", lambda: other.request_cancellation(attempt.run_id, actor=ANA)
    )
    with listening(ledger, asking):
        settled(ledger, claim, retry_in_ms=5_000)
    assert execution_of(ledger, attempt.attempt_id)["recover_at_ms"] is None
    assert ledger.verify().clean

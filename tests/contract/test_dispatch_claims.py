"""
Claiming the delivery of a cancellation: every answer, one valid lease at a time, and when it ends.

R1.5, R5.1 to R5.3, R6.1, R7.1 to R7.3, R7.6, R8.2; cases C13, C25 and C35.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256

import pytest
from sqlalchemy import text

import later_release
from deliveries import (
    LEASE_MS,
    ONE,
    SCOPE,
    SERVED,
    TWO,
    Asked,
    asked_to_stop,
    brought_to,
    claim_answer,
    due_runs,
    held_by,
    refused_as,
    settled_with,
    stored,
)
from runfacts import ActorType, ExecutionOwner, IntentKind, InvalidValue, Ledger, MalformedId, Outcome, RetryPolicy
from runfacts.domain.cancellation.controllers import StopTarget
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import AlreadyRequested, DispatchClaimed, DispatchFenced, DispatchNotClaimed
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    RunCancelDispatched,
    RunCancelDispatchTakenOver,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRunning,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, one_writer, types, unchanged

HOUR = 3_600_000
NOBODY = "01890000-0000-7000-8000-000000000001"


def test_a_claim_gives_the_target_and_a_term(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    assert held.target == StopTarget(asked.run_id, asked.attempt_id, "batch", SCOPE, "handle-1", 4_711)
    assert (held.owner, held.version, held.dispatch_count, held.taken_over) == (ONE, 1, 1, False)
    assert held.lease_expires_at_ms == EPOCH_MS + LEASE_MS
    columns = ("status", "version", "dispatch_count", "tries_since_rearm", "lease_owner", "lease_expires_at_ms")
    assert stored(ledger, asked, *columns) == ("leased", 1, 1, 1, ONE, EPOCH_MS + LEASE_MS)
    assert stored(ledger, asked, "next_attempt_at_ms", "due_at_ms") == (None, EPOCH_MS + LEASE_MS)


def test_on_sqlite_a_lease_is_kept_by_the_boot_clock_too(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    # An hour after the boot, and 30 s (R5.2).
    expected = (manual_clock.boot_id(), HOUR + LEASE_MS) if one_writer(ledger) else (None, None)
    assert stored(ledger, asked, "lease_boot_id", "lease_expires_boot_ms") == expected


def test_a_claim_records_no_fact_and_no_version(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    facts, view = ledger.history(asked.run_id), ledger.run(asked.run_id)
    held_by(ledger, asked)
    assert ledger.history(asked.run_id) == facts
    # What is seen of the claim is the claim's own row.
    assert replace(ledger.run(asked.run_id), cancellation=None) == replace(view, cancellation=None)
    assert ledger.verify().clean


def test_the_token_is_new_for_every_claim_and_only_its_digest_is_kept(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    tokens = []
    for _ in range(3):
        held = held_by(ledger, asked)
        assert held.token.startswith("rft_")
        assert held.token not in repr(held)
        expected = sha256(f"runfacts:dispatch:{held.token}".encode()).hexdigest()
        assert stored(ledger, asked, "lease_token_digest") == (expected,)
        tokens.append(held.token)
        manual_clock.advance(LEASE_MS)
    assert len(set(tokens)) == 3


@pytest.mark.parametrize("stage", ["claimed", "starting", "running", "waiting_approval"])
def test_every_active_attempt_can_be_claimed(ledger: Ledger, stage: str) -> None:
    asked = asked_to_stop(ledger, stage)
    held = held_by(ledger, asked)
    assert held.target.handle == ("handle-1" if stage in {"running", "waiting_approval"} else None)


def test_without_a_length_the_setting_decides(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory(cancel_lease_ms=5_000)
    held = claim_answer(ledger, asked_to_stop(ledger), lease_ms=None)
    assert isinstance(held, DispatchClaimed)
    assert held.lease_expires_at_ms == EPOCH_MS + 5_000


@pytest.mark.parametrize("lease_ms", [-1, 0, 999, 300_001])
def test_no_lease_is_out_of_the_settings_bounds(ledger: Ledger, lease_ms: int) -> None:
    asked = asked_to_stop(ledger)
    with unchanged(ledger), pytest.raises(InvalidValue, match="cancel_lease_ms"):
        claim_answer(ledger, asked, lease_ms=lease_ms)


@pytest.mark.parametrize("owner", ["", "w" * 201, "a\nb", "\udcff"])
def test_an_owner_has_a_name(ledger: Ledger, owner: str) -> None:
    asked = asked_to_stop(ledger)
    with unchanged(ledger), pytest.raises(InvalidValue, match="owner"):
        claim_answer(ledger, asked, owner)


def test_ids_must_be_ids(ledger: Ledger) -> None:
    with pytest.raises(MalformedId):
        ledger.claim_dispatch("x", NOBODY, 0, owner=ONE, served=SERVED)
    with pytest.raises(MalformedId):
        ledger.claim_dispatch(NOBODY, "x", 0, owner=ONE, served=SERVED)


# not_eligible


def test_a_run_that_is_not_there(ledger: Ledger) -> None:
    with unchanged(ledger):
        answer = ledger.claim_dispatch(NOBODY, NOBODY, EPOCH_MS, owner=ONE, served=SERVED)
    assert answer == DispatchNotClaimed(NOBODY, ClaimAnswer.NOT_ELIGIBLE)


def test_a_run_that_nobody_asked_to_stop(ledger: Ledger) -> None:
    asked = Asked(brought_to(ledger, "running"), EPOCH_MS)
    with unchanged(ledger):
        assert refused_as(ledger, asked) is ClaimAnswer.NOT_ELIGIBLE


@pytest.mark.parametrize("requested_at_ms", [EPOCH_MS - 1, EPOCH_MS + 1, 0])
def test_an_intent_of_another_time(ledger: Ledger, requested_at_ms: int) -> None:
    asked = Asked(asked_to_stop(ledger).claim, requested_at_ms)
    with unchanged(ledger):
        assert refused_as(ledger, asked) is ClaimAnswer.NOT_ELIGIBLE


def test_an_attempt_of_another_run_or_of_none(ledger: Ledger) -> None:
    asked, other = asked_to_stop(ledger), asked_to_stop(ledger)
    with unchanged(ledger):
        for attempt_id in (other.attempt_id, NOBODY):
            answer = ledger.claim_dispatch(asked.run_id, attempt_id, EPOCH_MS, owner=ONE, served=SERVED)
            assert answer == DispatchNotClaimed(asked.run_id, ClaimAnswer.NOT_ELIGIBLE)


def test_a_run_that_has_ended(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    with unchanged(ledger):
        assert refused_as(ledger, asked) is ClaimAnswer.NOT_ELIGIBLE


def test_a_run_of_another_system_or_with_facts_of_a_later_release(ledger: Ledger) -> None:
    past = (
        RunCreated(task="report", policy=RetryPolicy(), execution_owner=ExecutionOwner.LEGACY),
        RunQueued(),
        RunDispatching(number=1),
        AttemptClaimed(number=1, executor_type="batch"),
        RunCancelRequested(kind=IntentKind.USER),
    )
    legacy = Asked(given_in(ledger, *past).claim, EPOCH_MS)
    later = asked_to_stop(ledger)
    later_release.append(ledger, later.run_id, "run.teleported", "{}")
    with unchanged(ledger):
        assert refused_as(ledger, legacy, served=frozenset({("batch", "")})) is ClaimAnswer.NOT_ELIGIBLE
        assert refused_as(ledger, later) is ClaimAnswer.NOT_ELIGIBLE


@pytest.mark.parametrize(
    "served",
    [
        frozenset(),
        frozenset({("batch", "")}),
        frozenset({("batch", "there")}),
        frozenset({("Batch", "here"), ("batch2", "here")}),
        frozenset({("batch", "there"), ("other", "here")}),
    ],
)
def test_what_the_worker_does_not_serve(ledger: Ledger, served: frozenset[tuple[str, str]]) -> None:
    asked = asked_to_stop(ledger)
    with unchanged(ledger):
        assert refused_as(ledger, asked, served=served) is ClaimAnswer.NOT_ELIGIBLE


# the answers after it, in their order


def test_a_row_of_another_attempt_is_never_bound_anew(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    with ledger.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE cancellation_dispatches SET attempt_id = '{NOBODY}'"))
    with unchanged(ledger):
        assert refused_as(ledger, asked) is ClaimAnswer.BINDING_CONFLICT


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (DispatchResult.TERMINATION_REQUESTED, ClaimAnswer.DISPATCHED),
        (DispatchResult.ALREADY_EXITED, ClaimAnswer.DISPATCHED),
        (DispatchResult.IDENTITY_MISMATCH, ClaimAnswer.BLOCKED),
        (DispatchResult.GROUP_SURVIVORS, ClaimAnswer.BLOCKED),
        (DispatchResult.DISPATCH_ERROR, ClaimAnswer.NOT_DUE),
    ],
)
def test_what_was_settled_is_not_claimed_again(
    ledger: Ledger, manual_clock: ManualClock, result: DispatchResult, answer: ClaimAnswer
) -> None:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, result)
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is answer
    manual_clock.advance(HOUR)
    if answer is not ClaimAnswer.NOT_DUE:
        with unchanged(ledger):
            assert refused_as(ledger, asked, TWO) is answer


def test_while_a_lease_is_valid_nobody_else_gets_one_not_even_its_owner(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED
        assert refused_as(ledger, asked, ONE) is ClaimAnswer.LEASED


def test_a_missing_row_is_created_by_the_claim(ledger: Ledger) -> None:
    past = (
        RunCreated(task="report", policy=RetryPolicy()),
        RunQueued(),
        RunDispatching(number=1),
        AttemptClaimed(number=1, executor_type="batch"),
        AttemptStarting(),
        AttemptRunning(),
        RunRunning(),
        RunCancelRequested(kind=IntentKind.USER),
    )
    asked = Asked(given_in(ledger, *past).claim, EPOCH_MS)
    held = claim_answer(ledger, asked, served=frozenset({("batch", "")}))
    assert isinstance(held, DispatchClaimed)
    assert (held.version, held.dispatch_count, held.taken_over) == (1, 1, False)
    columns = ("status", "version", "dispatch_count", "tries_since_rearm", "attempt_id", "due_at_ms")
    assert stored(ledger, asked, *columns) == ("leased", 1, 1, 1, asked.attempt_id, EPOCH_MS + LEASE_MS)
    assert len(ledger.history(asked.run_id)) == 8
    assert ledger.verify().clean


# the end of a lease


def test_a_lease_is_taken_over_exactly_at_its_end_and_not_a_millisecond_before(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    manual_clock.advance(LEASE_MS - 1)
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED
        assert due_runs(ledger) == []
    manual_clock.advance(1)
    assert due_runs(ledger) == [asked.run_id]
    held = held_by(ledger, asked, TWO)
    assert (held.version, held.dispatch_count, held.taken_over) == (2, 2, True)
    assert held.lease_expires_at_ms == EPOCH_MS + 2 * LEASE_MS
    assert stored(ledger, asked, "status", "version", "lease_owner") == ("leased", 2, TWO)


def test_a_take_over_is_recorded_with_who_held_it(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    manual_clock.advance(LEASE_MS)
    held_by(ledger, asked, TWO)
    fact = ledger.history(asked.run_id)[-1]
    assert fact.payload == RunCancelDispatchTakenOver(attempt_id=asked.attempt_id, dispatch_count=2, previous_owner=ONE)
    assert (fact.attempt_id, fact.dedupe_key) == (asked.attempt_id, f"cancel-takeover:{asked.attempt_id}:2")
    assert (fact.actor.type, fact.actor.id) == (ActorType.SUPERVISOR, TWO)
    assert ledger.verify().clean


def test_c13_after_a_crash_the_next_worker_ends_it_with_one_fact(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)  # it signals and dies
    manual_clock.advance(LEASE_MS)
    held = held_by(ledger, asked, TWO)
    ledger.settle_dispatch(held, DispatchResult.ALREADY_EXITED)
    assert stored(ledger, asked, "status", "version", "dispatch_count") == ("dispatched", 3, 2)
    new = [fact.payload for fact in ledger.history(asked.run_id)[8:]]
    assert new == [
        RunCancelDispatchTakenOver(attempt_id=asked.attempt_id, dispatch_count=2, previous_owner=ONE),
        RunCancelDispatched.model_validate(
            {
                "attempt_id": asked.attempt_id,
                "dispatch_count": 2,
                "result": "already_exited",
                "escalation": new[-1].escalation,  # type: ignore[attr-defined]  # checked below
            }
        ),
    ]
    assert types(ledger, asked.run_id).count("run.cancel_dispatched") == 1


def test_c35_a_wall_clock_that_jumps_back_neither_stretches_nor_shortens_a_lease(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    late = held_by(ledger, asked)
    manual_clock.jump_wall(-HOUR)
    manual_clock.advance(LEASE_MS - 1)
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED
        assert due_runs(ledger) == []
    manual_clock.advance(1)
    # Found and taken over after 30 s of elapsed time, not after an hour and 30 s.
    assert due_runs(ledger) == [asked.run_id]
    held = held_by(ledger, asked, TWO)
    assert held.taken_over
    assert ledger.settle_dispatch(late, DispatchResult.TERMINATION_REQUESTED) == DispatchFenced(asked.run_id)
    with unchanged(ledger):
        assert refused_as(ledger, asked, ONE) is ClaimAnswer.LEASED


def test_a_wall_clock_that_jumps_ahead_shortens_no_lease(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    manual_clock.jump_wall(HOUR)
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED
        assert due_runs(ledger) == []


def test_on_postgresql_a_database_clock_that_stepped_back_frees_the_lease(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    # 300 s, the longest lease: one that ends later than that from now was never given by this clock (R5.3).
    manual_clock.jump_database(-(300_000 - LEASE_MS))
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED
        assert due_runs(ledger) == []
    manual_clock.jump_database(-1)
    if one_writer(ledger):
        with unchanged(ledger):
            assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED
    else:
        assert due_runs(ledger) == [asked.run_id]
        assert held_by(ledger, asked, TWO).taken_over


def test_on_sqlite_a_lease_of_another_boot_has_expired(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked)
    manual_clock.reboot()
    if one_writer(ledger):
        assert due_runs(ledger) == [asked.run_id]
        assert held_by(ledger, asked, TWO).taken_over
    else:
        # The database server's time decides, and it did not reboot (R5.1).
        with unchanged(ledger):
            assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED


def test_c25_asking_again_and_again_leaves_the_lease_alone(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory()
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    manual_clock.advance(5_000)  # the controller takes its time
    with unchanged(ledger), ThreadPoolExecutor(10) as pool:
        asking = [pool.submit(ledger.request_cancellation, asked.run_id, actor=ANA) for _ in range(10)]
        answers = {future.result(timeout=30) for future in asking}
        assert refused_as(ledger_factory(), asked, TWO) is ClaimAnswer.LEASED
    assert {type(answer) for answer in answers} == {AlreadyRequested}
    ledger.settle_dispatch(held, DispatchResult.TERMINATION_REQUESTED)
    assert stored(ledger, asked, "status", "dispatch_count") == ("dispatched", 1)
    assert types(ledger, asked.run_id).count("run.cancel_requested") == 1


def test_a_request_from_before_the_clock_stepped_back_is_due_at_once(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.jump_wall(-HOUR)
    manual_clock.jump_database(-HOUR)
    assert due_runs(ledger) == [asked.run_id]
    assert not held_by(ledger, asked).taken_over

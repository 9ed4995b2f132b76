"""An operator lets workers look again at what none of them could tell (R7.4, R11.2, R13.2)."""

from __future__ import annotations

import pytest

from deliveries import OPERATOR, asked_to_stop, brought_to, last_fact
from left_rows import execution_of, left_to_operators, put_row, stood
from runfacts import (
    AttemptClaim,
    DedupeConflict,
    ExecutionOwner,
    InvalidValue,
    Ledger,
    LegacyRun,
    MalformedId,
    Outcome,
    RecoveryVersionConflict,
    Released,
    RetryPolicy,
    RunNotFound,
    VerbRefused,
)
from runfacts.domain.recovery.claims import ClaimState, Purpose
from runfacts.testing.clock import EPOCH_MS, ManualClock
from stages import ANA, WORKER, created, types, unchanged

LEASE_MS = 30_000
NOBODY = "01890000-0000-7000-8000-000000000001"
POLICY = RetryPolicy(max_attempts=2, retry_on_failure=True)
FREE = ("owner", "token_digest", "claim_expires_at_ms", "next_claim_at_ms", "reason", "seen", "delays", "failures")


def release(ledger: Ledger, run_id: str, version: int = 2, because: str = "the host is back") -> Released:
    return ledger.release(run_id, actor=OPERATOR, because=because, version=version)


@pytest.fixture
def manual(ledger: Ledger, manual_clock: ManualClock) -> AttemptClaim:
    """A running Run whose Attempt's lease has expired, left to the operators with version 2."""
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, claim)
    return claim


def test_what_is_released_may_be_claimed_at_once(
    ledger: Ledger, manual_clock: ManualClock, manual: AttemptClaim
) -> None:
    assert execution_of(ledger, manual.attempt_id)["recover_at_ms"] is None
    manual_clock.advance(7)
    now_ms = EPOCH_MS + LEASE_MS + 7
    assert release(ledger, manual.run_id) == Released(manual.run_id, Purpose.RECOVERY, 3)
    columns = ("state", "version", "due_at_ms", "updated_at_ms", "created_at_ms")
    expected = ("available", 3, now_ms, now_ms, now_ms - 7)
    assert stood(ledger, Purpose.RECOVERY, manual.attempt_id, *columns) == expected
    nothing = (None, None, None, None, None, None, 0, 0)
    assert stood(ledger, Purpose.RECOVERY, manual.attempt_id, *FREE) == nothing
    assert execution_of(ledger, manual.attempt_id)["recover_at_ms"] == now_ms
    said = {"purpose": "recovery", "reason": "the host is back"}
    expected_fact = ("run.recovery_released", said, f"release:recovery:{manual.attempt_id}:2")
    assert last_fact(ledger, manual.run_id) == expected_fact
    fact = ledger.history(manual.run_id)[-1]
    assert (fact.actor, fact.attempt_id, fact.sequence) == (OPERATOR, manual.attempt_id, 8)
    # Nothing else has changed: the Run still is where its worker left it, and its lease is still evidence.
    assert ledger.run(manual.run_id).status == "running"
    assert execution_of(ledger, manual.attempt_id)["lease_expires_at_ms"] == EPOCH_MS + LEASE_MS
    assert ledger.manual().items == ()
    assert ledger.verify().clean


def test_of_a_run_that_was_asked_to_stop_the_stop_is_released(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, asked.claim, Purpose.STOP, version=5)
    assert release(ledger, asked.run_id, 5) == Released(asked.run_id, Purpose.STOP, 6)
    columns = ("state", "version", "due_at_ms")
    assert stood(ledger, Purpose.STOP, asked.run_id, *columns) == ("available", 6, EPOCH_MS + LEASE_MS)
    said = {"purpose": "stop", "reason": "the host is back"}
    assert last_fact(ledger, asked.run_id) == ("run.recovery_released", said, f"release:stop:{asked.run_id}:5")
    # Its recovery is none of recovery's business (R12.2).
    assert execution_of(ledger, asked.attempt_id)["recover_at_ms"] is None


def test_of_a_run_that_waits_for_its_retry_the_retry_is_released(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running", policy=POLICY)
    ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER, group_left=True)
    left_to_operators(ledger, claim, Purpose.RETRY)
    assert release(ledger, claim.run_id) == Released(claim.run_id, Purpose.RETRY, 3)
    assert stood(ledger, Purpose.RETRY, claim.run_id, "state", "due_at_ms") == ("available", EPOCH_MS)
    assert last_fact(ledger, claim.run_id)[1] == {"purpose": "retry", "reason": "the host is back"}
    assert ledger.run(claim.run_id).status == "retry_wait"


def test_of_a_run_without_an_attempt_its_recovery_is_released(ledger: Ledger) -> None:
    run_id = created(ledger)
    put_row(ledger, Purpose.RECOVERY, ClaimState.MANUAL, run_id, reason="stuck_created", executor_type="", scope="")
    assert release(ledger, run_id) == Released(run_id, Purpose.RECOVERY, 3)
    assert stood(ledger, Purpose.RECOVERY, run_id, "state", "due_at_ms") == ("available", EPOCH_MS)
    assert last_fact(ledger, run_id)[2] == f"release:recovery:{run_id}:2"


def test_said_again_it_is_the_first_answer_and_with_another_reason_a_conflict(
    ledger: Ledger, manual_clock: ManualClock, manual: AttemptClaim
) -> None:
    first = release(ledger, manual.run_id)
    manual_clock.advance(7)
    with unchanged(ledger):
        assert release(ledger, manual.run_id) == first
        with pytest.raises(DedupeConflict):
            release(ledger, manual.run_id, because="I feel like it")


@pytest.mark.parametrize("since", ["manual", "stopping", "ended"])
def test_said_again_after_things_moved_on_it_still_is_the_first_answer(
    ledger: Ledger, manual: AttemptClaim, since: str
) -> None:
    first = release(ledger, manual.run_id)
    if since == "manual":
        left_to_operators(ledger, manual, version=5)
    else:
        ledger.request_cancellation(manual.run_id, actor=ANA)
    if since == "ended":
        ledger.finish(manual, Outcome.cancelled(signal=15), actor=WORKER)
    with unchanged(ledger):
        assert release(ledger, manual.run_id) == first
        with pytest.raises(DedupeConflict):
            release(ledger, manual.run_id, because="I feel like it")


def test_each_row_has_its_own_versions(ledger: Ledger, manual: AttemptClaim) -> None:
    release(ledger, manual.run_id)
    ledger.request_cancellation(manual.run_id, actor=ANA)
    left_to_operators(ledger, manual, Purpose.STOP, version=2)
    answer = release(ledger, manual.run_id, because="and again")
    assert answer == Released(manual.run_id, Purpose.STOP, 3)
    assert types(ledger, manual.run_id).count("run.recovery_released") == 2


@pytest.mark.parametrize("version", [0, 1, 3, -1])
def test_another_version_of_the_row_is_a_conflict(ledger: Ledger, manual: AttemptClaim, version: int) -> None:
    with unchanged(ledger), pytest.raises(RecoveryVersionConflict) as caught:
        release(ledger, manual.run_id, version)
    assert (caught.value.run_id, caught.value.expected, caught.value.actual) == (manual.run_id, version, 2)


@pytest.mark.parametrize("state", [ClaimState.AVAILABLE, ClaimState.RETRY, ClaimState.RESOLVED])
def test_what_does_not_wait_for_an_operator_is_not_released(
    ledger: Ledger, manual: AttemptClaim, state: ClaimState
) -> None:
    put_row(ledger, Purpose.RECOVERY, state, manual.run_id, manual.attempt_id)
    with unchanged(ledger), pytest.raises(VerbRefused, match="does not wait for an operator"):
        release(ledger, manual.run_id)


def test_what_a_worker_holds_is_not_released(ledger: Ledger, manual_clock: ManualClock, manual: AttemptClaim) -> None:
    put_row(ledger, Purpose.RECOVERY, ClaimState.CLAIMED, manual.run_id, manual.attempt_id)
    with unchanged(ledger), pytest.raises(VerbRefused, match="a worker looks at it right now"):
        release(ledger, manual.run_id)
    manual_clock.advance(30_000)
    with unchanged(ledger), pytest.raises(VerbRefused, match="does not wait for an operator"):
        release(ledger, manual.run_id)


def test_where_nobody_has_looked_there_is_nothing_to_release(ledger: Ledger) -> None:
    run_id = brought_to(ledger, "running").run_id
    with unchanged(ledger), pytest.raises(VerbRefused, match="does not wait for an operator"):
        release(ledger, run_id, 0)
    with unchanged(ledger), pytest.raises(RecoveryVersionConflict) as caught:
        release(ledger, run_id, 1)
    assert (caught.value.expected, caught.value.actual) == (1, 0)


def test_a_row_left_over_from_before_a_request_to_stop_is_not_released(ledger: Ledger, manual: AttemptClaim) -> None:
    ledger.request_cancellation(manual.run_id, actor=ANA)
    with unchanged(ledger), pytest.raises(RecoveryVersionConflict):
        release(ledger, manual.run_id)


def test_a_run_that_has_ended_needs_no_verb(ledger: Ledger, manual: AttemptClaim) -> None:
    ledger.finish(manual, Outcome.succeeded(exit_code=0), actor=WORKER)
    with unchanged(ledger), pytest.raises(VerbRefused, match="it is succeeded"):
        release(ledger, manual.run_id, 0)


@pytest.mark.parametrize("because", ["", " ", "\n\t"])
def test_it_needs_a_reason(ledger: Ledger, manual: AttemptClaim, because: str) -> None:
    with unchanged(ledger), pytest.raises(InvalidValue, match="because"):
        release(ledger, manual.run_id, because=because)


def test_it_is_not_for_runs_of_others_or_runs_that_are_not_there(ledger: Ledger) -> None:
    legacy = created(ledger, execution_owner=ExecutionOwner.LEGACY)
    with unchanged(ledger):
        with pytest.raises(LegacyRun):
            release(ledger, legacy, 0)
        with pytest.raises(RunNotFound):
            release(ledger, NOBODY, 0)
        with pytest.raises(MalformedId):
            release(ledger, "nonsense", 0)

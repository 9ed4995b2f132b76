"""A Run is lost on an operator's word (R6.2, R11.5, R12.1, R13.2)."""

from __future__ import annotations

from typing import Any

import pytest

from deliveries import OPERATOR, asked_to_stop, brought_to
from evidence_doubles import Provider
from left_rows import execution_of, left_to_operators, put_row, row_of_item, stood
from racing import overtake
from runfacts import (
    AttemptClaim,
    AttemptStatus,
    AttestedLost,
    DedupeConflict,
    Evidence,
    ExecutionOwner,
    InvalidValue,
    LateCallback,
    Ledger,
    LegacyRun,
    Outcome,
    RecoveryVersionConflict,
    RenewalRefused,
    Renewed,
    RunNotFound,
    RunStatus,
    StillRunning,
    Unknown,
    VerbRefused,
)
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptLost,
    AttemptRunning,
    AttemptStarting,
    AttemptSucceeded,
    Payload,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRunning,
)
from runfacts.domain.recovery.claims import ClaimState, Purpose
from runfacts.domain.retry import RetryPolicy
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, created, one_writer, queued, types, unchanged

LEASE_MS = 30_000
LONG_MS = 600_000
NOBODY = "01890000-0000-7000-8000-000000000001"


def attest(ledger: Ledger, run_id: str, version: int = 2, because: str = "I looked", **other: Any) -> AttestedLost:  # noqa: ANN401
    return ledger.attest_not_running(run_id, actor=OPERATOR, because=because, version=version, **other)


def manual_at(ledger: Ledger, clock: ManualClock, status: str = "running") -> AttemptClaim:
    """Leave a Run to the operators whose Attempt's lease has expired; its row is at version 2."""
    claim = brought_to(ledger, status)
    clock.advance(LEASE_MS)
    left_to_operators(ledger, claim)
    return claim


@pytest.fixture
def manual(ledger: Ledger, manual_clock: ManualClock) -> AttemptClaim:
    """A running Run that waits for an operator."""
    return manual_at(ledger, manual_clock)


def test_an_operators_word_makes_attempt_and_run_lost(
    ledger: Ledger, manual_clock: ManualClock, manual: AttemptClaim
) -> None:
    manual_clock.advance(5)
    now_ms = EPOCH_MS + LEASE_MS + 5
    run_id, attempt_id = manual.run_id, manual.attempt_id
    assert attest(ledger, run_id) == AttestedLost(run_id, attempt_id, RunStatus.LOST, 3)
    view = ledger.run(run_id)
    assert (view.status, view.version, view.finished_at_ms) == (RunStatus.LOST, 10, None)
    assert (view.attempts[0].status, view.attempts[0].evidence) == (AttemptStatus.LOST, EvidenceKind.ATTESTED)
    word, attempt_lost, run_lost = ledger.history(run_id)[7:]
    assert [fact.type for fact in (word, attempt_lost, run_lost)] == [
        "run.recovery_attested",
        "attempt.lost",
        "run.lost",
    ]
    assert [fact.dedupe_key for fact in (word, attempt_lost, run_lost)] == [
        f"attest-not-running:{attempt_id}:2",
        f"lost:{attempt_id}",
        f"run-lost:{attempt_id}",
    ]
    assert {fact.actor for fact in (word, attempt_lost, run_lost)} == {OPERATOR}
    assert {fact.attempt_id for fact in (word, attempt_lost, run_lost)} == {attempt_id}
    payloads = [fact.payload.model_dump(mode="json", exclude_none=True) for fact in (word, attempt_lost, run_lost)]
    assert payloads == [{"reason": "I looked"}, {"evidence": "attested"}, {"evidence": "attested"}]
    # The row is done with, the execution closed and kept as evidence, and the retry authority's turn has come.
    columns = ("state", "version", "due_at_ms", "reason", "updated_at_ms")
    assert stood(ledger, Purpose.RECOVERY, attempt_id, *columns) == ("resolved", 3, None, None, now_ms)
    execution = execution_of(ledger, attempt_id)
    assert (execution["recover_at_ms"], execution["closed_at_ms"]) == (None, now_ms)
    assert (execution["handle"], execution["lease_expires_at_ms"]) == ("handle-1", EPOCH_MS + LEASE_MS)
    placed = ("kind", "state", "due_at_ms", "attempt_id", "executor_type", "scope")
    # Any worker of the executor type may take that up.
    expected = ("run", "available", now_ms, attempt_id, "batch", "")
    assert stood(ledger, Purpose.RETRY, run_id, *placed) == expected
    assert ledger.manual().items == ()
    assert ledger.verify().clean


@pytest.mark.parametrize("status", ["claimed", "starting", "waiting_approval"])
def test_it_does_at_any_stage_of_the_attempt(ledger: Ledger, manual_clock: ManualClock, status: str) -> None:
    claim = manual_at(ledger, manual_clock, status)
    assert attest(ledger, claim.run_id).status is RunStatus.LOST
    assert ledger.run(claim.run_id).attempts[0].status is AttemptStatus.LOST
    assert ledger.verify().clean


def test_what_nobody_looks_at_is_attested_without_a_row(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + LONG_MS - 1)
    with unchanged(ledger), pytest.raises(VerbRefused, match="does not wait for an operator"):
        attest(ledger, claim.run_id, 0)
    manual_clock.advance(1)
    (item,) = ledger.manual().items
    answer = attest(ledger, claim.run_id, item.version)
    assert answer == AttestedLost(claim.run_id, claim.attempt_id, RunStatus.LOST, 1)
    columns = ("kind", "state", "version", "run_id", "executor_type", "scope")
    expected = ("attempt", "resolved", 1, claim.run_id, "batch", "here")
    assert stood(ledger, Purpose.RECOVERY, claim.attempt_id, *columns) == expected
    assert ledger.manual().items == ()
    with unchanged(ledger):
        assert attest(ledger, claim.run_id, 0) == answer
    assert ledger.verify().clean


@pytest.mark.parametrize(("state", "due_ms"), [(ClaimState.CLAIMED, 30_000), (ClaimState.RETRY, 5_000)])
def test_what_somebody_looked_at_long_ago_is_attested_too(
    ledger: Ledger, manual_clock: ManualClock, state: ClaimState, due_ms: int
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    put_row(ledger, Purpose.RECOVERY, state, claim.run_id, claim.attempt_id)
    refusal = "a worker looks at it right now" if state is ClaimState.CLAIMED else "does not wait for an operator"
    with unchanged(ledger), pytest.raises(VerbRefused, match=refusal):
        attest(ledger, claim.run_id)
    manual_clock.advance(due_ms + LONG_MS - 1)
    with unchanged(ledger), pytest.raises(VerbRefused, match="does not wait for an operator"):
        attest(ledger, claim.run_id)
    manual_clock.advance(1)
    assert attest(ledger, claim.run_id).version == 3
    assert stood(ledger, Purpose.RECOVERY, claim.attempt_id, "state", "owner", "next_claim_at_ms") == (
        "resolved",
        None,
        None,
    )


@pytest.mark.parametrize("state", [ClaimState.AVAILABLE, ClaimState.RESOLVED])
def test_what_a_worker_may_still_look_at_is_not_attested(
    ledger: Ledger, manual: AttemptClaim, state: ClaimState
) -> None:
    put_row(ledger, Purpose.RECOVERY, state, manual.run_id, manual.attempt_id)
    with unchanged(ledger), pytest.raises(VerbRefused, match="does not wait for an operator"):
        attest(ledger, manual.run_id)


def test_a_worker_whose_lease_is_valid_looks_after_its_run_itself(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS - 1)
    left_to_operators(ledger, claim)
    with unchanged(ledger), pytest.raises(VerbRefused, match="its worker holds a valid lease"):
        attest(ledger, claim.run_id)
    manual_clock.advance(1)
    assert attest(ledger, claim.run_id).status is RunStatus.LOST


def test_whoever_comes_back_after_the_word_has_lost_its_attempt(ledger: Ledger, manual: AttemptClaim) -> None:
    attest(ledger, manual.run_id)
    assert isinstance(ledger.renew(manual), RenewalRefused)
    late = ledger.finish(manual, Outcome.succeeded(exit_code=0), actor=WORKER)
    assert isinstance(late, LateCallback)
    assert ledger.run(manual.run_id).status is RunStatus.LOST
    assert types(ledger, manual.run_id)[-1] == "attempt.late_callback_ignored"


def test_a_renewal_that_comes_at_the_same_time_wins_if_it_commits_first(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory()
    claim = manual_at(ledger, manual_clock)

    def word(ledger: Ledger) -> AttestedLost | str:
        try:
            return attest(ledger, claim.run_id)
        except (VerbRefused, RecoveryVersionConflict) as error:
            return str(error)

    answer, renewal = overtake(ledger_factory, word, lambda ledger: ledger.renew(claim))
    if one_writer(ledger):
        assert isinstance(answer, AttestedLost)
        assert isinstance(renewal, RenewalRefused)
    else:
        assert answer == f"the recovery of run {claim.run_id} is at version 3, not 2"
        assert isinstance(renewal, Renewed)
        assert ledger.run(claim.run_id).status is RunStatus.RUNNING


def test_a_renewal_of_what_nobody_has_looked_at_wins_too(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory()
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS + LONG_MS)

    def word(ledger: Ledger) -> AttestedLost | str:
        try:
            return attest(ledger, claim.run_id, 0)
        except VerbRefused as error:
            return error.reason

    answer, renewal = overtake(ledger_factory, word, lambda ledger: ledger.renew(claim))
    if one_writer(ledger):
        assert isinstance(answer, AttestedLost)
        assert isinstance(renewal, RenewalRefused)
    else:
        assert answer == "it does not wait for an operator"
        assert isinstance(renewal, Renewed)


# who may not be lost


def test_what_was_asked_to_stop_is_confirmed_not_attested(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, asked.claim, Purpose.STOP)
    with unchanged(ledger), pytest.raises(VerbRefused, match="somebody asked it to stop; confirm-stopped is for that"):
        attest(ledger, asked.run_id)


def test_what_is_not_under_way_is_not_lost(ledger: Ledger) -> None:
    ended = brought_to(ledger, "running")
    ledger.finish(ended, Outcome.succeeded(exit_code=0), actor=WORKER)
    waits = brought_to(ledger, "running", policy=RetryPolicy(max_attempts=2, retry_on_failure=True))
    ledger.finish(waits, Outcome.failed(exit_code=1), actor=WORKER)
    cancelled = queued(ledger)
    ledger.request_cancellation(cancelled, actor=ANA)
    runs = {
        created(ledger): "it is created",
        queued(ledger): "it is queued",
        ended.run_id: "it is succeeded",
        waits.run_id: "it is retry_wait",
        cancelled: "it is cancelled",
    }
    for run_id, why in runs.items():
        with unchanged(ledger), pytest.raises(VerbRefused, match=why):
            attest(ledger, run_id, 0)


@pytest.mark.parametrize("version", [0, 1, 3, -1])
def test_another_version_of_the_row_is_a_conflict(ledger: Ledger, manual: AttemptClaim, version: int) -> None:
    with unchanged(ledger), pytest.raises(RecoveryVersionConflict) as caught:
        attest(ledger, manual.run_id, version)
    assert (caught.value.run_id, caught.value.expected, caught.value.actual) == (manual.run_id, version, 2)


@pytest.mark.parametrize("because", ["", " ", "\n\t"])
def test_it_needs_a_reason(ledger: Ledger, manual: AttemptClaim, because: str) -> None:
    with unchanged(ledger), pytest.raises(InvalidValue, match="because"):
        attest(ledger, manual.run_id, because=because)


def test_it_is_not_for_runs_of_others_or_runs_that_are_not_there(ledger: Ledger) -> None:
    legacy = created(ledger, execution_owner=ExecutionOwner.LEGACY)
    with unchanged(ledger):
        with pytest.raises(LegacyRun):
            attest(ledger, legacy, 0)
        with pytest.raises(RunNotFound):
            attest(ledger, NOBODY, 0)


# repetition


def test_said_again_it_is_the_first_answer_and_with_another_reason_a_conflict(
    ledger: Ledger, manual_clock: ManualClock, manual: AttemptClaim
) -> None:
    first = attest(ledger, manual.run_id)
    manual_clock.advance(7)
    with unchanged(ledger):
        assert attest(ledger, manual.run_id) == first
        with pytest.raises(DedupeConflict):
            attest(ledger, manual.run_id, because="I feel like it")


def test_it_is_once_lost_however_often_it_is_said(ledger: Ledger, manual: AttemptClaim) -> None:
    attest(ledger, manual.run_id)
    with unchanged(ledger), pytest.raises(VerbRefused, match="it is lost"):
        attest(ledger, manual.run_id, 3)


# what a provider says


def test_the_provider_is_asked_first_and_only_running_stands_in_the_way(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory()
    for answer in (Evidence.not_running(), *(Evidence.unknown(reason) for reason in Unknown)):
        claim = manual_at(ledger, manual_clock)
        provider = Provider(answer)
        assert attest(ledger, claim.run_id, provider=provider).status is RunStatus.LOST
        (target,) = provider.asked
        assert (target.run_id, target.attempt_id, target.attempt_status) == (claim.run_id, claim.attempt_id, "running")
        assert (target.executor_type, target.scope, target.handle, target.pid) == ("batch", "here", "handle-1", 4_711)
        assert "forced" not in ledger.history(claim.run_id)[7].payload.model_dump(exclude_none=True)


def test_what_runs_is_not_lost_unless_the_operator_insists(ledger: Ledger, manual: AttemptClaim) -> None:
    with unchanged(ledger), pytest.raises(StillRunning):
        attest(ledger, manual.run_id, provider=Provider(Evidence.running()))
    first = attest(ledger, manual.run_id, provider=Provider(Evidence.running()), force=True)
    word = ledger.history(manual.run_id)[7].payload
    assert word.model_dump(mode="json", exclude_none=True) == {"reason": "I looked", "forced": True}
    with unchanged(ledger):
        assert attest(ledger, manual.run_id, provider=Provider(Evidence.running()), force=True) == first


def test_force_is_recorded_only_where_it_was_needed(ledger: Ledger, manual: AttemptClaim) -> None:
    attest(ledger, manual.run_id, provider=Provider(), force=True)
    assert "forced" not in ledger.history(manual.run_id)[7].payload.model_dump(exclude_none=True)


def test_a_provider_of_another_executor_type_is_not_asked(ledger: Ledger, manual: AttemptClaim) -> None:
    provider = Provider(Evidence.running(), executor_type="other")
    attest(ledger, manual.run_id, provider=provider)
    assert provider.asked == []


# Runs without an active Attempt

UNDER_WAY: tuple[Payload, ...] = (
    RunCreated(task="report", policy=RetryPolicy()),
    RunQueued(),
    RunDispatching(number=1),
    AttemptClaimed(number=1, executor_type="batch"),
    AttemptStarting(),
    AttemptRunning(),
    RunRunning(),
)


def test_a_run_whose_attempt_is_lost_already_follows_it(ledger: Ledger) -> None:
    claim = given_in(ledger, *UNDER_WAY, AttemptLost(evidence=EvidenceKind.NOT_RUNNING)).claim
    put_row(ledger, Purpose.RECOVERY, ClaimState.MANUAL, claim.run_id, reason="failure_limit")
    (item,) = ledger.manual().items
    assert (item.reason, item.purpose, item.version) == ("failure_limit", Purpose.RECOVERY, 2)
    assert attest(ledger, claim.run_id) == AttestedLost(claim.run_id, claim.attempt_id, RunStatus.LOST, 3)
    word, run_lost = ledger.history(claim.run_id)[8:]
    assert (word.type, word.dedupe_key) == ("run.recovery_attested", f"attest-not-running:{claim.run_id}:2")
    # The Attempt's own evidence stands.
    assert (run_lost.type, run_lost.payload.model_dump(mode="json", exclude_none=True)) == (
        "run.lost",
        {"evidence": "not_running"},
    )
    assert stood(ledger, Purpose.RECOVERY, claim.run_id, "state") == ("resolved",)
    assert stood(ledger, Purpose.RETRY, claim.run_id, "state") == ("available",)
    assert ledger.verify().clean


def test_a_run_whose_attempt_ended_otherwise_is_not_lost(ledger: Ledger) -> None:
    claim = given_in(ledger, *UNDER_WAY, AttemptSucceeded(exit_code=0)).claim
    put_row(ledger, Purpose.RECOVERY, ClaimState.MANUAL, claim.run_id, reason="inconsistent")
    with unchanged(ledger), pytest.raises(VerbRefused, match="its attempt is succeeded; cancel ends it"):
        attest(ledger, claim.run_id)
    ledger.request_cancellation(claim.run_id, actor=ANA)
    assert ledger.run(claim.run_id).status is RunStatus.CANCELLED


def test_a_run_without_any_attempt_is_not_lost(ledger: Ledger) -> None:
    run_id = given_in(
        ledger, RunCreated(task="report", policy=RetryPolicy()), RunQueued(), RunDispatching(number=1)
    ).run_id
    put_row(ledger, Purpose.RECOVERY, ClaimState.MANUAL, run_id, reason="unexpected", executor_type="", scope="")
    with unchanged(ledger), pytest.raises(VerbRefused, match="it has no attempt; cancel ends it"):
        attest(ledger, run_id)
    assert row_of_item(ledger, Purpose.RETRY, run_id) is None

"""
What the evidence allows is recorded under a term, of exactly what was seen, or not at all.

R2.6, R3.4, R4.1, R4.2, R4.6, R6.5, R11.5, R11.6, R11.7, R12.1, R12.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from deliveries import asked_to_stop, brought_to, held_by, last_fact
from failing_database import failing
from recoveries import (
    LEASE_MS,
    ONE,
    RECONCILER,
    RETRIED,
    TWO,
    applied,
    change,
    execution_of,
    only,
    page,
    row_of_claim,
    row_of_item,
    seen,
    settled,
    without_an_attempt,
)
from runfacts import AttemptClaim, AttemptStatus, IntentKind, Ledger, Outcome, RetryPolicy, RunStatus
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import (
    ClaimState,
    Purpose,
    RecoveryApplied,
    RecoveryClaimed,
    RecoveryFenced,
    RecoverySettled,
    RecoveryStale,
)
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of
from runfacts.testing.steps import FailAt, RecordedSteps, listening
from stages import ANA, WORKER, types, unchanged


def expired(ledger: Ledger, clock: ManualClock, status: str = "running", **options: Any) -> AttemptClaim:  # noqa: ANN401 - any option of create
    """Bring a Run to a status and let its lease expire."""
    claim = brought_to(ledger, status, **options)
    clock.advance(LEASE_MS)
    return claim


def lose(ledger: Ledger, claim: RecoveryClaimed, snapshot: Snapshot) -> object:
    """Declare an Attempt lost that does not run."""
    return ledger.apply_lost(claim, snapshot, Evidence.NOT_RUNNING, "batch")


def test_lost_is_two_facts_and_a_retry_to_decide(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = expired(ledger, manual_clock)
    before = execution_of(ledger, attempt.attempt_id)
    claim = only(ledger)
    answer = applied(lose(ledger, claim, seen(ledger, claim)))
    assert (answer.key, answer.run_status, answer.version) == (claim.key, "lost", 9)
    of_attempt, of_run = ledger.history(attempt.run_id)[-2:]
    said = {"evidence": "not_running", "provider_type": "batch"}
    assert [fact.type for fact in (of_attempt, of_run)] == ["attempt.lost", "run.lost"]
    for fact, key in ((of_attempt, f"lost:{attempt.attempt_id}"), (of_run, f"run-lost:{attempt.attempt_id}")):
        assert fact.payload.model_dump(mode="json", exclude_none=True) == said
        assert (fact.dedupe_key, fact.actor, fact.recorded_at_ms) == (key, RECONCILER, EPOCH_MS + LEASE_MS)
    run = ledger.run(attempt.run_id)
    assert (run.status, run.attempts[0].status) == (RunStatus.LOST, AttemptStatus.LOST)
    # The execution stays as evidence; it is closed, and nobody recovers it again.
    after = execution_of(ledger, attempt.attempt_id)
    assert after == before | {"closed_at_ms": EPOCH_MS + LEASE_MS, "recover_at_ms": None}
    # The claim stays until its holder settles it; any worker of the executor type may decide what comes next.
    assert row_of_claim(ledger, claim)["state"] == "claimed"
    retry = row_of_item(ledger, Purpose.RETRY, attempt.run_id)
    assert (retry["state"], retry["due_at_ms"], retry["scope"]) == ("available", EPOCH_MS + LEASE_MS, "")
    assert settled(ledger, claim).state is ClaimState.RESOLVED
    assert ledger.verify().clean


@pytest.mark.parametrize("status", ["claimed", "starting", "waiting_approval"])
def test_lost_from_each_status(ledger: Ledger, manual_clock: ManualClock, status: str) -> None:
    attempt = expired(ledger, manual_clock, status)
    claim = only(ledger)
    applied(ledger.apply_lost(claim, seen(ledger, claim), Evidence.PRE_START, None))
    assert types(ledger, attempt.run_id)[-2:] == ["attempt.lost", "run.lost"]
    assert last_fact(ledger, attempt.run_id)[1] == {"evidence": "pre_start"}


def test_a_fenced_holder_does_not_even_read_the_run(ledger: Ledger, manual_clock: ManualClock) -> None:
    expired(ledger, manual_clock)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    manual_clock.advance(LEASE_MS)
    only(ledger, owner=TWO)
    acts: tuple[Callable[[], object], ...] = (
        lambda: lose(ledger, claim, snapshot),
        lambda: ledger.apply_stopped(claim, snapshot, Evidence.NOT_RUNNING, "batch"),
        lambda: ledger.apply_retry(claim, snapshot),
    )
    for act in acts:
        recorded = RecordedSteps()
        with unchanged(ledger), listening(ledger, recorded):
            assert act() == RecoveryFenced(claim.key)
        asked = {name.removeprefix("sql:before:") for name in recorded.names if name.startswith("sql:before:")}
        assert asked - {"now", "commit"} == {"select_recovery_claim"}


def test_nothing_is_recorded_twice(ledger: Ledger, manual_clock: ManualClock) -> None:
    expired(ledger, manual_clock)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    applied(lose(ledger, claim, snapshot))
    with unchanged(ledger):
        assert lose(ledger, claim, snapshot) == RecoveryStale(claim.key)


SNAPSHOT_CHANGES: dict[str, Any] = {
    "run_status": RunStatus.WAITING_APPROVAL,
    "run_version": 6,
    "execution_owner": "legacy",
    "intent_kind": IntentKind.USER,
    "intent_at_ms": 1,
    "retry_due_at_ms": 1,
    "group_left": True,
    "policy": RetryPolicy(max_attempts=3),
    "unknown_types": True,
    "attempt_id": None,
    "attempt_number": 2,
    "attempt_status": AttemptStatus.STARTING,
    "attempt_latest": False,
    "execution": None,
}
EXECUTION_CHANGES: dict[str, Any] = {
    "executor_type": "other",
    "gated": True,
    "scope": "there",
    "worker_id": "w",
    "handle": "handle-2",
    "pid": 4_712,
    "lease_token_digest": "0" * 64,
    "lease_expires_at_ms": 1,
    "callback_sequence": 2,
    "deadline_at_ms": 1,
    "receipt_path": "/r",
    "seen_at_ms": 1,
}


def test_every_field_of_the_snapshot_is_compared(ledger: Ledger, manual_clock: ManualClock) -> None:
    expired(ledger, manual_clock)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    assert snapshot.execution is not None
    compared = {name for name, field in Snapshot.__dataclass_fields__.items() if field.compare}
    assert compared == {*SNAPSHOT_CHANGES, "run_id"}
    assert set(type(snapshot.execution).__dataclass_fields__) == set(EXECUTION_CHANGES)
    others = [replace(snapshot, **{name: value}) for name, value in SNAPSHOT_CHANGES.items()]
    others += [
        replace(snapshot, execution=replace(snapshot.execution, **{name: value}))
        for name, value in EXECUTION_CHANGES.items()
    ]
    for other in (*others, replace(snapshot, run_id=claim.key.item_id)):
        with unchanged(ledger):
            assert lose(ledger, claim, other) == RecoveryStale(claim.key)
    # What was only judged is not: time goes on.
    assert isinstance(lose(ledger, claim, replace(snapshot, now_ms=1, lease_valid=True)), RecoveryApplied)


@pytest.mark.parametrize(
    "happens",
    [
        lambda ledger, claim: ledger.wait_for_approval(claim, actor=WORKER),
        lambda ledger, claim: ledger.request_cancellation(claim.run_id, actor=ANA),
        lambda ledger, claim: ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER),
        lambda ledger, claim: change(
            ledger, "executions", f"lease_expires_at_ms = {EPOCH_MS + 1}", f"attempt_id = '{claim.attempt_id}'"
        ),
    ],
    ids=["report", "intent", "outcome", "lease"],
)
def test_what_changed_since_the_snapshot_makes_it_stale(
    ledger: Ledger, manual_clock: ManualClock, happens: Callable[[Ledger, AttemptClaim], object]
) -> None:
    attempt = expired(ledger, manual_clock)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    happens(ledger, attempt)
    with unchanged(ledger):
        assert lose(ledger, claim, snapshot) == RecoveryStale(claim.key)
    assert isinstance(ledger.settle_recovery(claim), RecoverySettled)
    assert ledger.verify().clean


def test_what_happens_between_reading_and_writing_makes_it_stale_or_fenced(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    one, two = ledger_factory(), ledger_factory()
    if one.database.dialect == "sqlite":
        # Nobody gets between: the transaction has the one right to write from its beginning.
        return
    attempt = expired(one, manual_clock)
    claim = only(one)
    snapshot = seen(one, claim)
    steps = CallOnce("sql:after:select_recovery_execution", lambda: two.wait_for_approval(attempt, actor=WORKER))
    with listening(one, steps):
        assert lose(one, claim, snapshot) == RecoveryStale(claim.key)
    snapshot = seen(one, claim)

    def taken_over() -> None:
        manual_clock.advance(LEASE_MS)
        only(two, owner=TWO)

    with listening(one, CallOnce("sql:after:select_recovery_execution", taken_over)):
        assert lose(one, claim, snapshot) == RecoveryFenced(claim.key)
    assert types(one, attempt.run_id)[-1] == "run.waiting_approval"


def test_a_host_that_renews_between_reading_and_writing_makes_a_stop_stale(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    one, two = ledger_factory(), ledger_factory()
    if one.database.dialect == "sqlite":
        return
    asked = asked_to_stop(one)
    manual_clock.advance(LEASE_MS)
    claim = only(one, Purpose.STOP)
    snapshot = seen(one, claim)
    # A stop keeps nobody from renewing, so it is the write that must see it.
    with listening(one, CallOnce("sql:after:select_recovery_execution", lambda: two.renew(asked.claim))):
        assert one.apply_stopped(claim, snapshot, Evidence.NOT_RUNNING, "batch") == RecoveryStale(claim.key)
    assert types(one, asked.run_id)[-1] == "run.cancel_requested"


def test_a_term_whose_time_passes_between_reading_and_writing_allows_nothing(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    expired(ledger, manual_clock)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    passes = CallOnce("sql:after:select_recovery_execution", lambda: manual_clock.advance(LEASE_MS))
    with unchanged(ledger), listening(ledger, passes):
        assert lose(ledger, claim, snapshot) == RecoveryFenced(claim.key)
    again = only(ledger)
    passes = CallOnce("sql:after:lock_recovery_claim", lambda: manual_clock.advance(LEASE_MS))
    with unchanged(ledger), listening(ledger, passes):
        assert ledger.settle_recovery(again) == RecoveryFenced(again.key)


class CallOnce:
    """Calls a function the first time that a step is reached."""

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._name = name
        self._call: Callable[[], object] | None = call

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        if name == self._name and self._call is not None:
            call, self._call = self._call, None
            call()


class InjectedError(Exception):
    """What a test makes the product run into."""


def to_be_lost(ledger: Ledger, clock: ManualClock) -> Callable[[Ledger], object]:
    """Prepare a loss."""
    expired(ledger, clock)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    return lambda by: lose(by, claim, snapshot)


def to_be_stopped(ledger: Ledger, clock: ManualClock) -> Callable[[Ledger], object]:
    """Prepare a confirmed stop."""
    asked_to_stop(ledger)
    clock.advance(LEASE_MS)
    claim = only(ledger, Purpose.STOP)
    snapshot = seen(ledger, claim)
    return lambda by: by.apply_stopped(claim, snapshot, Evidence.NOT_RUNNING, "batch")


def to_be_retried(ledger: Ledger, clock: ManualClock) -> Callable[[Ledger], object]:
    """Prepare the decision on a lost Run."""
    attempt = expired(ledger, clock, policy=RETRIED)
    lost_by = only(ledger)
    lose(ledger, lost_by, seen(ledger, lost_by))
    ledger.settle_recovery(lost_by)
    # Those that were prepared before are due again, too.
    (claim,) = [claim for claim in page(ledger, Purpose.RETRY, limit=128) if claim.run_id == attempt.run_id]
    snapshot = seen(ledger, claim)
    return lambda by: by.apply_retry(claim, snapshot)


@pytest.mark.parametrize("prepare", [to_be_lost, to_be_stopped, to_be_retried])
def test_a_failure_anywhere_leaves_no_trace(
    ledger: Ledger,
    manual_clock: ManualClock,
    prepare: Callable[[Ledger, ManualClock], Callable[[Ledger], object]],
) -> None:
    act = prepare(ledger, manual_clock)
    before = contents_of(ledger)
    recorded = RecordedSteps()
    with listening(ledger, recorded):
        applied(act(ledger))
    after = contents_of(ledger)
    steps = [name for name in dict.fromkeys(recorded.names) if name != "sql:after:commit"]
    assert "sql:before:commit" in steps
    for name in steps:
        act = prepare(ledger, manual_clock)
        with unchanged(ledger), listening(ledger, FailAt(name, InjectedError)), pytest.raises(InjectedError):
            act(ledger)
        applied(act(ledger))
    for table in after:
        for operation in ("INSERT", "UPDATE"):
            if not _wrote(before[table], after[table], operation):
                continue
            act = prepare(ledger, manual_clock)
            with (
                unchanged(ledger),
                failing(ledger, table, operation),
                pytest.raises(ledger.database.driver_error, match="injected"),
            ):
                act(ledger)
            applied(act(ledger))
    assert ledger.verify().clean


def _wrote(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]], operation: str) -> bool:
    if operation == "INSERT":
        return len(after) > len(before)
    return len(set(after) - set(before)) > len(after) - len(before)


def test_a_stop_that_is_proven_ends_attempt_and_run(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    manual_clock.advance(LEASE_MS)
    claim = only(ledger, Purpose.STOP)
    answer = applied(ledger.apply_stopped(claim, seen(ledger, claim), Evidence.NOT_RUNNING, "batch"))
    assert answer.run_status == "cancelled"
    facts = ledger.history(asked.run_id)[-3:]
    assert [fact.type for fact in facts] == ["run.stop_confirmed", "attempt.cancelled", "run.cancelled"]
    assert facts[0].dedupe_key == f"stop-confirmed:{asked.run_id}:{asked.attempt_id}"
    execution = execution_of(ledger, asked.attempt_id)
    assert (execution["closed_at_ms"], execution["recover_at_ms"]) == (EPOCH_MS + LEASE_MS, None)
    assert row_of_claim(ledger, claim)["state"] == "claimed"
    assert settled(ledger, claim).state is ClaimState.RESOLVED
    # Nothing is delivered any more, but whoever held the delivery may still say what he did.
    ledger.settle_dispatch(held, DispatchResult.TERMINATION_REQUESTED)
    assert ledger.verify().clean


def test_a_timeout_that_is_proven_ends_as_timed_out(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger, kind=IntentKind.TIMEOUT)
    manual_clock.advance(LEASE_MS)
    claim = only(ledger, Purpose.STOP)
    answer = applied(ledger.apply_stopped(claim, seen(ledger, claim), Evidence.NOT_RUNNING, "batch"))
    assert (answer.run_status, ledger.run(asked.run_id).attempts[0].status) == ("timed_out", AttemptStatus.TIMED_OUT)


def test_a_lost_run_is_tried_again_when_its_policy_says_so(ledger: Ledger, manual_clock: ManualClock) -> None:
    act = to_be_retried(ledger, manual_clock)
    answer = applied(act(ledger))
    (run,) = ledger.runs().items
    assert (answer.run_status, last_fact(ledger, run.run_id)) == (
        "retry_wait",
        ("run.retry_wait", {"due_at_ms": EPOCH_MS + LEASE_MS + 1_000}, f"retry:{run.run_id}:1"),
    )
    # The crash between mutation and settle: the next one finds it done, and gives the row its due time.
    manual_clock.advance(LEASE_MS)
    claim = only(ledger, Purpose.RETRY, TWO)
    assert claim.failures == 1
    answer = applied(ledger.apply_retry(claim, seen(ledger, claim)))
    assert (answer.run_status, last_fact(ledger, run.run_id)[2]) == ("queued", f"requeue:{run.run_id}:1")
    assert settled(ledger, claim).state is ClaimState.RESOLVED
    assert ledger.verify().clean


def test_a_retry_waits_for_its_time(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = expired(ledger, manual_clock, policy=replace(RETRIED, backoff_ms=60_000))
    lost_by = only(ledger)
    applied(lose(ledger, lost_by, seen(ledger, lost_by)))
    settled(ledger, lost_by)
    claim = only(ledger, Purpose.RETRY)
    applied(ledger.apply_retry(claim, seen(ledger, claim)))
    answer = settled(ledger, claim)
    assert (answer.state, answer.next_claim_at_ms) == (ClaimState.AVAILABLE, None)
    manual_clock.advance(59_999)
    with unchanged(ledger):
        assert page(ledger, Purpose.RETRY) == ()
    manual_clock.advance(1)
    claim = only(ledger, Purpose.RETRY)
    applied(ledger.apply_retry(claim, seen(ledger, claim)))
    assert ledger.run(attempt.run_id).status is RunStatus.QUEUED


def test_a_crash_before_the_settle_of_a_retry_that_waits_gives_the_row_its_time(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    attempt = expired(ledger, manual_clock, policy=replace(RETRIED, backoff_ms=60_000))
    lost_by = only(ledger)
    applied(lose(ledger, lost_by, seen(ledger, lost_by)))
    claim = only(ledger, Purpose.RETRY)
    applied(ledger.apply_retry(claim, seen(ledger, claim)))
    manual_clock.advance(LEASE_MS)
    assert page(ledger, Purpose.RETRY, TWO) == ()
    row = row_of_item(ledger, Purpose.RETRY, attempt.run_id)
    assert (row["state"], row["due_at_ms"]) == ("available", EPOCH_MS + LEASE_MS + 60_000)
    manual_clock.advance(30_000)
    assert only(ledger, Purpose.RETRY, TWO).run_id == attempt.run_id


def test_a_lost_run_without_a_retry_fails(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = expired(ledger, manual_clock)
    lost_by = only(ledger)
    applied(lose(ledger, lost_by, seen(ledger, lost_by)))
    claim = only(ledger, Purpose.RETRY, served=frozenset({("batch", "there")}))
    assert not claim.foreign
    assert applied(ledger.apply_retry(claim, seen(ledger, claim))).run_status == "failed"
    assert last_fact(ledger, attempt.run_id) == (
        "run.failed",
        {"error_code": "worker_lost"},
        f"retry:{attempt.run_id}:1",
    )
    assert settled(ledger, claim).state is ClaimState.RESOLVED


def test_a_run_whose_attempt_is_lost_already_follows_by_its_evidence(ledger: Ledger) -> None:
    run_id = without_an_attempt(ledger)
    claim = only(ledger)
    assert applied(ledger.apply_lost(claim, seen(ledger, claim), None, None)).run_status == "lost"
    attempt = ledger.run(run_id).attempts[0]
    assert last_fact(ledger, run_id) == ("run.lost", {"evidence": "not_running"}, f"run-lost:{attempt.attempt_id}")
    assert settled(ledger, claim).state is ClaimState.RESOLVED
    assert only(ledger, Purpose.RETRY).run_id == run_id
    assert ledger.verify().clean


def test_a_late_report_after_lost_changes_nothing(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = expired(ledger, manual_clock)
    claim = only(ledger)
    applied(lose(ledger, claim, seen(ledger, claim)))
    ledger.finish(attempt, Outcome.succeeded(exit_code=0), actor=WORKER)
    assert ledger.run(attempt.run_id).status is RunStatus.LOST
    assert types(ledger, attempt.run_id)[-1] == "attempt.late_callback_ignored"


def test_a_snapshot_says_what_is_recorded(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = expired(ledger, manual_clock, policy=RETRIED)
    snapshot = seen(ledger, only(ledger, owner=ONE))
    assert (snapshot.run_id, snapshot.attempt_id) == (attempt.run_id, attempt.attempt_id)
    assert (snapshot.run_status, snapshot.run_version) == (RunStatus.RUNNING, 7)
    assert (snapshot.attempt_status, snapshot.attempt_number, snapshot.attempt_latest) == (
        AttemptStatus.RUNNING,
        1,
        True,
    )
    assert (snapshot.policy, snapshot.group_left, snapshot.unknown_types) == (RETRIED, False, False)
    assert (snapshot.now_ms, snapshot.lease_valid) == (EPOCH_MS + LEASE_MS, False)
    execution = snapshot.execution
    assert execution is not None
    assert (execution.executor_type, execution.scope, execution.gated) == ("batch", "here", False)
    assert (execution.handle, execution.pid, execution.callback_sequence) == ("handle-1", 4_711, 1)
    assert (execution.lease_expires_at_ms, execution.seen_at_ms) == (EPOCH_MS + LEASE_MS, EPOCH_MS)
    assert "handle-1" not in repr(snapshot)
    assert "4711" not in repr(snapshot)

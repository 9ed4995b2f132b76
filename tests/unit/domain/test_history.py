"""One ledger for a Run and its Attempts: sequences, versions, times, the chain (R3.1, R3.2, R3.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from eventsourcing.domain import OriginatorIDError, OriginatorVersionError

from histories import (
    ANA,
    BY_ANA,
    BY_ATTEMPT_STATUS,
    BY_RUN_STATUS,
    FIRST,
    NOW_MS,
    RUN,
    SECOND,
    created,
    facts_of,
    history,
)
from runfacts.domain.actors import Actor
from runfacts.domain.canonical import GENESIS
from runfacts.domain.facts import Fact, decode_payload
from runfacts.domain.history import Draft, History, RecordedBy, evolve
from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.payload_parts import Evidence, OutcomeKind
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptLateCallbackIgnored,
    AttemptLost,
    AttemptRunning,
    AttemptStarting,
    RunCancelRequested,
    RunDispatching,
    RunImported,
    RunQueued,
    RunRetryWait,
)
from runfacts.domain.retry import RetryPolicy


def test_an_empty_history_has_no_run() -> None:
    empty = History(RUN, "shop")
    assert (empty.version, empty.head_hash, empty.active_attempt, empty.latest_attempt) == (0, GENESIS, None, None)
    with pytest.raises(LookupError, match="no fact of its run yet"):
        _ = empty.run


def test_sequence_is_dense_over_both_aggregates_and_each_has_its_own_versions() -> None:
    recorded = facts_of(*BY_RUN_STATUS[RunStatus.FAILED])
    assert [(fact.sequence, fact.type, fact.aggregate_id[-1], fact.aggregate_version) for fact in recorded] == [
        (1, "run.created", "1", 1),
        (2, "run.queued", "1", 2),
        (3, "run.dispatching", "1", 3),
        (4, "attempt.claimed", "a", 1),
        (5, "attempt.starting", "a", 2),
        (6, "attempt.running", "a", 3),
        (7, "run.running", "1", 4),
        (8, "attempt.failed", "a", 4),
        (9, "run.failed", "1", 5),
    ]


def test_the_version_is_the_last_sequence_whichever_aggregate_a_fact_belongs_to() -> None:
    made = History(RUN, "shop")
    for expected, draft in enumerate(BY_RUN_STATUS[RunStatus.FAILED], start=1):
        (fact,) = made.record([draft], BY_ANA)
        assert (fact.sequence, made.version, made.head_hash) == (expected, expected, fact.hash)


def test_a_fact_on_an_ended_run_advances_the_version_too() -> None:
    made = history(*BY_RUN_STATUS[RunStatus.SUCCEEDED])
    version = made.version
    made.record([Draft(AttemptLateCallbackIgnored(sequence=9, reported="failed"), FIRST)], BY_ANA)
    assert made.version == version + 1
    assert made.run.status is RunStatus.SUCCEEDED
    assert made.attempts[FIRST].status is AttemptStatus.SUCCEEDED


def test_each_fact_is_chained_to_the_one_before() -> None:
    recorded = facts_of(*BY_RUN_STATUS[RunStatus.FAILED])
    previous = GENESIS
    for fact in recorded:
        assert fact.hash == fact.computed_hash(previous)
        previous = fact.hash
    assert len({fact.hash for fact in recorded}) == 9


def test_a_fact_carries_who_recorded_it_and_in_which_thread_of_work() -> None:
    (fact,) = History(RUN, "shop").record([replace(created(), dedupe_key="d")], RecordedBy(ANA, NOW_MS, "co", "ca"))
    assert (fact.run_id, fact.project, fact.attempt_id, fact.actor) == (RUN, "shop", None, ANA)
    assert (fact.dedupe_key, fact.correlation_id, fact.causation_id) == ("d", "co", "ca")
    assert (fact.schema_version, fact.recorded_at_ms, fact.position) == (1, NOW_MS, None)


def test_a_runs_fact_about_an_attempt_names_it_and_stays_the_runs() -> None:
    fact = facts_of(*BY_ATTEMPT_STATUS[AttemptStatus.CLAIMED])[2]
    assert (fact.type, fact.attempt_id, fact.aggregate_id) == ("run.dispatching", FIRST, RUN)


@pytest.mark.parametrize(("now_ms", "recorded"), [(NOW_MS - 1, NOW_MS), (NOW_MS, NOW_MS), (NOW_MS + 1, NOW_MS + 1)])
def test_time_never_goes_back_within_a_run(now_ms: int, recorded: int) -> None:
    made = history(created())
    (fact,) = made.record([Draft(RunQueued())], RecordedBy(ANA, now_ms))
    assert fact.recorded_at_ms == made.recorded_at_ms == recorded


@pytest.mark.parametrize("status", list(RunStatus))
def test_replaying_gives_the_state_that_recording_left(status: RunStatus) -> None:
    live = History(RUN, "shop")
    recorded = live.record(BY_RUN_STATUS[status], BY_ANA)
    replayed = History.of(recorded)
    assert replayed.run.status is status
    assert state_of(replayed) == state_of(live)


def state_of(one: History) -> tuple[object, ...]:
    return (
        one.version,
        one.head_hash,
        one.recorded_at_ms,
        vars(one.run),
        {attempt.id: vars(attempt) for attempt in one.attempts.values()},
    )


@pytest.mark.parametrize("status", list(AttemptStatus))
def test_an_attempt_has_the_status_of_its_last_fact(status: AttemptStatus) -> None:
    made = history(*BY_ATTEMPT_STATUS[status])
    attempt = made.attempts[FIRST]
    assert attempt.status is status
    active = status in {"claimed", "starting", "running"}
    assert attempt.active is active
    assert (made.active_attempt is attempt) is active
    assert made.latest_attempt is attempt
    assert (attempt.finished_at_ms is None) is active


def test_a_run_knows_what_its_facts_said() -> None:
    policy = RetryPolicy(max_attempts=3, retry_on_failure=True)
    made = history(created(policy, deadline_at_ms=7))
    run = made.run
    assert (run.id, run.project, run.task, run.policy) == (RUN, "shop", "build", policy)
    assert (run.deadline_at_ms, run.timeout_ms, run.intent, run.retry_due_at_ms) == (7, None, None, None)
    assert (run.created_at_ms, run.finished_at_ms, run.terminal) == (NOW_MS, None, False)
    made.record([Draft(RunCancelRequested(kind=IntentKind.POLICY, reason="cost"))], RecordedBy(ANA, NOW_MS + 5))
    assert run.intent is not None
    assert (run.intent.kind, run.intent.reason, run.intent.requested_at_ms) == ("policy", "cost", NOW_MS + 5)
    assert (run.status, made.recorded_at_ms) == ("created", NOW_MS + 5)


def test_a_retry_is_due_until_the_run_moves_on() -> None:
    made = history(*BY_RUN_STATUS[RunStatus.RUNNING])
    made.record(
        [Draft(AttemptFailed(group_left=True), FIRST), Draft(RunRetryWait(due_at_ms=9, group_left=True))], BY_ANA
    )
    assert (made.run.retry_due_at_ms, made.run.group_left, made.attempts[FIRST].group_left) == (9, True, True)
    made.record([Draft(RunQueued())], BY_ANA)
    assert made.run.retry_due_at_ms is None


def test_an_imported_run_belongs_to_another_system_from_then_on() -> None:
    made = history(*BY_RUN_STATUS[RunStatus.SUCCEEDED], Draft(RunImported()))
    assert made.run.execution_owner is ExecutionOwner.LEGACY
    assert made.run.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "timed_out"])
def test_an_ended_run_knows_when(status: str) -> None:
    made = history(*BY_RUN_STATUS[RunStatus(status)])
    assert (made.run.terminal, made.run.finished_at_ms) == (True, NOW_MS)


def test_an_attempt_knows_what_its_facts_said() -> None:
    made = history(*BY_RUN_STATUS[RunStatus.QUEUED])

    def record(at_ms: int, payload: AttemptClaimed | AttemptStarting | AttemptRunning | AttemptCancelled) -> None:
        made.record([Draft(payload, FIRST)], RecordedBy(ANA, NOW_MS + at_ms))

    record(1, AttemptClaimed(number=1, executor_type="local", gated=True, worker_id="w"))
    record(2, AttemptStarting(deadline_at_ms=77))
    record(3, AttemptRunning())
    record(
        4,
        AttemptCancelled(
            signal=9,
            error_code="c",
            error_summary="s",
            observed=OutcomeKind.FAILED,
            reason=IntentKind.USER,
            group_left=True,
        ),
    )
    attempt = made.attempts[FIRST]
    assert (attempt.id, attempt.run_id, attempt.number) == (FIRST, RUN, 1)
    assert (attempt.executor_type, attempt.gated, attempt.worker_id, attempt.deadline_at_ms) == ("local", True, "w", 77)
    assert (attempt.claimed_at_ms, attempt.started_at_ms, attempt.running_at_ms, attempt.finished_at_ms) == (
        NOW_MS + 1,
        NOW_MS + 2,
        NOW_MS + 3,
        NOW_MS + 4,
    )
    assert (attempt.exit_code, attempt.signal, attempt.error_code, attempt.error_summary) == (None, 9, "c", "s")
    assert (attempt.observed, attempt.group_left, attempt.evidence) == ("failed", True, None)


def test_a_lost_attempt_knows_by_what() -> None:
    made = history(*BY_ATTEMPT_STATUS[AttemptStatus.STARTING], Draft(AttemptLost(evidence=Evidence.PRE_START), FIRST))
    assert made.attempts[FIRST].evidence is Evidence.PRE_START


def test_the_latest_attempt_is_the_one_claimed_last() -> None:
    made = history(
        *BY_RUN_STATUS[RunStatus.RETRY_WAIT],
        Draft(RunQueued()),
        Draft(RunDispatching(number=2), SECOND),
        Draft(AttemptClaimed(number=2, executor_type="local"), SECOND),
    )
    assert made.latest_attempt is made.attempts[SECOND]
    assert made.active_attempt is made.attempts[SECOND]
    assert list(made.attempts) == [FIRST, SECOND]


def test_a_dedupe_key_leads_to_its_fact() -> None:
    made = History(RUN, "shop")
    first, second = made.record([replace(created(), dedupe_key="a"), Draft(RunQueued(), dedupe_key="b")], BY_ANA)
    assert made.recorded_with("a") == first
    assert made.recorded_with("b") == second
    assert made.recorded_with("c") is None
    assert History.of([first, second]).recorded_with("b") == second


def test_facts_of_other_aggregates_or_out_of_turn_are_refused() -> None:
    first, second, third = facts_of(created(), Draft(RunQueued()), Draft(RunDispatching(number=1), FIRST))
    run = evolve(first, None)
    with pytest.raises(OriginatorIDError):
        evolve(replace(second, aggregate_id=SECOND), run)
    with pytest.raises(OriginatorVersionError):
        evolve(third, run)
    with pytest.raises(OriginatorVersionError):
        evolve(first, run)
    evolve(third, evolve(second, run))


def test_an_unknown_fact_takes_its_place_and_changes_no_status() -> None:
    made = history(*BY_RUN_STATUS[RunStatus.QUEUED])
    stranger = Fact(
        run_id=RUN,
        sequence=3,
        type="run.paused",
        schema_version=1,
        project="shop",
        actor=Actor.system(),
        recorded_at_ms=NOW_MS,
        payload=decode_payload("run.paused", 1, "{}"),
        payload_text="{}",
        aggregate_id=RUN,
        aggregate_version=3,
        hash="a" * 64,
    )
    made.take(stranger)
    assert (made.version, made.run.version, made.run.status, made.head_hash) == (3, 3, "queued", "a" * 64)
    assert made.unknown_types == ["run.paused"]
    (after,) = made.record([Draft(RunDispatching(number=1), FIRST)], BY_ANA)
    assert (after.sequence, after.aggregate_version, after.hash) == (4, 4, after.computed_hash("a" * 64))


def test_a_late_callback_on_an_attempt_changes_nothing_but_what_was_said_late() -> None:
    made = history(*BY_RUN_STATUS[RunStatus.FAILED])
    changing = {"_version", "late_reports"}
    before = {name: value for name, value in vars(made.attempts[FIRST]).items() if name not in changing}
    assert made.attempts[FIRST].late_reports == frozenset()
    late = AttemptLateCallbackIgnored(sequence=3, reported="succeeded", exit_code=0)
    made.record([Draft(late, FIRST)], RecordedBy(ANA, NOW_MS + 9))
    after = {name: value for name, value in vars(made.attempts[FIRST]).items() if name not in changing}
    assert after == before
    assert made.attempts[FIRST].late_reports == {("succeeded", 0, None)}

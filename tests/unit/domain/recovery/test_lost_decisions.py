"""What recovery records, in every status: lost, stopped, tried again (R2.6, R11.5, R12.1, R12.2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from histories import (
    BY_ANA,
    BY_ATTEMPT_STATUS,
    BY_RUN_STATUS,
    DUE_MS,
    FIRST,
    NOW_MS,
    RUN,
    SECOND,
    attempt_in,
    created,
    history,
    run_in,
    types,
)
from runfacts.domain.decisions import Decision, Refusal
from runfacts.domain.errors import IllegalTransition, LegacyRun
from runfacts.domain.history import Draft, History
from runfacts.domain.lifecycle import COMMANDS, AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptFailed,
    AttemptLost,
    RunCancelled,
    RunCancelRequested,
    RunDispatching,
    RunFailed,
    RunLost,
    RunQueued,
    RunRetryWait,
    RunStopConfirmed,
    RunTimedOut,
)
from runfacts.domain.recovery.lost import lost, requeue, retry_lost, stopped
from runfacts.domain.retry import RetryPolicy, Safety

NOT_RUNNING, PRE_START, ATTESTED = Evidence.NOT_RUNNING, Evidence.PRE_START, Evidence.ATTESTED
USER, TIMEOUT = IntentKind.USER, IntentKind.TIMEOUT
ACTIVE = ["claimed", "starting", "running"]
ENDED = ["succeeded", "failed", "cancelled", "timed_out"]
SAFE = RetryPolicy(max_attempts=3, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=500)


def recorded(decide: Callable[[History], Decision], before: History) -> Decision:
    """The decision, seen to be one that can be recorded."""
    decision = decide(before)
    before.record(decision.drafts, BY_ANA)
    return decision


def lost_by_proof(before: History) -> Decision:
    return lost(before, FIRST, NOT_RUNNING, "local")


def lost_under(policy: RetryPolicy) -> History:
    return history(created(policy), *BY_RUN_STATUS[RunStatus.LOST][1:])


@pytest.mark.parametrize("status", ACTIVE)
def test_an_active_attempt_and_its_run_are_lost_together(status: str) -> None:
    before = attempt_in(AttemptStatus(status))
    decision = recorded(lost_by_proof, before)
    assert decision == Decision(
        (
            Draft(AttemptLost(evidence=NOT_RUNNING, provider_type="local"), FIRST, f"lost:{FIRST}"),
            Draft(RunLost(evidence=NOT_RUNNING, provider_type="local"), FIRST, f"run-lost:{FIRST}"),
        )
    )
    assert types(decision.drafts) == list(COMMANDS["lost"])
    assert (before.run.status, before.attempts[FIRST].status) == ("lost", "lost")
    assert before.attempts[FIRST].evidence is NOT_RUNNING
    assert before.active_attempt is None
    assert before.run.finished_at_ms is None
    assert not before.run.attested


def test_a_run_that_waits_for_approval_is_lost_with_its_attempt() -> None:
    before = run_in(RunStatus.WAITING_APPROVAL)
    assert types(recorded(lost_by_proof, before).drafts) == ["attempt.lost", "run.lost"]


def test_an_attempt_that_is_lost_alone_lets_its_run_follow_by_its_own_evidence() -> None:
    # No command of this release leaves such a history behind (R2.7).
    before = history(*BY_ATTEMPT_STATUS[AttemptStatus.CLAIMED], Draft(AttemptLost(evidence=PRE_START), FIRST))
    decision = recorded(lambda it: lost(it, FIRST, None, None), before)
    assert decision == Decision((Draft(RunLost(evidence=PRE_START), FIRST, f"run-lost:{FIRST}"),))
    assert types(decision.drafts) == list(COMMANDS["lost, the Attempt before"])
    assert before.run.status == "lost"


def test_a_loss_is_recorded_once() -> None:
    before = attempt_in(AttemptStatus.RUNNING)
    recorded(lost_by_proof, before)
    assert lost_by_proof(before) == Decision(refusal=Refusal.REPEATED)


@pytest.mark.parametrize("status", ACTIVE)
def test_with_an_intent_nothing_is_lost(status: str) -> None:
    assert lost_by_proof(attempt_in(AttemptStatus(status), intent=USER)) == Decision(
        refusal=Refusal.CANCELLATION_REQUESTED
    )


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_run_is_not_lost(status: str) -> None:
    assert lost_by_proof(run_in(RunStatus(status))) == Decision(refusal=Refusal.ENDED)


def test_an_attempt_that_reported_its_end_is_not_lost() -> None:
    assert lost_by_proof(run_in(RunStatus.RETRY_WAIT)) == Decision(refusal=Refusal.ENDED)


def test_an_earlier_attempts_loss_does_not_touch_a_run_that_goes_on() -> None:
    before = history(
        *BY_RUN_STATUS[RunStatus.LOST],
        Draft(RunRetryWait(due_at_ms=NOW_MS)),
        Draft(RunQueued()),
        Draft(RunDispatching(number=2), SECOND),
        Draft(AttemptClaimed(number=2, executor_type="local"), SECOND),
    )
    assert lost_by_proof(before) == Decision(refusal=Refusal.ENDED)


@pytest.mark.parametrize("status", ["queued", "retry_wait"])
def test_an_active_attempt_whose_run_has_none_is_refused(status: str) -> None:
    run = {"queued": Draft(RunQueued()), "retry_wait": Draft(RunRetryWait(due_at_ms=NOW_MS))}[status]
    with pytest.raises(IllegalTransition):
        lost_by_proof(history(*BY_ATTEMPT_STATUS[AttemptStatus.RUNNING], run))


def test_an_active_attempt_is_not_lost_without_evidence() -> None:
    with pytest.raises(ValueError, match="by evidence only"):
        lost(attempt_in(AttemptStatus.RUNNING), FIRST, None, None)


def test_an_attested_loss_stays_marked_as_an_operators_word() -> None:
    before = attempt_in(AttemptStatus.RUNNING)
    recorded(lambda it: lost(it, FIRST, ATTESTED, None), before)
    assert before.run.attested
    before.record([Draft(RunRetryWait(due_at_ms=NOW_MS))], BY_ANA)
    assert before.run.attested


@pytest.mark.parametrize(
    "decide",
    [
        lost_by_proof,
        lambda it: stopped(it, NOT_RUNNING, "local"),
        lambda it: retry_lost(it, NOW_MS),
        lambda it: requeue(it, NOW_MS, group_gone=True),
    ],
)
def test_a_run_of_another_system_is_refused(decide: Callable[[History], Decision]) -> None:
    legacy = created(owner=ExecutionOwner.LEGACY)
    with pytest.raises(LegacyRun):
        decide(history(legacy, *BY_RUN_STATUS[RunStatus.LOST][1:]))


# Tried again (R12.1).


def test_a_lost_run_waits_to_be_tried_again_where_policy_safety_and_budget_allow_it() -> None:
    before = lost_under(SAFE)
    decision = recorded(lambda it: retry_lost(it, NOW_MS + 9), before)
    assert decision == Decision((Draft(RunRetryWait(due_at_ms=NOW_MS + 509), FIRST, f"retry:{RUN}:1"),))
    assert (before.run.status, before.run.retry_due_at_ms) == ("retry_wait", NOW_MS + 509)
    assert not before.run.group_left
    assert types(decision.drafts) == [COMMANDS["retry"][0]]


def test_a_retrys_wait_never_begins_before_the_loss() -> None:
    assert retry_lost(lost_under(SAFE), NOW_MS - 9).drafts[0].payload == RunRetryWait(due_at_ms=NOW_MS + 500)


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(),
        RetryPolicy(max_attempts=3),
        RetryPolicy(max_attempts=3, retry_on_failure=True),
        RetryPolicy(max_attempts=3, safety=Safety.IDEMPOTENT),
        RetryPolicy(max_attempts=1, retry_on_lost=True, safety=Safety.DEDUPLICATED),
    ],
)
def test_a_lost_run_that_may_not_be_tried_again_fails_with_worker_lost(policy: RetryPolicy) -> None:
    before = lost_under(policy)
    decision = recorded(lambda it: retry_lost(it, NOW_MS), before)
    assert decision == Decision((Draft(RunFailed(error_code="worker_lost"), FIRST, f"retry:{RUN}:1"),))
    assert types(decision.drafts) == list(COMMANDS["retry, not allowed"])
    assert before.run.terminal


@pytest.mark.parametrize("kind", list(IntentKind))
def test_a_lost_run_with_an_intent_is_cancelled_and_not_tried_again(kind: IntentKind) -> None:
    # A request ends a lost Run at once (R6.3); this is for one that came in otherwise.
    before = history(created(SAFE), *BY_RUN_STATUS[RunStatus.LOST][1:], Draft(RunCancelRequested(kind=kind)))
    decision = recorded(lambda it: retry_lost(it, NOW_MS), before)
    assert decision == Decision((Draft(RunCancelled(reason=kind), FIRST, f"retry:{RUN}:1"),))
    assert types(decision.drafts) == ["run.cancelled"]


@pytest.mark.parametrize("status", sorted(set(RunStatus) - {"lost", *ENDED}))
def test_a_run_that_is_not_lost_is_not_moved_on(status: RunStatus) -> None:
    assert retry_lost(run_in(RunStatus(status)), NOW_MS) == Decision(refusal=Refusal.NOT_LOST)


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_run_is_neither_moved_on_nor_queued_nor_stopped(status: str) -> None:
    ended = Decision(refusal=Refusal.ENDED)
    before = run_in(RunStatus(status))
    assert retry_lost(before, NOW_MS) == ended
    assert requeue(before, NOW_MS, group_gone=True) == ended
    assert stopped(before, NOT_RUNNING, "local") == ended


@pytest.mark.parametrize(("now_ms", "refusal"), [(DUE_MS - 1, Refusal.NOT_DUE), (DUE_MS, None), (DUE_MS + 1, None)])
def test_a_retry_is_queued_when_it_is_due(now_ms: int, refusal: Refusal | None) -> None:
    decision = requeue(run_in(RunStatus.RETRY_WAIT), now_ms, group_gone=False)
    assert decision.refusal is refusal
    drafts = () if refusal else (Draft(RunQueued(), dedupe_key=f"requeue:{RUN}:1"),)
    assert decision.drafts == drafts


@pytest.mark.parametrize(("group_gone", "refusal"), [(False, Refusal.GROUP_LIVES), (True, None)])
def test_a_retry_waits_for_the_group_that_its_last_attempt_left(
    group_gone: bool,  # noqa: FBT001 - pytest names it
    refusal: Refusal | None,
) -> None:
    before = history(
        *BY_RUN_STATUS[RunStatus.RUNNING],
        Draft(AttemptFailed(group_left=True), FIRST),
        Draft(RunRetryWait(due_at_ms=DUE_MS, group_left=True), FIRST),
    )
    decision = requeue(before, DUE_MS, group_gone=group_gone)
    assert (types(decision.drafts), decision.refusal) == ([] if refusal else ["run.queued"], refusal)


def test_a_retry_is_queued_once_and_never_with_an_intent() -> None:
    before = run_in(RunStatus.RETRY_WAIT)
    recorded(lambda it: requeue(it, DUE_MS, group_gone=True), before)
    assert requeue(before, DUE_MS, group_gone=True) == Decision(refusal=Refusal.REPEATED)
    asked = run_in(RunStatus.RETRY_WAIT, intent=USER)
    assert requeue(asked, DUE_MS, group_gone=True) == Decision(refusal=Refusal.CANCELLATION_REQUESTED)


@pytest.mark.parametrize("status", ["created", "dispatching", "running", "waiting_approval", "lost"])
def test_a_run_that_does_not_wait_for_a_retry_is_not_queued_as_one(status: str) -> None:
    with pytest.raises(IllegalTransition):
        requeue(run_in(RunStatus(status)), DUE_MS, group_gone=True)


# Stopped (R12.2).


@pytest.mark.parametrize(
    ("status", "kind", "ends"),
    [
        ("claimed", USER, ["attempt.cancelled", "run.cancelled"]),
        ("claimed", TIMEOUT, ["attempt.cancelled", "run.timed_out"]),
        ("starting", TIMEOUT, ["attempt.timed_out", "run.timed_out"]),
        ("running", USER, ["attempt.cancelled", "run.cancelled"]),
        ("running", TIMEOUT, ["attempt.timed_out", "run.timed_out"]),
    ],
)
def test_a_proven_stop_ends_attempt_and_run_as_the_intent_says(status: str, kind: IntentKind, ends: list[str]) -> None:
    before = attempt_in(AttemptStatus(status), intent=kind)
    decision = recorded(lambda it: stopped(it, NOT_RUNNING, "local"), before)
    assert types(decision.drafts) == ["run.stop_confirmed", *ends]
    assert decision.drafts[0] == Draft(
        RunStopConfirmed(evidence=NOT_RUNNING, provider_type="local"), FIRST, f"stop-confirmed:{RUN}:{FIRST}"
    )
    assert before.run.terminal
    assert before.active_attempt is None


def test_a_run_without_an_active_attempt_ends_alone_by_the_evidence_of_the_attempt_before() -> None:
    before = history(
        *BY_ATTEMPT_STATUS[AttemptStatus.RUNNING],
        Draft(RunCancelRequested(kind=TIMEOUT)),
        Draft(AttemptLost(evidence=ATTESTED), FIRST),
    )
    decision = recorded(lambda it: stopped(it, None, None), before)
    assert decision == Decision(
        (
            Draft(RunStopConfirmed(evidence=ATTESTED), None, f"stop-confirmed:{RUN}:none"),
            Draft(RunTimedOut(reason=TIMEOUT)),
        )
    )
    assert [name.replace("E", "timed_out") for name in COMMANDS["stop confirmed, no active Attempt"]] == types(
        decision.drafts
    )
    assert before.run.attested


def test_a_run_that_never_had_an_attempt_ends_as_never_started() -> None:
    before = run_in(RunStatus.QUEUED, intent=USER)
    decision = recorded(lambda it: stopped(it, None, None), before)
    assert decision.drafts[0].payload == RunStopConfirmed(evidence=PRE_START)
    assert types(decision.drafts) == ["run.stop_confirmed", "run.cancelled"]


def test_an_end_that_was_reported_needs_evidence_of_its_own() -> None:
    reported = history(
        *BY_ATTEMPT_STATUS[AttemptStatus.RUNNING],
        Draft(RunCancelRequested(kind=USER)),
        Draft(AttemptFailed(), FIRST),
    )
    with pytest.raises(ValueError, match="only a lost attempt"):
        stopped(reported, None, None)
    assert types(stopped(reported, NOT_RUNNING, "local").drafts) == ["run.stop_confirmed", "run.cancelled"]


def test_nobody_stops_what_nobody_asked_to_stop() -> None:
    assert stopped(run_in(RunStatus.RUNNING), NOT_RUNNING, "local") == Decision(refusal=Refusal.NOT_REQUESTED)


def test_the_next_attempt_has_keys_of_its_own() -> None:
    before = lost_under(SAFE)
    recorded(lambda it: retry_lost(it, NOW_MS), before)
    recorded(lambda it: requeue(it, NOW_MS + 500, group_gone=True), before)
    claimed = AttemptClaimed(number=2, executor_type="local")
    before.record([Draft(RunDispatching(number=2), SECOND), Draft(claimed, SECOND)], BY_ANA)
    again = recorded(lambda it: lost(it, SECOND, PRE_START, None), before)
    assert [draft.dedupe_key for draft in again.drafts] == [f"lost:{SECOND}", f"run-lost:{SECOND}"]
    later = recorded(lambda it: retry_lost(it, NOW_MS + 600), before)
    # The wait doubles: 500, then 1,000.
    assert later.drafts == (Draft(RunRetryWait(due_at_ms=NOW_MS + 1_600), SECOND, f"retry:{RUN}:2"),)
    queued = recorded(lambda it: requeue(it, NOW_MS + 1_600, group_gone=True), before)
    assert queued.drafts[0].dedupe_key == f"requeue:{RUN}:2"

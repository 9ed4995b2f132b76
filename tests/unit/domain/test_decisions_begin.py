"""From creation to a running process, decided in every status (R2.5 to R2.8, R6.4, R12.1)."""

from __future__ import annotations

import pytest

from histories import (
    BY_ANA,
    BY_RUN_STATUS,
    DUE_MS,
    FIRST,
    SECOND,
    attempt_in,
    history,
    recorded,
    run_in,
    types,
)
from runfacts.domain import decisions
from runfacts.domain.decisions import Decision, Refusal
from runfacts.domain.errors import IllegalTransition
from runfacts.domain.history import Draft, History
from runfacts.domain.lifecycle import COMMANDS, AttemptStatus, IntentKind, RunStatus
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptRunning,
    AttemptStarting,
    AttemptTimedOut,
    RunCancelled,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRetryWait,
    RunRunning,
    RunTimedOut,
    RunWaitingApproval,
)
from runfacts.domain.retry import RetryPolicy

USER, TIMEOUT = IntentKind.USER, IntentKind.TIMEOUT
CLAIMED = AttemptClaimed(number=1, executor_type="local")
ENDED = ["succeeded", "failed", "cancelled", "timed_out"]


def test_creating_records_that_the_run_exists() -> None:
    payload = RunCreated(task="t", policy=RetryPolicy())
    assert decisions.create(payload) == Decision((Draft(payload),))
    assert types(decisions.create(payload).drafts) == list(COMMANDS["create"])


def test_what_is_submitted_is_created_and_queued() -> None:
    payload = RunCreated(task="t", policy=RetryPolicy())
    decision = decisions.create(payload, queued=True)
    assert decision == Decision((Draft(payload), Draft(RunQueued())))
    assert types(decision.drafts) == [*COMMANDS["create"], *COMMANDS["queue"]]


def queue(before: History, now_ms: int = DUE_MS) -> Decision:
    return decisions.queue(before, now_ms)


@pytest.mark.parametrize("status", ["created", "retry_wait"])
def test_a_created_run_and_one_whose_retry_is_due_are_queued(status: str) -> None:
    decision = recorded(queue, run_in(RunStatus(status)))
    assert decision == Decision((Draft(RunQueued()),))
    assert types(decision.drafts) == list(COMMANDS["queue"])


def test_a_queued_run_is_not_queued_again() -> None:
    assert queue(run_in(RunStatus.QUEUED)) == Decision(refusal=Refusal.REPEATED)


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_run_is_not_queued(status: str) -> None:
    assert queue(run_in(RunStatus(status))) == Decision(refusal=Refusal.ENDED)


@pytest.mark.parametrize("status", ["dispatching", "running", "waiting_approval"])
def test_a_run_with_an_attempt_cannot_be_queued(status: str) -> None:
    with pytest.raises(IllegalTransition, match=f"a run that is {status} cannot become queued"):
        queue(run_in(RunStatus(status)))


@pytest.mark.parametrize(("now_ms", "refusal"), [(DUE_MS - 1, Refusal.NOT_DUE), (DUE_MS, None), (DUE_MS + 1, None)])
def test_a_retry_waits_until_it_is_due(now_ms: int, refusal: Refusal | None) -> None:
    decision = queue(run_in(RunStatus.RETRY_WAIT), now_ms)
    assert decision.refusal is refusal
    assert types(decision.drafts) == ([] if refusal else ["run.queued"])


def test_a_retry_waits_for_the_group_that_its_last_attempt_left() -> None:
    left = (
        *BY_RUN_STATUS[RunStatus.RUNNING],
        Draft(AttemptFailed(), FIRST),
        Draft(RunRetryWait(due_at_ms=DUE_MS, group_left=True), FIRST),
    )
    assert queue(history(*left)) == Decision(refusal=Refusal.GROUP_LIVES)
    assert queue(history(*left), DUE_MS - 1) == Decision(refusal=Refusal.NOT_DUE)


def test_a_lost_run_is_queued_by_the_retry_authority_alone() -> None:
    assert queue(run_in(RunStatus.LOST)) == Decision(refusal=Refusal.NOT_DUE)


def claim(before: History) -> Decision:
    return decisions.claim(before, FIRST, CLAIMED)


def test_a_queued_run_is_claimed_and_both_facts_name_the_attempt() -> None:
    decision = recorded(claim, run_in(RunStatus.QUEUED))
    assert decision == Decision((Draft(RunDispatching(number=1), FIRST), Draft(CLAIMED, FIRST)))
    assert types(decision.drafts) == list(COMMANDS["claim an Attempt"])


@pytest.mark.parametrize("status", [status for status in RunStatus if status != "queued"])
def test_a_run_that_is_not_queued_is_not_claimed(status: RunStatus) -> None:
    assert claim(run_in(status)) == Decision(refusal=Refusal.NOT_QUEUED)


def claim_at_once(before: History, now_ms: int = DUE_MS) -> Decision:
    return decisions.claim(before, SECOND, CLAIMED, now_ms)


@pytest.mark.parametrize("status", ["created", "retry_wait"])
def test_a_claim_may_queue_what_can_be_queued(status: str) -> None:
    decision = recorded(claim_at_once, run_in(RunStatus(status)))
    assert types(decision.drafts) == [*COMMANDS["queue"], *COMMANDS["claim an Attempt"]]
    assert decision.drafts[0] == Draft(RunQueued())


def test_a_claim_queues_nothing_that_is_queued_already() -> None:
    assert claim_at_once(run_in(RunStatus.QUEUED)).drafts == (
        Draft(RunDispatching(number=1), SECOND),
        Draft(CLAIMED, SECOND),
    )


@pytest.mark.parametrize(
    ("status", "now_ms", "refusal"),
    [
        ("retry_wait", DUE_MS - 1, "not_due"),
        *((status, DUE_MS, "not_queued") for status in ("dispatching", "running", "waiting_approval", "lost", *ENDED)),
    ],
)
def test_a_claim_queues_nothing_else(status: str, now_ms: int, refusal: str) -> None:
    assert claim_at_once(run_in(RunStatus(status)), now_ms) == Decision(refusal=Refusal(refusal))


@pytest.mark.parametrize("status", ["created", "retry_wait", "lost"])
def test_a_claim_queues_nothing_once_an_intent_exists(status: str) -> None:
    assert claim_at_once(run_in(RunStatus(status), intent=USER)).refusal is Refusal.CANCELLATION_REQUESTED


@pytest.mark.parametrize("status", [status for status in RunStatus if status not in ENDED])
def test_no_attempt_is_made_once_an_intent_exists(status: RunStatus) -> None:
    assert claim(run_in(status, intent=USER)) == Decision(refusal=Refusal.CANCELLATION_REQUESTED)


def test_attempts_are_numbered_one_two_three() -> None:
    assert decisions.next_number(run_in(RunStatus.QUEUED)) == 1
    again = history(*BY_RUN_STATUS[RunStatus.RETRY_WAIT], Draft(RunQueued()))
    assert decisions.next_number(again) == 2
    second = decisions.claim(again, SECOND, CLAIMED.model_copy(update={"number": 2}))
    assert second.drafts[0] == Draft(RunDispatching(number=2), SECOND)
    again.record(second.drafts, BY_ANA)
    assert decisions.next_number(again) == 3


def start(before: History) -> Decision:
    return decisions.start(before, FIRST, 77)


def test_a_claimed_attempt_passes_the_start_barrier_once() -> None:
    decision = recorded(start, attempt_in(AttemptStatus.CLAIMED))
    assert decision == Decision((Draft(AttemptStarting(deadline_at_ms=77), FIRST),))
    assert types(decision.drafts) == list(COMMANDS["start barrier passed"])


@pytest.mark.parametrize("status", ["starting", "running"])
@pytest.mark.parametrize("intent", [None, USER])
def test_the_start_barrier_is_not_passed_twice(status: str, intent: IntentKind | None) -> None:
    assert start(attempt_in(AttemptStatus(status), intent=intent)) == Decision(refusal=Refusal.REPEATED)


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "timed_out", "lost"])
def test_an_ended_attempt_does_not_start(status: str) -> None:
    assert start(attempt_in(AttemptStatus(status))) == Decision(refusal=Refusal.ENDED)


@pytest.mark.parametrize("kind", list(IntentKind))
def test_an_intent_at_the_start_barrier_ends_attempt_and_run(kind: IntentKind) -> None:
    decision = recorded(start, attempt_in(AttemptStatus.CLAIMED, intent=kind))
    # A claimed Attempt has no timed_out; its Run, dispatching, has (R2.5).
    run_end = RunTimedOut(reason=kind) if kind is TIMEOUT else RunCancelled(reason=kind)
    assert decision == Decision(
        (Draft(AttemptCancelled(reason=kind), FIRST), Draft(run_end, FIRST)), Refusal.CANCELLATION_REQUESTED
    )


def confirm(before: History) -> Decision:
    return decisions.confirm_running(before, FIRST)


def test_a_starting_attempt_is_confirmed_with_its_run() -> None:
    decision = recorded(confirm, attempt_in(AttemptStatus.STARTING))
    assert decision == Decision((Draft(AttemptRunning(), FIRST), Draft(RunRunning(), FIRST)))
    assert types(decision.drafts) == list(COMMANDS["process confirmed"])


@pytest.mark.parametrize("intent", [None, USER])
def test_a_running_attempt_is_not_confirmed_again(intent: IntentKind | None) -> None:
    assert confirm(attempt_in(AttemptStatus.RUNNING, intent=intent)) == Decision(refusal=Refusal.REPEATED)


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "timed_out", "lost"])
def test_an_ended_attempt_is_not_confirmed(status: str) -> None:
    assert confirm(attempt_in(AttemptStatus(status))) == Decision(refusal=Refusal.ENDED)


@pytest.mark.parametrize("intent", [None, USER])
def test_an_attempt_that_did_not_pass_the_barrier_cannot_run(intent: IntentKind | None) -> None:
    with pytest.raises(IllegalTransition, match="an attempt that is claimed cannot become running"):
        confirm(attempt_in(AttemptStatus.CLAIMED, intent=intent))


@pytest.mark.parametrize("kind", list(IntentKind))
def test_an_intent_before_the_handle_is_committed_ends_attempt_and_run(kind: IntentKind) -> None:
    decision = recorded(confirm, attempt_in(AttemptStatus.STARTING, intent=kind))
    ends = (
        (AttemptTimedOut(reason=kind), RunTimedOut(reason=kind))
        if kind is TIMEOUT
        else (AttemptCancelled(reason=kind), RunCancelled(reason=kind))
    )
    assert decision == Decision((Draft(ends[0], FIRST), Draft(ends[1], FIRST)), Refusal.CANCELLATION_REQUESTED)


def wait(before: History) -> Decision:
    return decisions.wait_for_approval(before, FIRST, "four eyes")


def go_on(before: History) -> Decision:
    return decisions.go_on(before, FIRST)


@pytest.mark.parametrize("intent", [None, USER])
def test_a_running_run_waits_for_approval_and_goes_on(intent: IntentKind | None) -> None:
    before = run_in(RunStatus.RUNNING, intent=intent)
    decision = recorded(wait, before)
    assert decision == Decision((Draft(RunWaitingApproval(reason="four eyes"), FIRST),))
    assert types(decision.drafts) == list(COMMANDS["wait for approval"])
    assert wait(before) == Decision(refusal=Refusal.REPEATED)
    decision = recorded(go_on, before)
    assert decision == Decision((Draft(RunRunning(), FIRST),))
    assert types(decision.drafts) == list(COMMANDS["go on"])
    assert go_on(before) == Decision(refusal=Refusal.REPEATED)
    assert before.attempts[FIRST].status is AttemptStatus.RUNNING


@pytest.mark.parametrize("status", ["claimed", "starting"])
def test_a_run_whose_process_is_not_confirmed_neither_waits_nor_goes_on(status: str) -> None:
    with pytest.raises(IllegalTransition, match="a run that is dispatching cannot become waiting_approval"):
        wait(attempt_in(AttemptStatus(status)))
    with pytest.raises(IllegalTransition, match="a run that is dispatching cannot become running"):
        go_on(attempt_in(AttemptStatus(status)))


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "timed_out", "lost"])
def test_with_an_ended_attempt_a_run_neither_waits_nor_goes_on(status: str) -> None:
    assert wait(attempt_in(AttemptStatus(status))) == Decision(refusal=Refusal.ENDED)
    assert go_on(attempt_in(AttemptStatus(status))) == Decision(refusal=Refusal.ENDED)


def test_a_reason_is_optional_bounded_and_redacted() -> None:
    assert decisions.waiting_approval(None) == RunWaitingApproval()
    stored = decisions.waiting_approval("password=hunter2 " + "x" * 300)
    assert stored.reason is not None
    assert stored.reason.startswith("[redacted] xxx")
    assert (len(stored.reason), stored.reason_length) == (256, 317)

"""Outcomes, late callbacks and cancellation, decided in every status (R2.5 to R2.7, R6.1 to R6.5, R12.1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from histories import (
    BY_ANA,
    BY_ATTEMPT_STATUS,
    FIRST,
    NOW_MS,
    SECOND,
    attempt_in,
    history,
    recorded,
    run_in,
    running_under,
    types,
)
from runfacts.domain import decisions
from runfacts.domain.decisions import Decision, Refusal
from runfacts.domain.errors import IllegalTransition
from runfacts.domain.history import Draft, History
from runfacts.domain.lifecycle import COMMANDS, AttemptStatus, IntentKind, RunStatus
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payload_parts import Evidence, OutcomeKind
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptFailed,
    AttemptLateCallbackIgnored,
    AttemptLost,
    RunCancelled,
    RunCancelRequested,
    RunRetryWait,
    RunTimedOut,
)
from runfacts.domain.retry import RetryPolicy

USER, TIMEOUT = IntentKind.USER, IntentKind.TIMEOUT
CLAIMED = AttemptClaimed(number=1, executor_type="local")
ENDED = ["succeeded", "failed", "cancelled", "timed_out"]


def finish(outcome: Outcome, *, group_left: bool = False, now_ms: int = NOW_MS) -> Callable[[History], Decision]:
    return lambda before: decisions.finish(before, FIRST, outcome, now_ms, group_left=group_left)


OUTCOMES = {
    "succeeded": Outcome.succeeded(exit_code=0),
    "failed": Outcome.failed(exit_code=7, error_code="E7", error_summary="seven"),
    "cancelled": Outcome.cancelled(signal=15),
    "timed_out": Outcome.timed_out(signal=9),
}


@pytest.mark.parametrize("before", ["running", "waiting_approval"])
@pytest.mark.parametrize("kind", list(OUTCOMES))
def test_an_outcome_ends_attempt_and_run_alike(kind: str, before: str) -> None:
    decision = recorded(finish(OUTCOMES[kind]), run_in(RunStatus(before)))
    assert types(decision.drafts) == [f"attempt.{kind}", f"run.{kind}"]
    assert types(decision.drafts) == list(COMMANDS[f"finish: {kind.replace('_', ' ')}"])
    assert [draft.attempt_id for draft in decision.drafts] == [FIRST, FIRST]
    assert decision.refusal is None
    for draft in decision.drafts:
        assert draft.payload.model_dump(exclude_none=True) == OUTCOMES[kind].fields()


@pytest.mark.parametrize("kind", ["failed", "cancelled", "timed_out"])
def test_a_starting_attempt_ends_by_everything_but_success(kind: str) -> None:
    decision = recorded(finish(OUTCOMES[kind]), attempt_in(AttemptStatus.STARTING))
    assert types(decision.drafts) == [f"attempt.{kind}", f"run.{kind}"]
    with pytest.raises(IllegalTransition, match="an attempt that is starting cannot become succeeded"):
        finish(OUTCOMES["succeeded"])(attempt_in(AttemptStatus.STARTING))


@pytest.mark.parametrize("kind", ["succeeded", "failed", "timed_out"])
def test_a_claimed_attempt_did_nothing_that_could_be_reported(kind: str) -> None:
    with pytest.raises(IllegalTransition, match=f"an attempt that is claimed cannot become {kind}"):
        finish(OUTCOMES[kind])(attempt_in(AttemptStatus.CLAIMED))


def test_a_claimed_attempt_is_given_back_as_cancelled() -> None:
    decision = recorded(finish(OUTCOMES["cancelled"]), attempt_in(AttemptStatus.CLAIMED))
    assert types(decision.drafts) == ["attempt.cancelled", "run.cancelled"]


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "timed_out", "lost"])
@pytest.mark.parametrize("kind", list(OUTCOMES))
def test_an_ended_attempt_does_not_end_again(status: str, kind: str) -> None:
    assert finish(OUTCOMES[kind])(attempt_in(AttemptStatus(status))) == Decision(refusal=Refusal.ENDED)


@pytest.mark.parametrize("kind", list(OUTCOMES))
def test_a_group_that_is_left_behind_is_noted(kind: str) -> None:
    decision = recorded(finish(OUTCOMES[kind], group_left=True), run_in(RunStatus.RUNNING))
    for draft in decision.drafts:
        assert draft.payload.model_dump(exclude_none=True) == OUTCOMES[kind].fields() | {"group_left": True}


@pytest.mark.parametrize("kind", list(OUTCOMES))
@pytest.mark.parametrize("intent", list(IntentKind))
def test_with_an_intent_every_outcome_ends_as_the_intent_says_and_says_what_was_seen(
    kind: str, intent: IntentKind
) -> None:
    decision = recorded(finish(OUTCOMES[kind]), run_in(RunStatus.RUNNING, intent=intent))
    end = "timed_out" if intent is TIMEOUT else "cancelled"
    assert types(decision.drafts) == [f"attempt.{end}", f"run.{end}"]
    assert decision.refusal is None
    for draft in decision.drafts:
        assert draft.payload.model_dump(exclude_none=True) == OUTCOMES[kind].fields() | {
            "reason": intent,
            "observed": OutcomeKind(kind),
        }


def test_a_timeout_on_a_claimed_attempt_ends_it_as_cancelled_and_its_run_as_timed_out() -> None:
    decision = recorded(finish(OUTCOMES["cancelled"]), attempt_in(AttemptStatus.CLAIMED, intent=TIMEOUT))
    assert types(decision.drafts) == ["attempt.cancelled", "run.timed_out"]
    assert {draft.payload.model_dump()["reason"] for draft in decision.drafts} == {"timeout"}


@pytest.mark.parametrize("kind", list(OUTCOMES))
def test_a_cancelled_run_does_not_end_while_its_group_lives(kind: str) -> None:
    before = run_in(RunStatus.RUNNING, intent=USER)
    assert finish(OUTCOMES[kind], group_left=True)(before) == Decision(refusal=Refusal.GROUP_LIVES)


RETRIED = RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=500)


def test_a_failure_is_tried_again_where_policy_and_budget_allow_it() -> None:
    decision = recorded(finish(OUTCOMES["failed"]), running_under(RETRIED))
    assert types(decision.drafts) == list(COMMANDS["finish: failed, to be tried again"])
    assert decision.drafts[0].payload == AttemptFailed(exit_code=7, error_code="E7", error_summary="seven")
    assert decision.drafts[1] == Draft(RunRetryWait(due_at_ms=NOW_MS + 500), FIRST)


def test_a_retrys_wait_begins_at_the_fact_that_asks_for_it() -> None:
    for now_ms, due_at_ms in ((NOW_MS - 9, NOW_MS + 500), (NOW_MS + 9, NOW_MS + 509)):
        decision = finish(OUTCOMES["failed"], now_ms=now_ms)(running_under(RETRIED))
        assert decision.drafts[1].payload == RunRetryWait(due_at_ms=due_at_ms)


def test_a_retry_notes_the_group_that_is_left_behind() -> None:
    decision = recorded(finish(OUTCOMES["failed"], group_left=True), running_under(RETRIED))
    assert decision.drafts[1].payload == RunRetryWait(due_at_ms=NOW_MS + 500, group_left=True)


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        (RetryPolicy(max_attempts=1, retry_on_failure=True), "failed"),
        (RetryPolicy(max_attempts=2, retry_on_failure=False), "failed"),
        (RETRIED, "succeeded"),
        (RETRIED, "cancelled"),
        (RETRIED, "timed_out"),
    ],
)
def test_nothing_else_is_tried_again(policy: RetryPolicy, kind: str) -> None:
    assert types(recorded(finish(OUTCOMES[kind]), running_under(policy)).drafts)[1] == f"run.{kind}"


def test_the_last_attempt_of_the_budget_is_not_tried_again() -> None:
    before = running_under(RETRIED)
    before.record(finish(OUTCOMES["failed"])(before).drafts, BY_ANA)
    before.record(decisions.queue(before, NOW_MS + 500).drafts, BY_ANA)
    before.record(decisions.claim(before, SECOND, CLAIMED.model_copy(update={"number": 2})).drafts, BY_ANA)
    before.record(decisions.start(before, SECOND, None).drafts, BY_ANA)
    decision = decisions.finish(before, SECOND, OUTCOMES["failed"], NOW_MS, group_left=False)
    assert types(decision.drafts) == ["attempt.failed", "run.failed"]


def test_with_an_intent_nothing_is_tried_again() -> None:
    before = running_under(RETRIED)
    before.record([Draft(RunCancelRequested(kind=USER))], BY_ANA)
    assert types(finish(OUTCOMES["failed"])(before).drafts) == ["attempt.cancelled", "run.cancelled"]


def test_a_late_callback_notes_what_was_reported_and_no_text_of_it() -> None:
    draft = decisions.late_callback(FIRST, 4, "failed", OUTCOMES["failed"])
    assert draft == Draft(AttemptLateCallbackIgnored(sequence=4, reported="failed", exit_code=7), FIRST)
    assert draft.of_attempt
    signalled = decisions.late_callback(FIRST, 5, "cancelled", OUTCOMES["cancelled"])
    assert signalled.payload == AttemptLateCallbackIgnored(sequence=5, reported="cancelled", signal=15)
    assert decisions.late_callback(FIRST, 6, "running").payload == AttemptLateCallbackIgnored(
        sequence=6, reported="running"
    )


def cancel(kind: IntentKind = USER, reason: str | None = None) -> Callable[[History], Decision]:
    return lambda before: decisions.request_cancellation(before, kind, reason)


@pytest.mark.parametrize("kind", list(IntentKind))
@pytest.mark.parametrize(
    ("status", "timed_out"),
    [("created", False), ("queued", True), ("retry_wait", True), ("lost", False)],
)
def test_a_run_without_an_active_attempt_ends_at_once(status: str, kind: IntentKind, timed_out: bool) -> None:  # noqa: FBT001
    decision = recorded(cancel(kind, "why"), run_in(RunStatus(status)))
    end = RunTimedOut(reason=kind) if timed_out and kind is TIMEOUT else RunCancelled(reason=kind)
    assert decision == Decision((Draft(RunCancelRequested(kind=kind, reason="why")), Draft(end)))
    assert types(decision.drafts)[0] == COMMANDS["cancel, no active Attempt"][0]


@pytest.mark.parametrize("status", ["claimed", "starting", "running"])
def test_a_run_with_an_active_attempt_keeps_its_status(status: str) -> None:
    before = attempt_in(AttemptStatus(status))
    was = before.run.status
    decision = recorded(cancel(), before)
    assert decision == Decision((Draft(RunCancelRequested(kind=USER), FIRST),))
    assert types(decision.drafts) == list(COMMANDS["cancel, with an active Attempt"])
    assert before.run.status is was
    assert before.run.intent is not None


def test_a_run_whose_attempt_ended_without_it_ends_too() -> None:
    # Whatever the status: there is nothing to stop (R6.3).
    stranded = history(
        *BY_ATTEMPT_STATUS[AttemptStatus.RUNNING], Draft(AttemptLost(evidence=Evidence.NOT_RUNNING), FIRST)
    )
    assert types(recorded(cancel(), stranded).drafts) == ["run.cancel_requested", "run.cancelled"]


def test_a_second_request_records_nothing() -> None:
    assert cancel()(run_in(RunStatus.RUNNING, intent=TIMEOUT)) == Decision(refusal=Refusal.REPEATED)


@pytest.mark.parametrize("status", ENDED)
def test_an_ended_run_is_not_asked_to_stop(status: str) -> None:
    assert cancel()(run_in(RunStatus(status))) == Decision(refusal=Refusal.ENDED)
    assert cancel()(run_in(RunStatus(status), intent=USER)) == Decision(refusal=Refusal.ENDED)


def test_the_reason_of_a_request_is_bounded_and_redacted() -> None:
    payload = cancel(USER, "token=abc " + "y" * 300)(run_in(RunStatus.RUNNING)).drafts[0].payload
    assert isinstance(payload, RunCancelRequested)
    assert payload.reason is not None
    assert payload.reason.startswith("[redacted] yyy")
    assert (len(payload.reason), payload.reason_length) == (256, 310)

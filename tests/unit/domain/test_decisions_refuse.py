"""What no command is allowed, and that deciding changes nothing (R2.10, R3.7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from histories import (
    FIRST,
    NOW_MS,
    RUN,
    attempt_in,
    created,
    history,
    run_in,
)
from runfacts.domain import decisions
from runfacts.domain.decisions import Decision
from runfacts.domain.errors import AttemptNotFound, IllegalTransition, LegacyRun, UnknownFactsInRun
from runfacts.domain.history import History
from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payloads import (
    AttemptClaimed,
)

USER = IntentKind.USER
CLAIMED = AttemptClaimed(number=1, executor_type="local")


COMMANDS_ON_AN_ATTEMPT: list[Callable[[History], Decision]] = [
    lambda before: decisions.start(before, FIRST, None),
    lambda before: decisions.confirm_running(before, FIRST),
    lambda before: decisions.wait_for_approval(before, FIRST, None),
    lambda before: decisions.go_on(before, FIRST),
    *(
        lambda before, outcome=outcome: decisions.finish(before, FIRST, outcome, NOW_MS, group_left=False)
        for outcome in (Outcome.succeeded(), Outcome.failed(), Outcome.cancelled(), Outcome.timed_out())
    ),
]
COMMANDS_ON_A_RUN: list[Callable[[History], Decision]] = [
    lambda before: decisions.queue(before, NOW_MS),
    lambda before: decisions.claim(before, FIRST, CLAIMED),
    lambda before: decisions.request_cancellation(before, USER, None),
]


def test_a_run_of_this_product_may_be_changed() -> None:
    decisions.require_runtime(run_in(RunStatus.QUEUED))


def test_a_run_of_another_system_is_refused() -> None:
    with pytest.raises(LegacyRun) as refused:
        decisions.require_runtime(history(created(owner=ExecutionOwner.LEGACY)))
    assert refused.value.run_id == RUN


def test_a_run_with_facts_of_a_later_release_is_refused_and_each_type_named_once() -> None:
    before = run_in(RunStatus.QUEUED)
    before.unknown_types += ["run.paused", "attempt.paused", "run.paused"]
    with pytest.raises(UnknownFactsInRun) as refused:
        decisions.require_runtime(before)
    assert refused.value.types == ("run.paused", "attempt.paused")


@pytest.mark.parametrize("decide", COMMANDS_ON_AN_ATTEMPT)
def test_an_attempt_of_another_run_is_not_found(decide: Callable[[History], Decision]) -> None:
    with pytest.raises(AttemptNotFound) as refused:
        decide(run_in(RunStatus.QUEUED))
    assert refused.value.attempt_id == FIRST


@pytest.mark.parametrize("status", list(AttemptStatus))
def test_no_decision_changes_what_it_was_made_on(status: AttemptStatus) -> None:
    for intent in (None, USER):
        for decide in COMMANDS_ON_A_RUN + COMMANDS_ON_AN_ATTEMPT:
            before = attempt_in(status, intent=intent)
            version = before.version
            with suppress(IllegalTransition):
                decide(before)
            assert (before.version, before.run.status) == (version, attempt_in(status).run.status)

"""Given, when, then for pure decisions (R14.3)."""

from __future__ import annotations

import pytest

from runfacts.domain import decisions
from runfacts.domain.decisions import Refusal
from runfacts.domain.errors import IllegalTransition
from runfacts.domain.history import Draft
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptStarting,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunWaitingApproval,
)
from runfacts.domain.retry import RetryPolicy
from runfacts.testing.given_when_then import RUN_ID, attempt_id, given

CREATED = RunCreated(task="report", policy=RetryPolicy())
CLAIMED = (RunDispatching(number=1), AttemptClaimed(number=1, executor_type="batch"))


def test_a_decision_is_made_on_the_given_facts() -> None:
    given(CREATED).when(lambda history: decisions.queue(history, 0)).then(RunQueued())


def test_a_refusal_is_part_of_what_comes_of_it() -> None:
    given(CREATED, RunQueued()).when(lambda history: decisions.queue(history, 0)).then(refusal=Refusal.REPEATED)


def test_facts_belong_to_the_attempt_that_was_claimed_last() -> None:
    history = given(CREATED, RunQueued(), *CLAIMED, AttemptStarting()).history
    assert history.run_id == RUN_ID
    assert list(history.attempts) == [attempt_id(1)] == ["01900000-0000-7000-8000-000000000001"]
    assert history.attempts[attempt_id(1)].status.value == "starting"
    assert history.version == 5


def test_a_draft_says_its_attempt_itself() -> None:
    drafts = [Draft(item, attempt_id(7)) for item in CLAIMED]
    assert list(given(CREATED, RunQueued(), *drafts, AttemptStarting()).history.attempts) == [attempt_id(7)]


def test_an_attempts_fact_needs_an_attempt() -> None:
    with pytest.raises(ValueError, match=r"attempt\.starting needs"):
        given(CREATED, AttemptStarting())


def test_what_a_decision_raises_goes_up() -> None:
    run = given(CREATED, RunQueued(), *CLAIMED)
    with pytest.raises(IllegalTransition, match="dispatching cannot become waiting_approval"):
        run.when(lambda history: decisions.wait_for_approval(history, attempt_id(1), None))


@pytest.mark.parametrize("expected", [(), (RunWaitingApproval(),), (RunQueued(), RunQueued())])
def test_other_facts_than_expected_are_shown(expected: tuple[RunQueued, ...]) -> None:
    with pytest.raises(AssertionError, match=r"(?s)recorded:\n  run.queued RunQueued\(\)\nexpected:"):
        given(CREATED).when(lambda history: decisions.queue(history, 0)).then(*expected)


def test_another_refusal_than_expected_is_shown() -> None:
    with pytest.raises(AssertionError, match="refused as None, not as ended"):
        given(CREATED).when(lambda history: decisions.queue(history, 0)).then(RunQueued(), refusal=Refusal.ENDED)

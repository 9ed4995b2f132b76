"""Answers and errors show no token, and a view says what stands (R2.7, R3.6)."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest

from histories import FIRST, RUN, created, facts_of
from runfacts.domain import answers, errors
from runfacts.domain.answers import AttemptClaim, Claimed, Recorded
from runfacts.domain.decisions import Refusal
from runfacts.domain.errors import InvalidInput, RunfactsError
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.outcomes import Outcome
from runfacts.domain.views import Difference, ExecutionView, VerifyReport

LEASE, CALLBACK = "rft_lease_0123456789", "rft_callback_0123456789"
CLAIM = AttemptClaim(RUN, FIRST, 1, LEASE, CALLBACK)
ANSWERS = [
    item
    for item in vars(answers).values()
    if isinstance(item, type) and is_dataclass(item) and item.__module__ == answers.__name__
]


@pytest.mark.parametrize("value", [CLAIM, Claimed(CLAIM, 7, 4), [CLAIM], {"claim": CLAIM}])
def test_a_token_is_not_shown_when_a_claim_is_printed(value: object) -> None:
    for shown in (repr(value), str(value), f"{value}", f"{value!r:>10}"):
        assert LEASE not in shown
        assert CALLBACK not in shown
        assert FIRST in shown


def test_a_claim_still_has_its_tokens() -> None:
    assert (CLAIM.lease_token, CLAIM.callback_token) == (LEASE, CALLBACK)


def test_only_a_claim_has_tokens() -> None:
    with_tokens = {item.__name__ for item in ANSWERS if any("token" in field.name for field in fields(item))}
    assert with_tokens == {"AttemptClaim"}
    assert not any("token" in field.name for field in fields(ExecutionView))


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda item: item.__name__)
def test_an_answer_does_not_change(answer: Any) -> None:  # noqa: ANN401 - a dataclass
    made = object.__new__(answer)
    with pytest.raises((FrozenInstanceError, AttributeError)):
        setattr(made, fields(answer)[0].name, 1)


def test_facts_are_left_out_when_an_answer_is_printed() -> None:
    assert "run.created" not in repr(Recorded(RUN, RunStatus.CREATED, 1, facts_of(created())))


def test_the_words_of_refusal_are_these() -> None:
    assert [word.value for word in Refusal] == [
        "repeated",
        "cancellation_requested",
        "not_queued",
        "not_due",
        "ended",
        "recovering",
        "not_requested",
        "not_lost",
        "group_lives",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"exit_code": -1}, {"exit_code": 1 << 32}, {"exit_code": True}, {"exit_code": 1.0}),
        *({"signal": 0}, {"signal": 65}, {"signal": True}, {"signal": 9.0}),
    ],
)
def test_an_outcome_has_numbers_that_a_process_can_end_with(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInput):
        Outcome.failed(**wrong)  # type: ignore[arg-type]  # numbers only


@pytest.mark.parametrize("right", [{"exit_code": 0}, {"exit_code": 0xFFFFFFFF}, {"signal": 1}, {"signal": 64}, {}])
def test_numbers_at_the_bounds_are_taken(right: dict[str, int]) -> None:
    assert Outcome.failed(**right).fields() == right  # type: ignore[arg-type]  # numbers only


def test_an_outcome_is_an_exit_code_or_a_signal() -> None:
    with pytest.raises(InvalidInput, match="a process ends by one of them"):
        Outcome.failed(exit_code=0, signal=9)


def test_a_report_is_clean_without_differences_whatever_types_are_unknown() -> None:
    assert VerifyReport(1, 2, {"run.paused": 1}, ()).clean
    assert not VerifyReport(1, 2, {}, (Difference(RUN, "run", "status", "a", "b"),)).clean


def all_errors(root: type[RunfactsError] = RunfactsError) -> list[type[RunfactsError]]:
    """Every error of the tree."""
    return [found for kind in root.__subclasses__() for found in (kind, *all_errors(kind))]


EXAMPLES: list[RunfactsError] = [
    errors.MalformedId("run id", "x"),
    errors.MalformedUrl("no scheme"),
    errors.InvalidSetting("fact_page", "is unknown"),
    errors.InvalidValue("task", "is empty"),
    errors.InvalidCursor(),
    errors.RunNotFound(RUN),
    errors.AttemptNotFound(FIRST),
    errors.RunVersionConflict(RUN, 3, 4),
    errors.IdempotencyConflict(RUN, "task"),
    errors.DedupeConflict(RUN, "key"),
    errors.Contended(RUN, 9),
    errors.IllegalTransition("run", "created", "running"),
    errors.LegacyRun(RUN),
    errors.UnknownFactsInRun(RUN, ("run.paused",)),
    errors.TokenRefused(FIRST),
    errors.UnsupportedPlatform("this"),
    errors.DatabaseBusy("wait"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_says_in_one_line_what_happened(error: RunfactsError) -> None:
    assert str(error)
    assert "\n" not in str(error)
    assert not str(error).endswith(".")


def test_a_wrong_input_is_also_a_value_error() -> None:
    assert all(issubclass(kind, ValueError) for kind in all_errors(InvalidInput))


def test_the_tree_in_the_module_names_every_error() -> None:
    tree = errors.__doc__ or ""
    ours = [kind for kind in all_errors() if kind.__module__ == errors.__name__]
    assert [kind.__name__ for kind in ours if kind.__name__ not in tree] == []


def test_a_claim_can_be_handed_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(CLAIM)) == CLAIM  # noqa: S301 - our own bytes

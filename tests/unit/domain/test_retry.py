"""The retry policy: its bounds, its budget, its waits (R12.1)."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from runfacts.domain.errors import InvalidValue
from runfacts.domain.retry import RetryPolicy, Safety

DAY_MS = 86_400_000


def test_the_default_is_one_attempt_and_no_retry() -> None:
    policy = RetryPolicy()
    assert (policy.max_attempts, policy.retry_on_failure, policy.retry_on_lost) == (1, False, False)
    assert (policy.safety, policy.backoff_ms, policy.backoff_max_ms) == (Safety.UNKNOWN, 1_000, 60_000)
    assert not policy.allows_another(1)


def test_safety_is_one_of_three_words() -> None:
    assert [safety.value for safety in Safety] == ["unknown", "idempotent", "deduplicated"]
    with pytest.raises(InvalidValue, match="safety is none of unknown, idempotent, deduplicated"):
        RetryPolicy(safety="sure")  # type: ignore[arg-type]  # that is what is refused
    taken: Any = RetryPolicy(safety="idempotent")  # type: ignore[arg-type]  # callers without types do this
    assert taken.safety is Safety.IDEMPOTENT


@pytest.mark.parametrize(
    ("name", "lowest", "highest"), [("max_attempts", 1, 16), ("backoff_ms", 0, DAY_MS), ("backoff_max_ms", 0, DAY_MS)]
)
def test_each_number_is_taken_at_both_bounds_and_refused_beyond_them(name: str, lowest: int, highest: int) -> None:
    for within in (lowest, highest):
        policy: Any = RetryPolicy(**{name: within})  # type: ignore[arg-type]  # one of three numbers
        assert getattr(policy, name) == within
    for beyond in (lowest - 1, highest + 1, 1.5, True, "1", None):
        with pytest.raises(InvalidValue, match=name):
            RetryPolicy(**{name: beyond})  # type: ignore[arg-type]  # that is what is refused


def test_trying_lost_work_again_needs_a_declaration_that_it_is_safe() -> None:
    with pytest.raises(InvalidValue, match="retry_on_lost needs safety idempotent or deduplicated"):
        RetryPolicy(max_attempts=2, retry_on_lost=True)
    assert RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.IDEMPOTENT).retry_on_lost
    assert RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.DEDUPLICATED).retry_on_lost


def test_trying_failed_work_again_needs_none() -> None:
    assert RetryPolicy(max_attempts=2, retry_on_failure=True).safety is Safety.UNKNOWN


@pytest.mark.parametrize(("attempts", "another"), [(0, True), (1, True), (2, True), (3, False), (4, False)])
def test_the_budget_counts_attempts(attempts: int, another: bool) -> None:  # noqa: FBT001 - what is expected
    assert RetryPolicy(max_attempts=3).allows_another(attempts) is another


@pytest.mark.parametrize(
    ("attempts", "wait_ms"), [(0, 1_000), (1, 1_000), (2, 2_000), (3, 4_000), (6, 32_000), (7, 60_000), (16, 60_000)]
)
def test_the_wait_doubles_up_to_its_bound(attempts: int, wait_ms: int) -> None:
    assert RetryPolicy(max_attempts=16).wait_ms(attempts) == wait_ms


def test_a_wait_may_be_none_at_all() -> None:
    assert RetryPolicy(max_attempts=2, backoff_ms=0).wait_ms(9) == 0
    assert RetryPolicy(max_attempts=2, backoff_max_ms=0).wait_ms(1) == 0


def test_a_policy_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        RetryPolicy().max_attempts = 2  # type: ignore[misc]  # that is what is refused

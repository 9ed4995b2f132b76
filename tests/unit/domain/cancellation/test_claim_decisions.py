"""Who may claim a dispatch: the answers in their order, eligibility, waits and keys (R7.2, R7.4, R7.5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from histories import FIRST, NOW_MS, OTHER_RUN, RUN, SECOND, attempt_in, created, history, run_in
from runfacts.domain.cancellation.dispatch import (
    CancellationDispatch,
    ClaimAnswer,
    Exhausted,
    Grant,
    Times,
    backoff_ms,
    decide_claim,
    eligible_attempt,
    limit_key,
    settle_key,
    takeover_key,
    verb_key,
)
from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.domain.history import Draft
from runfacts.domain.lifecycle import ACTIVE_ATTEMPT, TERMINAL_RUN, AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.payloads import AttemptClaimed, RunCancelRequested, RunDispatching, RunQueued

LIMIT = 3
SERVED = frozenset({("local", "here"), ("local", "there"), ("other", "here")})
PENDING = CancellationDispatch(
    run_id=RUN,
    attempt_id=FIRST,
    executor_type="local",
    scope="here",
    status=DispatchStatus.PENDING,
    version=0,
    dispatch_count=0,
    tries_since_rearm=0,
    next_attempt_at_ms=None,
    due_at_ms=NOW_MS,
    lease_owner=None,
    lease_token_digest=None,
    lease_expires_at_ms=None,
    last_result=None,
    last_dispatched_at_ms=None,
    created_at_ms=NOW_MS,
    updated_at_ms=NOW_MS,
)
LEASED = replace(
    PENDING,
    status=DispatchStatus.LEASED,
    version=1,
    dispatch_count=1,
    tries_since_rearm=1,
    lease_owner="worker-1",
    lease_token_digest="d" * 64,
    lease_expires_at_ms=NOW_MS + 30_000,
)
WAITING = replace(
    PENDING,
    status=DispatchStatus.RETRY_WAIT,
    version=2,
    dispatch_count=1,
    tries_since_rearm=1,
    next_attempt_at_ms=NOW_MS + 1_000,
    last_result=DispatchResult.DISPATCH_ERROR,
)
DISPATCHED = replace(WAITING, status=DispatchStatus.DISPATCHED, next_attempt_at_ms=None)
BLOCKED = replace(DISPATCHED, status=DispatchStatus.BLOCKED)


def used_up(row: CancellationDispatch) -> CancellationDispatch:
    return replace(row, dispatch_count=9, tries_since_rearm=LIMIT)


@pytest.mark.parametrize(
    ("row", "times", "expected"),
    [
        # The first that applies, from the top (R7.2).
        (None, Times.DUE, Grant(None)),
        (DISPATCHED, Times.DUE, ClaimAnswer.DISPATCHED),
        (BLOCKED, Times.DUE, ClaimAnswer.BLOCKED),
        (used_up(DISPATCHED), Times.DUE, ClaimAnswer.DISPATCHED),
        (used_up(BLOCKED), Times.NOT_DUE, ClaimAnswer.BLOCKED),
        (LEASED, Times.LEASE_VALID, ClaimAnswer.LEASED),
        (used_up(LEASED), Times.LEASE_VALID, ClaimAnswer.LEASED),
        (WAITING, Times.NOT_DUE, ClaimAnswer.NOT_DUE),
        (used_up(WAITING), Times.NOT_DUE, ClaimAnswer.NOT_DUE),
        (PENDING, Times.DUE, Grant(None)),
        (WAITING, Times.DUE, Grant(None)),
        (LEASED, Times.DUE, Grant("worker-1")),
        (replace(WAITING, dispatch_count=2, tries_since_rearm=LIMIT - 1), Times.DUE, Grant(None)),
        (used_up(WAITING), Times.DUE, Exhausted()),
        (used_up(LEASED), Times.DUE, Exhausted()),
        # A new budget after a rearm: the count goes on, the tries begin anew (R13.2).
        (replace(WAITING, dispatch_count=9, tries_since_rearm=0), Times.DUE, Grant(None)),
    ],
)
def test_a_claim_is_answered_by_the_first_that_applies(
    row: CancellationDispatch | None, times: Times, expected: Grant | Exhausted | ClaimAnswer
) -> None:
    assert decide_claim(row, FIRST, times, LIMIT) == expected


@pytest.mark.parametrize("row", [PENDING, LEASED, WAITING, DISPATCHED, BLOCKED])
@pytest.mark.parametrize("times", list(Times))
def test_a_row_of_another_attempt_is_never_bound_anew(row: CancellationDispatch, times: Times) -> None:
    assert decide_claim(row, SECOND, times, LIMIT) is ClaimAnswer.BINDING_CONFLICT


@pytest.mark.parametrize("status", sorted(ACTIVE_ATTEMPT))
def test_an_active_attempt_of_a_run_that_was_asked_to_stop_may_be_claimed(status: AttemptStatus) -> None:
    asked = attempt_in(status, intent=IntentKind.USER)
    attempt = eligible_attempt(asked, FIRST, NOW_MS, SERVED, "here")
    assert attempt is asked.attempts[FIRST]


@pytest.mark.parametrize("status", sorted(set(RunStatus) - TERMINAL_RUN))
def test_without_an_intent_nothing_may_be_claimed(status: RunStatus) -> None:
    assert eligible_attempt(run_in(status), FIRST, NOW_MS, SERVED, "here") is None


@pytest.mark.parametrize("status", [RunStatus.RETRY_WAIT, RunStatus.LOST])
def test_an_attempt_that_has_ended_may_not_be_claimed(status: RunStatus) -> None:
    assert eligible_attempt(run_in(status, intent=IntentKind.USER), FIRST, NOW_MS, SERVED, "here") is None


@pytest.mark.parametrize("status", sorted(TERMINAL_RUN))
def test_a_run_that_has_ended_may_not_be_claimed(status: RunStatus) -> None:
    assert eligible_attempt(run_in(status), FIRST, NOW_MS, SERVED, "here") is None


@pytest.mark.parametrize("requested_at_ms", [NOW_MS - 1, NOW_MS + 1, 0])
def test_an_intent_of_another_time_may_not_be_claimed(requested_at_ms: int) -> None:
    asked = run_in(RunStatus.RUNNING, intent=IntentKind.USER)
    assert eligible_attempt(asked, FIRST, requested_at_ms, SERVED, "here") is None


def test_an_attempt_of_another_run_may_not_be_claimed() -> None:
    asked = run_in(RunStatus.RUNNING, intent=IntentKind.USER)
    assert eligible_attempt(asked, SECOND, NOW_MS, SERVED, "here") is None
    assert eligible_attempt(asked, OTHER_RUN, NOW_MS, SERVED, "here") is None


@pytest.mark.parametrize(
    ("served", "scope"),
    [
        (frozenset(), "here"),
        (frozenset({("local", "there")}), "here"),
        (frozenset({("other", "here")}), "here"),
        (frozenset({("Local", "here")}), "here"),
        # Types and scopes count in pairs.
        (frozenset({("local", "there"), ("other", "here")}), "here"),
        (SERVED, ""),
    ],
)
def test_executor_type_and_scope_must_be_served_as_a_pair(served: frozenset[tuple[str, str]], scope: str) -> None:
    asked = run_in(RunStatus.RUNNING, intent=IntentKind.USER)
    assert eligible_attempt(asked, FIRST, NOW_MS, served, scope) is None


def test_a_run_of_another_system_may_not_be_claimed() -> None:
    asked = history(
        created(owner=ExecutionOwner.LEGACY),
        Draft(RunQueued()),
        Draft(RunDispatching(number=1), FIRST),
        Draft(AttemptClaimed(number=1, executor_type="local"), FIRST),
        Draft(RunCancelRequested(kind=IntentKind.USER)),
    )
    assert eligible_attempt(asked, FIRST, NOW_MS, SERVED, "here") is None


def test_of_two_active_attempts_none_may_be_claimed() -> None:
    asked = history(
        created(),
        Draft(RunQueued()),
        Draft(RunDispatching(number=1), FIRST),
        Draft(AttemptClaimed(number=1, executor_type="local"), FIRST),
        Draft(AttemptClaimed(number=2, executor_type="local"), SECOND),
        Draft(RunCancelRequested(kind=IntentKind.USER)),
    )
    for attempt_id in (FIRST, SECOND):
        assert asked.attempts[attempt_id].active
        assert eligible_attempt(asked, attempt_id, NOW_MS, SERVED, "here") is None


def test_a_run_with_facts_of_a_later_release_may_not_be_claimed() -> None:
    asked = run_in(RunStatus.RUNNING, intent=IntentKind.USER)
    asked.unknown_types.append("run.teleported")
    assert eligible_attempt(asked, FIRST, NOW_MS, SERVED, "here") is None


@pytest.mark.parametrize(
    ("tries", "expected"),
    [(0, 1_000), (1, 1_000), (2, 2_000), (3, 4_000), (6, 32_000), (7, 60_000), (8, 60_000), (1_000, 60_000)],
)
def test_waits_double_from_the_base_up_to_the_longest(tries: int, expected: int) -> None:
    assert backoff_ms(tries, base_ms=1_000, max_ms=60_000, exponent_cap=30) == expected


@pytest.mark.parametrize(("tries", "expected"), [(1, 10), (2, 20), (3, 40), (4, 40), (99, 40)])
def test_the_exponent_has_a_cap_of_its_own(tries: int, expected: int) -> None:
    assert backoff_ms(tries, base_ms=10, max_ms=86_400_000, exponent_cap=2) == expected


def test_a_wait_never_exceeds_the_longest_even_when_the_base_does() -> None:
    assert backoff_ms(1, base_ms=5_000, max_ms=100, exponent_cap=0) == 100


def test_each_kind_of_fact_has_its_own_dedupe_key() -> None:
    assert settle_key(FIRST, 2) == f"cancel-dispatch:{FIRST}:2"
    assert takeover_key(FIRST, 2) == f"cancel-takeover:{FIRST}:2"
    assert limit_key(FIRST, 2) == f"cancel-limit:{FIRST}:2"
    assert verb_key("rearm", RUN, 4) == f"rearm:{RUN}:4"

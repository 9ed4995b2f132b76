"""The table of results: what each does to the dispatch, and which fact it records (R7.4, R8.2, R13.1)."""

from __future__ import annotations

import pytest

from runfacts.domain.cancellation.operators import DIAGNOSES, REARMABLE, UNSERVED
from runfacts.domain.cancellation.results import (
    BLOCKED,
    DELIVERED,
    FACT_AFTER,
    FAILED,
    FINISHED_DISPATCH,
    SETTLED,
    STATUS_AFTER,
    DispatchResult,
    DispatchStatus,
)

DISPATCHED_BY = {"termination_requested", "already_exited"}
BLOCKED_BY = {
    "identity_mismatch",
    "pid_mismatch",
    "unsupported",
    "invalid",
    "scope_mismatch",
    "group_survivors",
    "not_permitted",
    "limit",
    "abandoned",
}
RETRIED_BY = {"controller_missing", "handle_missing", "dispatch_error"}


def test_there_are_these_statuses_and_results() -> None:
    assert {status.value for status in DispatchStatus} == {"pending", "leased", "retry_wait", "dispatched", "blocked"}
    assert {result.value for result in DispatchResult} == DISPATCHED_BY | BLOCKED_BY | RETRIED_BY
    assert {status.value for status in FINISHED_DISPATCH} == {"dispatched", "blocked"}
    assert {status.value for status in REARMABLE} == {"dispatched", "blocked"}


@pytest.mark.parametrize(
    ("results", "status", "fact"),
    [
        (DISPATCHED_BY, "dispatched", "run.cancel_dispatched"),
        (BLOCKED_BY, "blocked", "run.cancel_dispatch_blocked"),
        (RETRIED_BY, "retry_wait", "run.cancel_dispatch_failed"),
    ],
)
def test_each_result_has_one_status_and_one_fact(results: set[str], status: str, fact: str) -> None:
    for name in results:
        after = STATUS_AFTER[DispatchResult(name)]
        assert (after.value, FACT_AFTER[after].TYPE) == (status, fact)


def test_the_three_kinds_of_results_share_nothing_and_leave_nothing_out() -> None:
    assert {result.value for result in DELIVERED} == DISPATCHED_BY
    assert {result.value for result in BLOCKED} == BLOCKED_BY
    assert {result.value for result in FAILED} == RETRIED_BY
    assert set(STATUS_AFTER) == set(DispatchResult)


def test_a_holder_settles_with_every_result_but_those_of_claims_and_verbs() -> None:
    assert set(DispatchResult) - SETTLED == {DispatchResult.LIMIT, DispatchResult.ABANDONED}


def test_every_reason_that_an_operator_can_meet_has_its_own_diagnosis() -> None:
    assert set(DIAGNOSES) == BLOCKED_BY | {UNSERVED}
    assert len(set(DIAGNOSES.values())) == len(DIAGNOSES)


@pytest.mark.parametrize("reason", sorted(DIAGNOSES))
def test_a_diagnosis_says_what_is_known_and_what_can_be_done(reason: str) -> None:
    words = DIAGNOSES[reason]
    assert words.endswith(".")
    assert len(words) > 80
    if reason == "abandoned":
        assert "ends by" in words
    else:
        assert any(remedy in words for remedy in ("rearm", "confirm-stopped", "by hand"))


@pytest.mark.parametrize("reason", ["identity_mismatch", "pid_mismatch", "unsupported", "invalid", "scope_mismatch"])
def test_where_nothing_was_signalled_the_diagnosis_says_so(reason: str) -> None:
    assert "no signal was sent" in " ".join(DIAGNOSES[reason].split())

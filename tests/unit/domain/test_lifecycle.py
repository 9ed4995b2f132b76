"""The life of Runs and Attempts as the tables have it (R2.1 to R2.6)."""

from __future__ import annotations

import itertools

import pytest

from runfacts.domain.errors import IllegalTransition
from runfacts.domain.lifecycle import (
    ACTIVE_ATTEMPT,
    ATTEMPT_TRANSITIONS,
    COMMANDS,
    RUN_TRANSITIONS,
    RUN_WITH_ATTEMPT,
    TERMINAL_ATTEMPT,
    TERMINAL_RUN,
    AttemptStatus,
    ExecutionOwner,
    IntentKind,
    RunStatus,
    attempt_end,
    require_attempt_transition,
    require_run_transition,
    run_end,
)
from runfacts.domain.payloads import FACT_TYPES

RUN_STATUSES = [
    "created",
    "queued",
    "dispatching",
    "running",
    "waiting_approval",
    "retry_wait",
    "lost",
    "succeeded",
    "failed",
    "cancelled",
    "timed_out",
]
ATTEMPT_STATUSES = ["claimed", "starting", "running", "succeeded", "failed", "cancelled", "timed_out", "lost"]

# R2.3, row by row.
RUN_TABLE = {
    "created": {"queued", "cancelled"},
    "queued": {"dispatching", "cancelled", "timed_out"},
    "dispatching": {"running", "retry_wait", "failed", "cancelled", "timed_out", "lost"},
    "running": {"waiting_approval", "retry_wait", "succeeded", "failed", "cancelled", "timed_out", "lost"},
    "waiting_approval": {"running", "cancelled", "timed_out", "succeeded", "failed", "retry_wait", "lost"},
    "retry_wait": {"queued", "cancelled", "timed_out"},
    "lost": {"queued", "retry_wait", "failed", "cancelled"},
    "succeeded": set(),
    "failed": set(),
    "cancelled": set(),
    "timed_out": set(),
}

# R2.4, row by row.
ATTEMPT_TABLE = {
    "claimed": {"starting", "cancelled", "lost"},
    "starting": {"running", "failed", "cancelled", "timed_out", "lost"},
    "running": {"succeeded", "failed", "cancelled", "timed_out", "lost"},
    "succeeded": set(),
    "failed": set(),
    "cancelled": set(),
    "timed_out": set(),
    "lost": set(),
}


def test_a_run_has_eleven_statuses() -> None:
    assert [status.value for status in RunStatus] == RUN_STATUSES


def test_an_attempt_has_eight_statuses() -> None:
    assert [status.value for status in AttemptStatus] == ATTEMPT_STATUSES


def test_lost_is_terminal_for_an_attempt_and_not_for_a_run() -> None:
    assert {"succeeded", "failed", "cancelled", "timed_out"} == TERMINAL_RUN
    assert {"succeeded", "failed", "cancelled", "timed_out", "lost"} == TERMINAL_ATTEMPT


def test_an_attempt_is_active_from_its_claim_to_its_end() -> None:
    assert {"claimed", "starting", "running"} == ACTIVE_ATTEMPT


def test_a_run_has_an_attempt_while_it_is_dispatching_running_or_waiting() -> None:
    assert {"dispatching", "running", "waiting_approval"} == RUN_WITH_ATTEMPT


def test_there_are_five_kinds_of_intent_and_two_owners() -> None:
    assert [kind.value for kind in IntentKind] == ["user", "policy", "shutdown", "timeout", "reconcile"]
    assert [owner.value for owner in ExecutionOwner] == ["runtime", "legacy"]


@pytest.mark.parametrize(("current", "target"), list(itertools.product(RUN_STATUSES, RUN_STATUSES)))
def test_a_run_makes_the_transitions_of_the_table_and_no_other(current: str, target: str) -> None:
    if target in RUN_TABLE[current]:
        require_run_transition(RunStatus(current), RunStatus(target))
    else:
        with pytest.raises(IllegalTransition) as refused:
            require_run_transition(RunStatus(current), RunStatus(target))
        assert (refused.value.aggregate, refused.value.current, refused.value.target) == ("run", current, target)
        assert str(refused.value) == f"a run that is {current} cannot become {target}"


@pytest.mark.parametrize(("current", "target"), list(itertools.product(ATTEMPT_STATUSES, ATTEMPT_STATUSES)))
def test_an_attempt_makes_the_transitions_of_the_table_and_no_other(current: str, target: str) -> None:
    if target in ATTEMPT_TABLE[current]:
        require_attempt_transition(AttemptStatus(current), AttemptStatus(target))
    else:
        with pytest.raises(IllegalTransition) as refused:
            require_attempt_transition(AttemptStatus(current), AttemptStatus(target))
        assert (refused.value.aggregate, refused.value.current, refused.value.target) == ("attempt", current, target)
        assert str(refused.value) == f"an attempt that is {current} cannot become {target}"


def test_the_tables_are_the_rules_tables_and_cannot_be_changed() -> None:
    assert RUN_TRANSITIONS == RUN_TABLE
    assert ATTEMPT_TRANSITIONS == ATTEMPT_TABLE
    for table in (RUN_TRANSITIONS, ATTEMPT_TRANSITIONS, COMMANDS):
        with pytest.raises(TypeError):
            table["created"] = ()  # type: ignore[index]  # that is what is refused


@pytest.mark.parametrize(
    ("current", "end"),
    [
        ("created", "cancelled"),
        ("queued", "timed_out"),
        ("dispatching", "timed_out"),
        ("running", "timed_out"),
        ("waiting_approval", "timed_out"),
        ("retry_wait", "timed_out"),
        ("lost", "cancelled"),
    ],
)
def test_a_timeout_ends_a_run_as_timed_out_where_its_table_has_it(current: str, end: str) -> None:
    assert run_end(RunStatus(current), IntentKind.TIMEOUT).value == end


@pytest.mark.parametrize(
    ("current", "end"), [("claimed", "cancelled"), ("starting", "timed_out"), ("running", "timed_out")]
)
def test_a_timeout_ends_an_attempt_as_timed_out_where_its_table_has_it(current: str, end: str) -> None:
    assert attempt_end(AttemptStatus(current), IntentKind.TIMEOUT).value == end


@pytest.mark.parametrize("kind", ["user", "policy", "shutdown", "reconcile"])
def test_every_other_kind_of_intent_ends_as_cancelled(kind: str) -> None:
    assert {run_end(status, IntentKind(kind)) for status in RunStatus if status not in TERMINAL_RUN} == {"cancelled"}
    assert {attempt_end(status, IntentKind(kind)) for status in ACTIVE_ATTEMPT} == {"cancelled"}


def test_every_active_status_has_the_end_that_an_intent_brings() -> None:
    for kind in IntentKind:
        for status in set(RunStatus) - TERMINAL_RUN:
            require_run_transition(status, run_end(status, kind))
        for active in ACTIVE_ATTEMPT:
            require_attempt_transition(active, attempt_end(active, kind))


def test_commands_record_what_the_rule_lists() -> None:
    # R2.6, row by row; what finish, a loss, a stop and a retry record has a row for each case (R11.5, R12.1, R12.2).
    assert dict(COMMANDS) == {
        "create": ("run.created",),
        "queue": ("run.queued",),
        "claim an Attempt": ("run.dispatching", "attempt.claimed"),
        "start barrier passed": ("attempt.starting",),
        "start barrier or handle commit refused by an intent": ("attempt.E", "run.E"),
        "process confirmed": ("attempt.running", "run.running"),
        "wait for approval": ("run.waiting_approval",),
        "go on": ("run.running",),
        "finish: succeeded": ("attempt.succeeded", "run.succeeded"),
        "finish: failed": ("attempt.failed", "run.failed"),
        "finish: failed, to be tried again": ("attempt.failed", "run.retry_wait"),
        "finish: timed out": ("attempt.timed_out", "run.timed_out"),
        "finish: cancelled": ("attempt.cancelled", "run.cancelled"),
        "cancel, no active Attempt": ("run.cancel_requested", "run.E"),
        "cancel, with an active Attempt": ("run.cancel_requested",),
        "lost": ("attempt.lost", "run.lost"),
        "lost, the Attempt before": ("run.lost",),
        "stop confirmed": ("run.stop_confirmed", "attempt.E", "run.E"),
        "stop confirmed, no active Attempt": ("run.stop_confirmed", "run.E"),
        "retry": ("run.retry_wait", "run.queued"),
        "retry, not allowed": ("run.failed",),
        "retry, asked to stop": ("run.E",),
    }


def test_commands_name_only_types_that_exist() -> None:
    named = {name for names in COMMANDS.values() for name in names} - {"run.E", "attempt.E"}
    assert named <= FACT_TYPES.keys()

"""Histories in every status, written down as facts by hand and not by the decisions under test."""

from __future__ import annotations

from collections.abc import Callable

from runfacts.domain.actors import Actor
from runfacts.domain.decisions import Decision
from runfacts.domain.facts import Fact
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptLost,
    AttemptRunning,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunLost,
    RunQueued,
    RunRetryWait,
    RunRunning,
    RunSucceeded,
    RunTimedOut,
    RunWaitingApproval,
)
from runfacts.domain.retry import RetryPolicy

RUN = "01890000-0000-7000-8000-000000000001"
OTHER_RUN = "01890000-0000-7000-8000-000000000002"
FIRST = "01890000-0000-7000-8000-00000000000a"
SECOND = "01890000-0000-7000-8000-00000000000b"
NOW_MS = 1_000_000
DUE_MS = 1_005_000
ANA = Actor.user("ana")
BY_ANA = RecordedBy(ANA, NOW_MS)

_CREATED = (Draft(RunCreated(task="build", policy=RetryPolicy())),)
_QUEUED = (*_CREATED, Draft(RunQueued()))
_CLAIMED = (
    *_QUEUED,
    Draft(RunDispatching(number=1), FIRST),
    Draft(AttemptClaimed(number=1, executor_type="local"), FIRST),
)
_STARTING = (*_CLAIMED, Draft(AttemptStarting(), FIRST))
_RUNNING = (*_STARTING, Draft(AttemptRunning(), FIRST), Draft(RunRunning(), FIRST))
_WAITING = (*_RUNNING, Draft(RunWaitingApproval(), FIRST))

BY_RUN_STATUS: dict[RunStatus, tuple[Draft, ...]] = {
    RunStatus.CREATED: _CREATED,
    RunStatus.QUEUED: _QUEUED,
    RunStatus.DISPATCHING: _CLAIMED,
    RunStatus.RUNNING: _RUNNING,
    RunStatus.WAITING_APPROVAL: _WAITING,
    RunStatus.RETRY_WAIT: (*_RUNNING, Draft(AttemptFailed(), FIRST), Draft(RunRetryWait(due_at_ms=DUE_MS), FIRST)),
    RunStatus.LOST: (
        *_RUNNING,
        Draft(AttemptLost(evidence=Evidence.NOT_RUNNING), FIRST),
        Draft(RunLost(evidence=Evidence.NOT_RUNNING), FIRST),
    ),
    RunStatus.SUCCEEDED: (*_RUNNING, Draft(AttemptSucceeded(exit_code=0), FIRST), Draft(RunSucceeded(), FIRST)),
    RunStatus.FAILED: (*_RUNNING, Draft(AttemptFailed(exit_code=7), FIRST), Draft(RunFailed(exit_code=7), FIRST)),
    RunStatus.CANCELLED: (*_RUNNING, Draft(AttemptCancelled(), FIRST), Draft(RunCancelled(), FIRST)),
    RunStatus.TIMED_OUT: (*_RUNNING, Draft(AttemptTimedOut(), FIRST), Draft(RunTimedOut(), FIRST)),
}
"""The facts of a Run in each status; where it has an Attempt, its id is ``FIRST``."""

BY_ATTEMPT_STATUS: dict[AttemptStatus, tuple[Draft, ...]] = {
    AttemptStatus.CLAIMED: _CLAIMED,
    AttemptStatus.STARTING: _STARTING,
    AttemptStatus.RUNNING: _RUNNING,
    AttemptStatus.SUCCEEDED: BY_RUN_STATUS[RunStatus.SUCCEEDED],
    AttemptStatus.FAILED: BY_RUN_STATUS[RunStatus.FAILED],
    AttemptStatus.CANCELLED: BY_RUN_STATUS[RunStatus.CANCELLED],
    AttemptStatus.TIMED_OUT: BY_RUN_STATUS[RunStatus.TIMED_OUT],
    AttemptStatus.LOST: BY_RUN_STATUS[RunStatus.LOST],
}
"""The facts of a Run whose only Attempt, ``FIRST``, is in each status."""


def history(*drafts: Draft, run_id: str = RUN) -> History:
    """A Run's history with these facts."""
    made = History(run_id, "shop")
    made.record(drafts, BY_ANA)
    return made


def run_in(status: RunStatus, *, intent: IntentKind | None = None) -> History:
    """A Run in a status, and on top of that asked to stop, if an intent is named."""
    asked = () if intent is None else (Draft(RunCancelRequested(kind=intent)),)
    return history(*BY_RUN_STATUS[status], *asked)


def attempt_in(status: AttemptStatus, *, intent: IntentKind | None = None) -> History:
    """A Run whose Attempt is in a status, and on top of that asked to stop, if an intent is named."""
    asked = () if intent is None else (Draft(RunCancelRequested(kind=intent)),)
    return history(*BY_ATTEMPT_STATUS[status], *asked)


def created(
    policy: RetryPolicy | None = None,
    *,
    owner: ExecutionOwner = ExecutionOwner.RUNTIME,
    deadline_at_ms: int | None = None,
) -> Draft:
    """The fact that creates a Run."""
    return Draft(
        RunCreated(task="build", policy=policy or RetryPolicy(), execution_owner=owner, deadline_at_ms=deadline_at_ms)
    )


def running_under(policy: RetryPolicy) -> History:
    """A running Run with that policy."""
    return history(created(policy), *_RUNNING[1:])


def facts_of(*drafts: Draft, run_id: str = RUN) -> tuple[Fact, ...]:
    """The facts that these drafts become."""
    return History(run_id, "shop").record(drafts, BY_ANA)


def types(drafts: tuple[Draft, ...]) -> list[str]:
    """The types of what a decision wants recorded."""
    return [draft.payload.TYPE for draft in drafts]


def recorded(decide: Callable[[History], Decision], before: History) -> Decision:
    """Give a decision, seen to be one that can be recorded."""
    decision = decide(before)
    before.record(decision.drafts, BY_ANA)
    return decision

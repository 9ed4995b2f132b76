"""
The life of Runs and Attempts, as data (R2).

Two tables say every transition that exists; ``COMMANDS`` says which command records which facts, in which order.
Nothing else in the package decides a transition: decisions look the target up here, the database's checks and the
diagrams of ``docs/lifecycle.md`` are made from here, and a test walks the full cross product.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from runfacts.domain.errors import IllegalTransition


class RunStatus(StrEnum):
    """The statuses of a Run (R2.1). ``lost`` is not terminal."""

    CREATED = "created"
    QUEUED = "queued"
    DISPATCHING = "dispatching"
    RUNNING = "running"
    WAITING_APPROVAL = "waiting_approval"
    RETRY_WAIT = "retry_wait"
    LOST = "lost"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class AttemptStatus(StrEnum):
    """The statuses of an Attempt (R2.2)."""

    CLAIMED = "claimed"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LOST = "lost"


class IntentKind(StrEnum):
    """Why somebody wants a Run to stop (R6.1)."""

    USER = "user"
    POLICY = "policy"
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"
    RECONCILE = "reconcile"


class ExecutionOwner(StrEnum):
    """Who executes a Run: this product, or another system whose facts are only kept (R2.10)."""

    RUNTIME = "runtime"
    LEGACY = "legacy"


_R = RunStatus
_A = AttemptStatus

TERMINAL_RUN: Final = frozenset({_R.SUCCEEDED, _R.FAILED, _R.CANCELLED, _R.TIMED_OUT})
"""Run statuses that never change again (R2.1, R2.7)."""

ACTIVE_ATTEMPT: Final = frozenset({_A.CLAIMED, _A.STARTING, _A.RUNNING})
"""Attempt statuses of a try that is under way (R2.2)."""

TERMINAL_ATTEMPT: Final = frozenset(AttemptStatus) - ACTIVE_ATTEMPT
"""Attempt statuses that never change again (R2.2)."""

RUN_WITH_ATTEMPT: Final = frozenset({_R.DISPATCHING, _R.RUNNING, _R.WAITING_APPROVAL})
"""Run statuses in which an Attempt may be active (R11.1)."""

RUN_TRANSITIONS: Final[Mapping[RunStatus, frozenset[RunStatus]]] = MappingProxyType(
    {
        _R.CREATED: frozenset({_R.QUEUED, _R.CANCELLED}),
        _R.QUEUED: frozenset({_R.DISPATCHING, _R.CANCELLED, _R.TIMED_OUT}),
        _R.DISPATCHING: frozenset({_R.RUNNING, _R.RETRY_WAIT, _R.FAILED, _R.CANCELLED, _R.TIMED_OUT, _R.LOST}),
        _R.RUNNING: frozenset(
            {_R.WAITING_APPROVAL, _R.RETRY_WAIT, _R.SUCCEEDED, _R.FAILED, _R.CANCELLED, _R.TIMED_OUT, _R.LOST}
        ),
        # Waiting keeps its Attempt, hence the ends that an Attempt can bring (R2.3).
        _R.WAITING_APPROVAL: frozenset(
            {_R.RUNNING, _R.CANCELLED, _R.TIMED_OUT, _R.SUCCEEDED, _R.FAILED, _R.RETRY_WAIT, _R.LOST}
        ),
        _R.RETRY_WAIT: frozenset({_R.QUEUED, _R.CANCELLED, _R.TIMED_OUT}),
        _R.LOST: frozenset({_R.QUEUED, _R.RETRY_WAIT, _R.FAILED, _R.CANCELLED}),
        **dict.fromkeys(TERMINAL_RUN, frozenset()),
    }
)
"""Every transition of a Run (R2.3)."""

ATTEMPT_TRANSITIONS: Final[Mapping[AttemptStatus, frozenset[AttemptStatus]]] = MappingProxyType(
    {
        _A.CLAIMED: frozenset({_A.STARTING, _A.CANCELLED, _A.LOST}),
        _A.STARTING: frozenset({_A.RUNNING, _A.FAILED, _A.CANCELLED, _A.TIMED_OUT, _A.LOST}),
        _A.RUNNING: frozenset({_A.SUCCEEDED, _A.FAILED, _A.CANCELLED, _A.TIMED_OUT, _A.LOST}),
        **dict.fromkeys(TERMINAL_ATTEMPT, frozenset()),
    }
)
"""Every transition of an Attempt (R2.4)."""

COMMANDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
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
)
"""Which command records which facts, in this order (R2.6). ``E`` is what ``run_end`` and ``attempt_end`` say."""


def require_run_transition(current: RunStatus, target: RunStatus) -> None:
    """Refuse a transition that the Run's table does not have (``IllegalTransition``)."""
    if target not in RUN_TRANSITIONS[current]:
        raise IllegalTransition("run", current.value, target.value)


def require_attempt_transition(current: AttemptStatus, target: AttemptStatus) -> None:
    """Refuse a transition that the Attempt's table does not have (``IllegalTransition``)."""
    if target not in ATTEMPT_TRANSITIONS[current]:
        raise IllegalTransition("attempt", current.value, target.value)


def run_end(current: RunStatus, kind: IntentKind) -> RunStatus:
    """How an intent of ``kind`` ends a Run: timed out where the table has it, else cancelled (R2.5, R2.6)."""
    timed_out = kind is IntentKind.TIMEOUT and _R.TIMED_OUT in RUN_TRANSITIONS[current]
    return _R.TIMED_OUT if timed_out else _R.CANCELLED


def attempt_end(current: AttemptStatus, kind: IntentKind) -> AttemptStatus:
    """How an intent of ``kind`` ends an Attempt: timed out where the table has it, else cancelled (R2.5, R2.6)."""
    timed_out = kind is IntentKind.TIMEOUT and _A.TIMED_OUT in ATTEMPT_TRANSITIONS[current]
    return _A.TIMED_OUT if timed_out else _A.CANCELLED

"""
Statistics: outcomes, lengths of time and retries by day, project and task (R14.1).

Every fact counts on the day (UTC) on which it was recorded: a Run that was created on Monday and failed on Tuesday is
one of Monday's created and one of Tuesday's failed ones, and its duration is Tuesday's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from runfacts.domain.facts import Fact
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptLost,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    Payload,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunFailed,
    RunLost,
    RunRunning,
    RunSucceeded,
    RunTimedOut,
)
from runfacts.domain.projecting import ProjectionName
from runfacts.projections.folding import Counts, Unprojectable

COUNTERS: Final = (
    "created",
    "succeeded",
    "failed",
    "cancelled",
    "timed_out",
    "attempts",
    "retries",
    "lost",
    "cancel_requests",
)
"""What is counted."""
LENGTHS: Final = ("duration", "execution", "cancellation", "recovery")
"""What is timed: of each there are a ``_count``, the sum ``_ms`` and the longest, ``_max_ms``."""
COLUMNS: Final = (*COUNTERS, *(f"{name}{end}" for name in LENGTHS for end in ("_count", "_ms", "_max_ms")))
"""All totals."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """What later facts of a Run need to know of earlier ones."""

    task: str
    created_at_ms: int
    active_attempt_id: str | None = None
    started_at_ms: int | None = None
    """When the active Attempt passed its start barrier."""
    requested_at_ms: int | None = None
    """When it was asked to stop, where an Attempt was active."""
    lost_at_ms: int | None = None
    """Since when it has been lost, or waiting for its next process after that."""


class StatisticsProjection:
    """See ``Projection``."""

    name: Final = ProjectionName.STATISTICS

    def apply(self, state: RunTimes | None, fact: Fact, counts: Counts) -> RunTimes | None:
        """See ``Projection``."""
        payload = fact.payload
        if isinstance(payload, RunCreated):
            if state is not None:
                raise Unprojectable("created twice")
            counts["created"] = 1
            return RunTimes(payload.task, fact.recorded_at_ms)
        if state is None:
            raise Unprojectable("its run's creation is not known")
        changes = _CHANGES.get(type(payload))
        return state if changes is None else changes(state, fact, counts)

    def task_of(self, state: RunTimes | None) -> str:
        """See ``Projection``."""
        return "" if state is None else state.task


def _claimed(state: RunTimes, fact: Fact, counts: Counts) -> RunTimes:
    counts["attempts"] = 1
    if isinstance(fact.payload, AttemptClaimed) and fact.payload.number > 1:
        counts["retries"] = 1
    return replace(state, active_attempt_id=fact.aggregate_id, started_at_ms=None)


def _starting(state: RunTimes, fact: Fact, counts: Counts) -> RunTimes:
    del counts
    return replace(state, started_at_ms=fact.recorded_at_ms)


def _attempt_ended(state: RunTimes, fact: Fact, counts: Counts) -> RunTimes:
    _time(counts, "execution", state.started_at_ms, fact)
    return replace(state, active_attempt_id=None, started_at_ms=None)


def _attempt_lost(state: RunTimes, fact: Fact, counts: Counts) -> RunTimes:
    del fact
    counts["lost"] = 1
    return replace(state, active_attempt_id=None, started_at_ms=None)


def _lost(state: RunTimes, fact: Fact, counts: Counts) -> RunTimes:
    del counts
    return state if state.lost_at_ms is not None else replace(state, lost_at_ms=fact.recorded_at_ms)


def _running(state: RunTimes, fact: Fact, counts: Counts) -> RunTimes:
    if state.lost_at_ms is None:
        return state
    _time(counts, "recovery", state.lost_at_ms, fact)
    return replace(state, lost_at_ms=None)


def _cancel_requested(state: RunTimes, fact: Fact, counts: Counts) -> RunTimes:
    counts["cancel_requests"] = 1
    return state if state.active_attempt_id is None else replace(state, requested_at_ms=fact.recorded_at_ms)


def _ended(outcome: str) -> Callable[[RunTimes, Fact, Counts], RunTimes]:
    def ended(state: RunTimes, fact: Fact, counts: Counts) -> RunTimes:
        counts[outcome] = 1
        _time(counts, "duration", state.created_at_ms, fact)
        _time(counts, "cancellation", state.requested_at_ms, fact)
        return replace(state, active_attempt_id=None, started_at_ms=None, requested_at_ms=None, lost_at_ms=None)

    return ended


def _time(counts: Counts, name: str, since_ms: int | None, fact: Fact) -> None:
    if since_ms is not None:
        # Times of a Run's facts never go back (R3.4).
        length_ms = max(0, fact.recorded_at_ms - since_ms)
        counts[f"{name}_count"], counts[f"{name}_ms"], counts[f"{name}_max_ms"] = 1, length_ms, length_ms


_CHANGES: Final[Mapping[type[Payload], Callable[[RunTimes, Fact, Counts], Any]]] = MappingProxyType(
    {
        AttemptClaimed: _claimed,
        AttemptStarting: _starting,
        AttemptSucceeded: _attempt_ended,
        AttemptFailed: _attempt_ended,
        AttemptCancelled: _attempt_ended,
        AttemptTimedOut: _attempt_ended,
        AttemptLost: _attempt_lost,
        RunLost: _lost,
        RunRunning: _running,
        RunCancelRequested: _cancel_requested,
        RunSucceeded: _ended("succeeded"),
        RunFailed: _ended("failed"),
        RunCancelled: _ended("cancelled"),
        RunTimedOut: _ended("timed_out"),
    }
)

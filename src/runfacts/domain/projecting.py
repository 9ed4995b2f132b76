"""
What projections give: the names of the views, their lines, and how far each of them is (R14.1).

A projection is a view that is made of facts alone, some time after they were recorded (R1.4). What it answers
therefore always says how far behind it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from runfacts.domain.actors import Actor
from runfacts.domain.lifecycle import IntentKind, RunStatus
from runfacts.domain.payloads import Escalation


class ProjectionName(StrEnum):
    """The views that are projected."""

    STATISTICS = "statistics"
    """Outcomes, durations and retries by day, project and task."""
    STOP_PROOF = "stop_proof"
    """What became of every request to stop, Run by Run."""


class Grouping(StrEnum):
    """By what statistics are added up."""

    DAY = "day"
    PROJECT = "project"
    TASK = "task"


class StopDelivery(StrEnum):
    """Where the delivery of a cancellation got to, as the facts say."""

    DISPATCHED = "dispatched"
    FAILED = "failed"
    BLOCKED = "blocked"
    REARMED = "rearmed"
    ABANDONED = "abandoned"


class StopEvidence(StrEnum):
    """By what it is known that a Run which was asked to stop has stopped."""

    NO_ATTEMPT = "no_attempt"
    """No Attempt was active: there was nothing to stop (R6.3)."""
    REPORTED = "reported"
    """Whoever executed the Attempt reported its end."""
    PRE_START = "pre_start"
    """It never ran."""
    NOT_RUNNING = "not_running"
    """An evidence provider proved that nothing of it runs."""
    ATTESTED = "attested"
    """An operator's word."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a projection is behind the facts."""

    facts: int
    """Committed facts that it does not have yet; no more than 100,000 are counted."""
    ms: int
    """How long ago the oldest of them was recorded."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of time of one kind."""

    count: int
    total_ms: int
    longest_ms: int

    @property
    def mean_ms(self) -> int | None:
        """The mean, rounded down; None where there is none."""
        return self.total_ms // self.count if self.count else None


@dataclass(frozen=True, slots=True)
class StatisticsLine:
    """What was recorded in one group: on a day (UTC), in a project, or of a task."""

    group: str
    """The day as YYYY-MM-DD, the project or the task."""
    created: int
    """Runs that were created."""
    succeeded: int
    failed: int
    cancelled: int
    timed_out: int
    attempts: int
    """Attempts that were claimed."""
    retries: int
    """Those of them that were not the first of their Run."""
    lost: int
    """Attempts that were proven gone without an outcome."""
    cancel_requests: int
    """Runs that were asked to stop."""
    durations: Lengths
    """From a Run's creation to its end."""
    executions: Lengths
    """From an Attempt's start barrier to its reported end."""
    cancellations: Lengths
    """From a request to stop to the Run's end, where an Attempt was active."""
    recoveries: Lengths
    """From a Run's loss to its next confirmed process."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics, and how far they are behind."""

    items: tuple[StatisticsLine, ...]
    lag: Lag


@dataclass(frozen=True, slots=True)
class StopProof:
    """What became of one request to stop: asked, delivered or blocked, and stopped, by what evidence."""

    run_id: str
    project: str
    attempt_id: str | None
    """The Attempt that was active; None where there was nothing to stop."""
    kind: IntentKind
    requested_by: Actor
    requested_at_ms: int
    delivery: StopDelivery | None
    """What the latest try came to; None where nobody has tried, or needed to."""
    result: str | None
    """The result of the latest try, a word of R7.4's table."""
    escalation: Escalation | None
    delivered_at_ms: int | None
    """When it was first delivered."""
    status: RunStatus | None
    """How the Run ended; None while it has not."""
    ended_at_ms: int | None
    evidence: StopEvidence | None
    """By what it is known that it stopped; None while it is not known."""


@dataclass(frozen=True, slots=True)
class StopProofs:
    """A page of the stop-proof report, oldest request first, and how far the report is behind."""

    items: tuple[StopProof, ...]
    next: str | None
    """The cursor of the next page, if there is one."""
    lag: Lag


@dataclass(frozen=True, slots=True)
class ProjectionHealth:
    """How one projection stands."""

    projection: ProjectionName
    position: int
    """Up to where facts are in it; 0 at the beginning."""
    lag: Lag
    facts: int
    """How many facts it was given."""
    unknown: int
    """How many of them were of a type or version that the release of that time did not know: left out of it (R3.7)."""
    set_aside: int
    """How many of them could not be applied, or are of a Run of which an earlier one could not."""
    rebuilding: bool
    """Whether another generation is being built beside it."""


@dataclass(frozen=True, slots=True)
class SetAsideFact:
    """A fact that a projection could not apply, or that must wait for such a one of its Run."""

    projection: ProjectionName
    position: int
    run_id: str
    sequence: int
    reason: str
    """``behind an earlier one``, or what was wrong, without anything that the fact says."""
    tries: int
    set_aside_at_ms: int


@dataclass(frozen=True, slots=True)
class Projected:
    """What was brought into a projection."""

    seen: int = 0
    """Facts that were read."""
    set_aside: int = 0
    unknown: int = 0

    def __add__(self, other: Projected) -> Projected:
        return Projected(self.seen + other.seen, self.set_aside + other.set_aside, self.unknown + other.unknown)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did."""

    projection: ProjectionName
    facts: int
    seconds: float
    set_aside: int
    unknown: int


@dataclass(frozen=True, slots=True)
class Retried:
    """What trying again came to."""

    projection: ProjectionName
    applied: int
    left: int
    """How many are still set aside."""

"""
Measures: what a ledger counts and times for whoever keeps it running (R7.7).

A closed list, ``MEASURES``: each has a name, a unit, and labels with a closed set of values. Whatever else is given for
a label is told as ``other``, so that no measure can carry an id, a handle, a process number, a secret or a text that
somebody chose (R3.6), and the number of time series has a bound. That is also why no measure tells executor types or
scopes apart: their names are free.

What happened is measured once it is committed, and by the object that did it: a measure is a hint for people, the
facts are the record. ``Measures`` is the port; ``NO_MEASURES``, the default, does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import SETTLED, DispatchResult, DispatchStatus
from runfacts.domain.cancellation.terms import PageRefusal
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import Escalation, RunCancelled, RunCancelRequested, RunStopConfirmed, RunTimedOut
from runfacts.domain.projecting import ProjectionName
from runfacts.domain.recovery.claims import ClaimState, Purpose
from runfacts.domain.recovery.evidence import Liveness, Unknown
from runfacts.domain.recovery.verdict import VerdictKind

OTHER: Final = "other"
"""What a label says where its value is none of those written down here."""


class MeasureKind(StrEnum):
    """How the numbers of a measure belong together."""

    COUNTER = "counter"
    """They are added up."""
    HISTOGRAM = "histogram"
    """Their distribution is kept."""
    GAUGE = "gauge"
    """The present one counts; it is read when somebody looks."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that is measured."""

    name: str
    kind: MeasureKind
    unit: str
    """``ms``, or what is counted in braces, as UCUM writes it."""
    about: str
    labels: Mapping[str, frozenset[str]]
    """The values of each label."""

    def bounded(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Give a value for each label of the measure and for no other, ``other`` where the given one is unknown."""
        return {
            name: value if (value := labels.get(name, OTHER)) in values else OTHER
            for name, values in self.labels.items()
        }


def _measure(name: str, kind: MeasureKind, unit: str, about: str, **labels: Iterable[str]) -> Measure:
    closed = {label: frozenset(str(value) for value in values) for label, values in labels.items()}
    return Measure(f"runfacts.{name}", kind, unit, about, MappingProxyType(closed))


CLAIMED: Final = "claimed"
TAKEN_OVER: Final = "taken_over"
NO_DISPATCH: Final = "no_dispatch"
ABANDONED: Final = DispatchResult.ABANDONED.value
QUEUE_STATES: Final = (*(status.value for status in DispatchStatus), ABANDONED, NO_DISPATCH)
"""Where the cancellation of a Run that has not ended stands: its dispatch's status, abandoned, or it has none."""
DUE: Final = "due"
BACKING_OFF: Final = "backing_off"
MANUAL: Final = ClaimState.MANUAL.value
RECOVERY_STATES: Final = (DUE, CLAIMED, BACKING_OFF, MANUAL)
"""Where a candidate of recovery stands: nobody has come for it, held, looked at and to be looked at again, or left to
an operator."""

_COUNTS: Final = frozenset(
    {"seen", "claimed", "requested", "taken_over", "out_of_time", "fenced", "error"}
    | {"recorded", "repeated", "late", "quarantined", "kept"}
    | set(ClaimAnswer)
    | set(DispatchResult)
    | set(PageRefusal)
    | set(VerdictKind)
    | {"stale", "given_back", "swept", "hanging", "found_receipt", "found_running", "found_not_running"}
    | {f"found_{reason}" for reason in Unknown}
    | {"projected", "unknown", "set_aside"}
    | {"taken", "never_ran", "detached", "keeper_lost", "not_started"}
    | set(RunStatus)
)
_TIMED: Final = ("completion", "deadlines", "cancellation", "recovery", "stop", "retry", "projections")
_PARTS: Final = (*_TIMED, "hosted")

CLAIMS: Final = _measure(
    "cancellation.claims",
    MeasureKind.COUNTER,
    "{claim}",
    "Claims of a delivery, by answer; taken_over is a claim after a holder who did not settle.",
    answer=(CLAIMED, TAKEN_OVER, *ClaimAnswer),
)
SETTLES: Final = _measure(
    "cancellation.settles",
    MeasureKind.COUNTER,
    "{settle}",
    "Results recorded by the holders of claims.",
    result=SETTLED,
)
REFUSALS: Final = _measure(
    "refusals",
    MeasureKind.COUNTER,
    "{refusal}",
    "Late or wrong writes that were refused: a settle of a term that is over, a token that is not the claim's.",
    what=("dispatch_term", "recovery_term", "token"),
)
SIGNALS: Final = _measure(
    "cancellation.signals",
    MeasureKind.COUNTER,
    "{signal}",
    "Signals that a local process group accepted.",
    signal=(Escalation.TERM, Escalation.KILL),
)
REQUEST_TO_SIGNAL: Final = _measure(
    "cancellation.request_to_signal",
    MeasureKind.HISTOGRAM,
    "ms",
    "Time from a request to the first signal of a try.",
)
REQUEST_TO_STOP: Final = _measure(
    "cancellation.request_to_stop",
    MeasureKind.HISTOGRAM,
    "ms",
    "Time from a request to the Run's end on evidence, where an Attempt was active.",
)
QUEUE_DEPTH: Final = _measure(
    "cancellation.queue_depth",
    MeasureKind.GAUGE,
    "{run}",
    "Runs that were asked to stop and have not ended, by where their cancellation stands.",
    status=QUEUE_STATES,
)
QUEUE_OLDEST_AGE: Final = _measure(
    "cancellation.queue_oldest_age",
    MeasureKind.GAUGE,
    "ms",
    "Time since the oldest request of those Runs.",
    status=QUEUE_STATES,
)
RECOVERY_QUEUE_DEPTH: Final = _measure(
    "recovery.queue_depth",
    MeasureKind.GAUGE,
    "{item}",
    "Candidates of recovery, of stop confirmations and of retries, by where they stand.",
    purpose=Purpose,
    state=RECOVERY_STATES,
)
RECOVERY_QUEUE_OLDEST_AGE: Final = _measure(
    "recovery.queue_oldest_age",
    MeasureKind.GAUGE,
    "ms",
    "For how long the oldest of those has been there: a due one since it was due.",
    purpose=Purpose,
    state=RECOVERY_STATES,
)
EVIDENCE_ANSWERS: Final = _measure(
    "recovery.evidence_answers",
    MeasureKind.COUNTER,
    "{answer}",
    "Answers of evidence providers; provider_unavailable is also one that failed or is late.",
    answer=(Liveness.RUNNING, Liveness.NOT_RUNNING, *Unknown),
)
EVIDENCE_DURATION: Final = _measure(
    "recovery.evidence_duration",
    MeasureKind.HISTOGRAM,
    "ms",
    "How long whoever asked waited for such an answer.",
)
RECOVERY_WINDOW: Final = _measure(
    "recovery.left_over",
    MeasureKind.HISTOGRAM,
    "ms",
    "For how long the oldest row of a sweep was left over: what was recorded, and not settled.",
)
PROJECTION_LAG: Final = _measure(
    "projection.lag",
    MeasureKind.GAUGE,
    "{fact}",
    "Committed facts that a projection does not have yet; no more than 100,000 are counted.",
    projection=ProjectionName,
)
PROJECTION_LAG_AGE: Final = _measure(
    "projection.lag_age",
    MeasureKind.GAUGE,
    "ms",
    "How long ago the oldest of those was recorded.",
    projection=ProjectionName,
)
CYCLE_DURATION: Final = _measure(
    "cycle.duration",
    MeasureKind.HISTOGRAM,
    "ms",
    "How long a part of a worker's cycle took.",
    part=_TIMED,
)
CYCLE_COUNTS: Final = _measure(
    "cycle.counts",
    MeasureKind.COUNTER,
    "{count}",
    "What the parts of workers' cycles counted.",
    part=_PARTS,
    counter=_COUNTS,
)
MEASURES: Final = (
    CLAIMS,
    SETTLES,
    REFUSALS,
    SIGNALS,
    REQUEST_TO_SIGNAL,
    REQUEST_TO_STOP,
    QUEUE_DEPTH,
    QUEUE_OLDEST_AGE,
    RECOVERY_QUEUE_DEPTH,
    RECOVERY_QUEUE_OLDEST_AGE,
    EVIDENCE_ANSWERS,
    EVIDENCE_DURATION,
    RECOVERY_WINDOW,
    PROJECTION_LAG,
    PROJECTION_LAG_AGE,
    CYCLE_DURATION,
    CYCLE_COUNTS,
)
"""All of them."""

BUCKETS_MS: Final = (5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000)
"""Where the buckets of the histograms end, in milliseconds: from a woken worker to an operator."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """How many stand at one place of a queue, and how old the oldest of them is there."""

    count: int = 0
    oldest_age_ms: int = 0


Place = tuple[str, ...]
"""A place of a queue: a value for each label of its gauges, in their order."""
Look = Callable[[], Mapping[Place, QueueState]]
"""Reads a queue as it is, by place; what is left out is empty."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue as two gauges with the same labels."""

    of: str
    """What stands in it, in a word."""
    depth: Measure
    oldest_age: Measure
    places: tuple[Place, ...]

    def labels(self, place: Place) -> dict[str, str]:
        """Give the labels of a place."""
        return self.depth.bounded(dict(zip(self.depth.labels, place, strict=True)))


CANCELLATION_QUEUE: Final = Queue(
    "cancellations", QUEUE_DEPTH, QUEUE_OLDEST_AGE, tuple((state,) for state in QUEUE_STATES)
)
RECOVERY_QUEUE: Final = Queue(
    "recoveries",
    RECOVERY_QUEUE_DEPTH,
    RECOVERY_QUEUE_OLDEST_AGE,
    tuple((purpose.value, state) for purpose in Purpose for state in RECOVERY_STATES),
)
PROJECTION_QUEUE: Final = Queue(
    "projections", PROJECTION_LAG, PROJECTION_LAG_AGE, tuple((name.value,) for name in ProjectionName)
)
QUEUES: Final = (CANCELLATION_QUEUE, RECOVERY_QUEUE, PROJECTION_QUEUE)
"""All queues; every gauge is of one."""


class Measures(Protocol):
    """Where measures go. Both methods are called by any thread; they neither wait nor raise."""

    def record(self, measure: Measure, amount: int = 1, **labels: str) -> None:
        """Add to a counter, or put a length in milliseconds into a histogram."""
        ...

    def watch(self, queue: Queue, look: Look) -> Callable[[], None]:
        """Read the gauges of ``queue`` with ``look`` when somebody wants them; give what ends that.

        ``look`` is not called any more once that has returned. It may raise ``RunfactsError``.
        """
        ...


class NoMeasures:
    """Measures nothing. See ``Measures``."""

    def record(self, measure: Measure, amount: int = 1, **labels: str) -> None:
        """See ``Measures``."""

    def watch(self, queue: Queue, look: Look) -> Callable[[], None]:
        """See ``Measures``."""
        del queue, look
        return _nothing


def _nothing() -> None:
    pass


NO_MEASURES: Final = NoMeasures()


def proven_stop_ms(history: History, facts: tuple[Fact, ...]) -> int | None:
    """Give the time from the request to the Run's end, where these facts are that end and it rests on evidence.

    Not where there was nothing to stop (R6.3), and not on an operator's word alone (R6.2).
    """
    intent = history.run.intent
    if intent is None or not facts or not isinstance(facts[-1].payload, RunCancelled | RunTimedOut):
        return None
    first = facts[0].payload
    if isinstance(first, RunCancelRequested):
        return None
    if isinstance(first, RunStopConfirmed) and first.evidence is Evidence.ATTESTED:
        return None
    return facts[-1].recorded_at_ms - intent.requested_at_ms

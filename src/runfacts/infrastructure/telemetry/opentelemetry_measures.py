"""
Measures through OpenTelemetry's API (the extra ``telemetry``).

Only the API is used: what is measured goes where the application has configured its meter provider to send it, and
nowhere if it has configured none. OpenTelemetry is loaded when an ``OpenTelemetryMeasures`` is made.

The gauges are read when the provider collects, in its thread, with one bounded query for each ledger that is watched.
Several ledgers add up, and the oldest request of all counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING, Final

from runfacts.domain.errors import RunfactsError
from runfacts.domain.measures import (
    BUCKETS_MS,
    MEASURES,
    NO_MEASURES,
    QUEUE_DEPTH,
    QUEUE_OLDEST_AGE,
    QUEUE_STATES,
    Look,
    Measure,
    MeasureKind,
    Measures,
    QueueState,
)

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, MeterProvider, Observation

log: Final = logging.getLogger("runfacts")


def measures_if_installed() -> Measures:
    """Give measures for the meter provider that is configured globally, or none without the extra."""
    try:
        return OpenTelemetryMeasures()
    except ModuleNotFoundError:
        return NO_MEASURES


class OpenTelemetryMeasures:
    """Measures for ``Ledger.open``. Thread-safe. See ``Measures``.

    Make one in a process and give it to every ledger: OpenTelemetry takes a gauge of the same name only once.
    """

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        """Send to ``meter_provider``, or to the one that is configured globally.

        Raises ``ModuleNotFoundError`` where the extra is not installed.
        """
        try:
            from opentelemetry.metrics import Observation, get_meter
        except ModuleNotFoundError as error:
            msg = "measuring through OpenTelemetry needs its extra: install runfacts[telemetry]"
            raise ModuleNotFoundError(msg, name=error.name) from error

        meter = get_meter("runfacts", version("runfacts"), meter_provider)
        self._observation: type[Observation] = Observation
        self._looks: list[Look] = []
        # Held while a look is under way: whoever ends one may close its database right after.
        self._lock = Lock()
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for measure in MEASURES:
            name, unit, about = measure.name, measure.unit, measure.about
            if measure.kind is MeasureKind.COUNTER:
                self._counters[name] = meter.create_counter(name, unit, about)
            elif measure.kind is MeasureKind.HISTOGRAM:
                self._histograms[name] = meter.create_histogram(
                    name, unit, about, explicit_bucket_boundaries_advisory=BUCKETS_MS
                )
        meter.create_observable_gauge(QUEUE_DEPTH.name, [self._observe_depth], QUEUE_DEPTH.unit, QUEUE_DEPTH.about)
        meter.create_observable_gauge(
            QUEUE_OLDEST_AGE.name, [self._observe_age], QUEUE_OLDEST_AGE.unit, QUEUE_OLDEST_AGE.about
        )

    def record(self, measure: Measure, amount: int = 1, **labels: str) -> None:
        """See ``Measures``."""
        bounded = measure.bounded(labels)
        if measure.kind is MeasureKind.COUNTER:
            self._counters[measure.name].add(amount, bounded)
        elif measure.kind is MeasureKind.HISTOGRAM:
            # A wall clock that stepped back makes a length negative (R5).
            self._histograms[measure.name].record(max(amount, 0), bounded)

    def watch(self, look: Look) -> Callable[[], None]:
        """See ``Measures``."""
        with self._lock:
            self._looks.append(look)

        def end() -> None:
            with self._lock:
                if look in self._looks:
                    self._looks.remove(look)

        return end

    def _observe_depth(self, options: CallbackOptions) -> Iterator[Observation]:
        del options
        for state, queue in self._queue().items():
            yield self._observation(queue.count, QUEUE_DEPTH.bounded({"status": state}))

    def _observe_age(self, options: CallbackOptions) -> Iterator[Observation]:
        del options
        for state, queue in self._queue().items():
            yield self._observation(queue.oldest_age_ms, QUEUE_OLDEST_AGE.bounded({"status": state}))

    def _queue(self) -> Mapping[str, QueueState]:
        """Read what is watched; nothing where that failed, so that no half of a sum looks like all of it."""
        total = dict.fromkeys(QUEUE_STATES, QueueState())
        with self._lock:
            if not self._looks:
                return {}
            for look in self._looks:
                try:
                    found = look()
                except RunfactsError as error:
                    log.warning("the queue of cancellations could not be measured: %s", error)
                    return {}
                for state, queue in found.items():
                    before = total[state]
                    oldest = max(before.oldest_age_ms, queue.oldest_age_ms)
                    total[state] = QueueState(before.count + queue.count, oldest)
        return total

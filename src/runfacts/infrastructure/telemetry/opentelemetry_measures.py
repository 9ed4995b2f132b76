"""
Measures through OpenTelemetry's API (the extra ``telemetry``).

Only the API is used: what is measured goes where the application has configured its meter provider to send it, and
nowhere if it has configured none. OpenTelemetry is loaded when an ``OpenTelemetryMeasures`` is made.

The gauges are read when the provider collects, in its thread, with a few bounded queries for each ledger that is
watched. Several ledgers add up, and the oldest of all counts.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from runfacts.domain.errors import RunfactsError
from runfacts.domain.measures import (
    BUCKETS_MS,
    MEASURES,
    NO_MEASURES,
    QUEUES,
    Look,
    Measure,
    MeasureKind,
    Measures,
    Place,
    Queue,
    QueueState,
)
from runfacts.infrastructure.database.forks import ForkedLock

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
        self._looks: dict[str, list[Look]] = defaultdict(list)
        # Held while a look is under way: whoever ends one may close its database right after.
        self._lock = ForkedLock()
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
        for queue in QUEUES:
            depth, age = queue.depth, queue.oldest_age
            meter.create_observable_gauge(depth.name, [partial(self._observe_depth, queue)], depth.unit, depth.about)
            meter.create_observable_gauge(age.name, [partial(self._observe_age, queue)], age.unit, age.about)

    def record(self, measure: Measure, amount: int = 1, **labels: str) -> None:
        """See ``Measures``."""
        bounded = measure.bounded(labels)
        if measure.kind is MeasureKind.COUNTER:
            self._counters[measure.name].add(amount, bounded)
        elif measure.kind is MeasureKind.HISTOGRAM:
            # A wall clock that stepped back makes a length negative (R5).
            self._histograms[measure.name].record(max(amount, 0), bounded)

    def watch(self, queue: Queue, look: Look) -> Callable[[], None]:
        """See ``Measures``."""
        looks = self._looks[queue.of]
        with self._lock:
            looks.append(look)

        def end() -> None:
            with self._lock:
                if look in looks:
                    looks.remove(look)

        return end

    def _observe_depth(self, queue: Queue, options: CallbackOptions) -> Iterator[Observation]:
        del options
        for place, found in self._read(queue).items():
            yield self._observation(found.count, queue.labels(place))

    def _observe_age(self, queue: Queue, options: CallbackOptions) -> Iterator[Observation]:
        del options
        for place, found in self._read(queue).items():
            yield self._observation(found.oldest_age_ms, queue.labels(place))

    def _read(self, queue: Queue) -> Mapping[Place, QueueState]:
        """Read what is watched; nothing where that failed, so that no half of a sum looks like all of it."""
        total = dict.fromkeys(queue.places, QueueState())
        with self._lock:
            looks = self._looks[queue.of]
            if not looks:
                return {}
            for look in looks:
                try:
                    found = look()
                except RunfactsError as error:
                    log.warning("the queue of %s could not be measured: %s", queue.of, error)
                    return {}
                for place, state in found.items():
                    before = total[place]
                    oldest = max(before.oldest_age_ms, state.oldest_age_ms)
                    total[place] = QueueState(before.count + state.count, oldest)
        return total

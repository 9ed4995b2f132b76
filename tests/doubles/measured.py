"""What a ledger measured, read back through OpenTelemetry's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, Metric

from runfacts import OpenTelemetryMeasures
from runfacts.domain.measures import Measure


class Measured:
    """Measures that are kept in memory, and what they say now. Close it."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        # Without a hook at the interpreter's exit: the test closes it.
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.measures = OpenTelemetryMeasures(self.provider)

    def close(self) -> None:
        """Collect nothing any more."""
        self.provider.shutdown()

    def metrics(self) -> Iterator[Metric]:
        """Collect everything."""
        data = self._reader.get_metrics_data()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                yield from scope.metrics

    def points(self, measure: Measure) -> list[Any]:
        """Give the data points of one measure."""
        return [point for metric in self.metrics() if metric.name == measure.name for point in metric.data.data_points]

    def counts(self, measure: Measure) -> dict[str, int]:
        """Give the values of a counter or a gauge with one label, by its values; a gauge's zeros are left out."""
        return {
            str(value): point.value
            for point in self.points(measure)
            for value in (point.attributes or {}).values()
            if point.value
        }

    def sum_and_count(self, measure: Measure) -> tuple[int, int]:
        """Give the sum of a histogram without labels, and how many lengths are in it."""
        points = self.points(measure)
        assert len(points) <= 1
        return (points[0].sum, points[0].count) if points else (0, 0)

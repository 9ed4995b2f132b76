"""Measures through OpenTelemetry: what arrives, and what it costs whoever has not asked for it (R7.7)."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from measured import Measured
from runfacts import DatabaseBusy
from runfacts.domain.measures import (
    BUCKETS_MS,
    CANCELLATION_QUEUE,
    CLAIMS,
    MEASURES,
    QUEUE_DEPTH,
    QUEUE_OLDEST_AGE,
    QUEUE_STATES,
    QUEUES,
    RECOVERY_QUEUE,
    RECOVERY_QUEUE_DEPTH,
    RECOVERY_QUEUE_OLDEST_AGE,
    REQUEST_TO_STOP,
    Place,
    QueueState,
)


@pytest.fixture
def measured() -> Iterator[Measured]:
    """Measures in memory."""
    measured = Measured()
    yield measured
    measured.close()


def test_counters_add_up_by_label(measured: Measured) -> None:
    measured.measures.record(CLAIMS, answer="claimed")
    measured.measures.record(CLAIMS, 2, answer="claimed")
    measured.measures.record(CLAIMS, answer="leased")
    assert measured.counts(CLAIMS) == {"claimed": 3, "leased": 1}


def test_lengths_go_into_buckets_that_reach_from_a_woken_worker_to_an_operator(measured: Measured) -> None:
    for ms in (7, 8, 4_000):
        measured.measures.record(REQUEST_TO_STOP, ms)
    (point,) = measured.points(REQUEST_TO_STOP)
    assert (point.sum, point.count) == (4_015, 3)
    assert tuple(point.explicit_bounds) == BUCKETS_MS
    assert point.bucket_counts[1] == 2


def test_a_clock_that_stepped_back_makes_no_length_negative(measured: Measured) -> None:
    measured.measures.record(REQUEST_TO_STOP, -60_000)
    assert measured.sum_and_count(REQUEST_TO_STOP) == (0, 1)


def test_what_arrives_has_the_name_the_unit_and_the_words_of_its_measure(measured: Measured) -> None:
    for measure in MEASURES:
        measured.measures.record(measure)
    for queue in QUEUES:
        measured.measures.watch(queue, dict)
    arrived = {metric.name: (metric.unit, metric.description) for metric in measured.metrics()}
    assert arrived == {measure.name: (measure.unit, measure.about) for measure in MEASURES}


def test_the_gauges_are_those_of_all_ledgers_together(measured: Measured) -> None:
    measured.measures.watch(CANCELLATION_QUEUE, lambda: {("pending",): QueueState(2, 500)})
    end = measured.measures.watch(
        CANCELLATION_QUEUE, lambda: {("pending",): QueueState(1, 900), ("blocked",): QueueState(1, 7)}
    )
    assert measured.counts(QUEUE_DEPTH) == {"pending": 3, "blocked": 1}
    assert measured.counts(QUEUE_OLDEST_AGE) == {"pending": 900, "blocked": 7}
    end()
    end()
    assert measured.counts(QUEUE_DEPTH) == {"pending": 2}


def test_the_gauges_of_recovery_tell_purposes_and_states_apart(measured: Measured) -> None:
    for age_ms in (70, 900):
        found: dict[Place, QueueState] = {
            ("recovery", "due"): QueueState(1, age_ms),
            ("stop", "manual"): QueueState(2, 8),
        }
        measured.measures.watch(RECOVERY_QUEUE, found.copy)
    told = {
        gauge.name: {tuple((point.attributes or {}).values()): point.value for point in measured.points(gauge)}
        for gauge in (RECOVERY_QUEUE_DEPTH, RECOVERY_QUEUE_OLDEST_AGE)
    }
    nothing = dict.fromkeys(RECOVERY_QUEUE.places, 0)
    assert told == {
        RECOVERY_QUEUE_DEPTH.name: nothing | {("recovery", "due"): 2, ("stop", "manual"): 4},
        RECOVERY_QUEUE_OLDEST_AGE.name: nothing | {("recovery", "due"): 900, ("stop", "manual"): 8},
    }


def test_an_empty_queue_says_zero_and_no_ledger_says_nothing(measured: Measured) -> None:
    assert measured.points(QUEUE_DEPTH) == []
    measured.measures.watch(CANCELLATION_QUEUE, dict)
    assert measured.points(RECOVERY_QUEUE_DEPTH) == []
    assert {point.attributes["status"]: point.value for point in measured.points(QUEUE_DEPTH)} == dict.fromkeys(
        QUEUE_STATES, 0
    )


def test_a_queue_that_cannot_be_read_says_nothing_and_is_logged(
    measured: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> dict[Place, QueueState]:
        raise DatabaseBusy("somebody writes")

    measured.measures.watch(CANCELLATION_QUEUE, lambda: {("pending",): QueueState(1, 1)})
    measured.measures.watch(CANCELLATION_QUEUE, fail)
    with caplog.at_level(logging.WARNING, "runfacts"):
        assert measured.points(QUEUE_DEPTH) == []
    assert "could not be measured" in caplog.text


USES_A_LEDGER = """
import sys
from runfacts import Actor, Ledger
with Ledger.open(sys.argv[1]) as ledger:
    run = ledger.create(actor=Actor.user("ana"), task="report").run
    ledger.queue(run.run_id, actor=Actor.user("ana"))
    ledger.claim(run.run_id, actor=Actor.worker("w"), executor_type="batch")
    ledger.request_cancellation(run.run_id, actor=Actor.user("ana"))
    ledger.supervise().cycle()
print([name for name in sys.modules if "telemetry" in name])
"""
WITHOUT_THE_EXTRA = """
import sys
sys.modules["opentelemetry"] = None
from runfacts import OpenTelemetryMeasures
from runfacts.domain.measures import NO_MEASURES
from runfacts.infrastructure.telemetry.opentelemetry_measures import measures_if_installed
assert measures_if_installed() is NO_MEASURES
try:
    OpenTelemetryMeasures()
except ModuleNotFoundError as error:
    print(error)
"""


def test_a_ledger_that_measures_nothing_loads_no_telemetry(tmp_path: Path) -> None:
    assert _python(USES_A_LEDGER, tmp_path) == "[]\n"


def test_who_wants_it_without_the_extra_is_told_its_name(tmp_path: Path) -> None:
    said = _python(WITHOUT_THE_EXTRA, tmp_path)
    assert said == "measuring through OpenTelemetry needs its extra: install runfacts[telemetry]\n"


SUPERVISES = """
import sys
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
set_meter_provider(MeterProvider([reader]))
from runfacts.infrastructure.cli.program import run
run(["supervise", "--once", "--db", sys.argv[1]])
metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
print([metric.name for metric in metrics])
"""


def test_the_worker_measures_where_a_provider_is_configured(tmp_path: Path) -> None:
    assert _python(SUPERVISES, tmp_path).splitlines()[-1] == "['runfacts.cycle.duration']"


def _python(program: str, folder: Path) -> str:
    url = f"sqlite:///{folder / 'ledger.db'}"
    return subprocess.run([sys.executable, "-c", program, url], check=True, capture_output=True, text=True).stdout

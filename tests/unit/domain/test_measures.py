"""What can be measured is a closed list with closed labels (R7.7, R3.6)."""

from __future__ import annotations

from dataclasses import fields
from math import prod

import pytest

from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import PageRefusal
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.measures import (
    CLAIMS,
    CYCLE_COUNTS,
    CYCLE_DURATION,
    MEASURES,
    NO_MEASURES,
    QUEUES,
    RECOVERY_QUEUE,
    REFUSALS,
    REQUEST_TO_STOP,
    SETTLES,
    Measure,
    MeasureKind,
)
from runfacts.infrastructure.api.recovery_apply import FENCE_COUNTER
from runfacts.infrastructure.hosting import PART
from runfacts.infrastructure.processes.collect import CollectedReceipts
from runfacts.infrastructure.supervision import Duty

RUN_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def test_a_value_that_is_not_written_down_is_told_as_other() -> None:
    assert CLAIMS.bounded({"answer": "claimed"}) == {"answer": "claimed"}
    assert CLAIMS.bounded({"answer": RUN_ID}) == {"answer": "other"}
    assert CLAIMS.bounded({}) == {"answer": "other"}


def test_a_label_that_is_not_written_down_is_not_told() -> None:
    assert CLAIMS.bounded({"answer": "leased", "run_id": RUN_ID}) == {"answer": "leased"}
    assert REQUEST_TO_STOP.bounded({"executor_type": "batch"}) == {}


def test_every_measure_has_a_name_of_its_own_a_unit_and_words() -> None:
    assert len({measure.name for measure in MEASURES}) == len(MEASURES) == 17
    for measure in MEASURES:
        assert measure.name.startswith("runfacts.")
        assert measure.unit == "ms" or measure.unit.strip("{}").isalpha()
        assert measure.about.endswith(".")


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
def test_the_number_of_series_is_bounded_and_small(measure: Measure) -> None:
    assert prod(len(values) + 1 for values in measure.labels.values()) <= 700
    assert all(len(value) < 32 and value.isidentifier() for values in measure.labels.values() for value in values)


def test_whatever_a_part_of_a_cycle_counts_has_a_name_among_the_labels() -> None:
    duties = {duty.value for duty in Duty}
    assert CYCLE_DURATION.labels["part"] == duties
    assert CYCLE_COUNTS.labels["part"] == duties | {PART}
    receipts = {field.name for field in fields(CollectedReceipts)} - {"found"}
    dispatcher = {"taken_over", "out_of_time", "fenced", "error"} | set(ClaimAnswer) | set(DispatchResult)
    pages = set(PageRefusal)
    verdicts = {"fenced", "resolved", "retry", "manual", "receipt", "lost", "run_lost", "stopped", "moved_on"}
    looked = {"stale", "given_back", "swept", "hanging", "found_receipt", "found_running", "found_not_running"}
    unknown = {"found_provider_unavailable", "found_identity_unverifiable", "found_conflicting_evidence"}
    hosted = {"taken", "not_started", "never_ran", "keeper_lost", "detached", "late"} | set(RunStatus)
    projected = {"projected", "set_aside", "unknown"}
    everywhere = {"seen", "claimed", "requested"}
    assert CYCLE_COUNTS.labels["counter"] == (
        receipts | dispatcher | pages | verdicts | looked | unknown | hosted | projected | everywhere
    )


def test_every_late_write_that_is_refused_has_a_name_among_the_labels() -> None:
    assert REFUSALS.labels["what"] == {"token", "dispatch_term", FENCE_COUNTER}
    assert FENCE_COUNTER == "recovery_term"


def test_a_queues_two_gauges_have_the_same_labels_and_each_gauge_is_of_one_queue() -> None:
    gauges = [measure for measure in MEASURES if measure.kind is MeasureKind.GAUGE]
    assert [gauge for queue in QUEUES for gauge in (queue.depth, queue.oldest_age)] == gauges
    for queue in QUEUES:
        assert queue.depth.labels == queue.oldest_age.labels
        values = [set(values) for values in queue.depth.labels.values()]
        assert [set(column) for column in zip(*queue.places, strict=True)] == values
        assert len(set(queue.places)) == len(queue.places) == prod(len(column) for column in values)
    assert RECOVERY_QUEUE.labels(("stop", "backing_off")) == {"purpose": "stop", "state": "backing_off"}


def test_a_settle_has_no_result_that_only_a_claim_or_a_verb_writes() -> None:
    assert SETTLES.labels["result"] == set(DispatchResult) - {DispatchResult.LIMIT, DispatchResult.ABANDONED}


def test_measuring_nothing_does_nothing() -> None:
    def look() -> dict[str, object]:
        raise AssertionError

    NO_MEASURES.record(CLAIMS, answer="claimed")
    NO_MEASURES.watch(RECOVERY_QUEUE, look)()  # type: ignore[arg-type] # it is never called

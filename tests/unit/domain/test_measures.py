"""What can be measured is a closed list with closed labels (R7.7, R3.6)."""

from __future__ import annotations

from dataclasses import fields
from math import prod

import pytest

from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import PageRefusal
from runfacts.domain.measures import (
    CLAIMS,
    CYCLE_COUNTS,
    CYCLE_DURATION,
    MEASURES,
    NO_MEASURES,
    REQUEST_TO_STOP,
    SETTLES,
    Measure,
)
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
    assert len({measure.name for measure in MEASURES}) == len(MEASURES) == 10
    for measure in MEASURES:
        assert measure.name.startswith("runfacts.")
        assert measure.unit == "ms" or measure.unit.strip("{}").isalpha()
        assert measure.about.endswith(".")


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.name)
def test_the_number_of_series_is_bounded_and_small(measure: Measure) -> None:
    assert prod(len(values) + 1 for values in measure.labels.values()) <= 160
    assert all(len(value) < 24 and value.isidentifier() for values in measure.labels.values() for value in values)


def test_whatever_a_part_of_a_cycle_counts_has_a_name_among_the_labels() -> None:
    assert CYCLE_DURATION.labels["part"] == CYCLE_COUNTS.labels["part"] == {duty.value for duty in Duty}
    receipts = {field.name for field in fields(CollectedReceipts)} - {"found"}
    dispatcher = {"taken_over", "out_of_time", "fenced", "error"} | set(ClaimAnswer) | set(DispatchResult)
    pages = set(PageRefusal)
    assert CYCLE_COUNTS.labels["counter"] == receipts | dispatcher | pages | {"seen", "claimed", "requested"}


def test_a_settle_has_no_result_that_only_a_claim_or_a_verb_writes() -> None:
    assert SETTLES.labels["result"] == set(DispatchResult) - {DispatchResult.LIMIT, DispatchResult.ABANDONED}


def test_measuring_nothing_does_nothing() -> None:
    def look() -> dict[str, object]:
        raise AssertionError

    NO_MEASURES.record(CLAIMS, answer="claimed")
    NO_MEASURES.watch(look)()  # type: ignore[arg-type] # it is never called

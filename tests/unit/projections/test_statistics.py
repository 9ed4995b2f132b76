"""What each fact changes in the statistics (R14.1), by facts made by hand."""

from __future__ import annotations

from runfacts import Actor, RetryPolicy
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptFailed,
    AttemptLateCallbackIgnored,
    AttemptLost,
    AttemptRunning,
    AttemptStarting,
    AttemptSucceeded,
    Payload,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunLost,
    RunQueued,
    RunRetryWait,
    RunRunning,
    RunSucceeded,
)
from runfacts.projections.folding import Fold
from runfacts.projections.statistics import COLUMNS, RunTimes, StatisticsProjection

RUN = "00000000-0000-7000-8000-000000000001"
ONE = "00000000-0000-7000-8000-00000000000a"
TWO = "00000000-0000-7000-8000-00000000000b"
DAY_MS = 86_400_000
ANA = Actor.user("ana")
LOST = Evidence.NOT_RUNNING


class Told:
    """A Run's facts told one after the other, and folded."""

    def __init__(self) -> None:
        """Nothing is told yet."""
        self.history = History(RUN, "shop")
        self.fold = Fold(StatisticsProjection())

    def at(self, at_ms: int, *payloads: Payload, attempt_id: str | None = None) -> None:
        """Tell facts of one moment."""
        drafts = [Draft(payload, attempt_id) for payload in payloads]
        for fact in self.history.record(drafts, RecordedBy(ANA, at_ms)):
            assert self.fold.take(fact)

    def totals(self, day: int = 0) -> dict[str, int]:
        """Give what was added up on a day."""
        return self.fold.totals.get((day * DAY_MS, "shop", "build"), {})


def claimed(told: Told, at_ms: int, attempt_id: str, number: int) -> None:
    """Tell that an Attempt was claimed, and its process confirmed 20 ms later."""
    told.at(at_ms, RunDispatching(number=number), attempt_id=attempt_id)
    told.at(at_ms, AttemptClaimed(number=number, executor_type="batch"), attempt_id=attempt_id)
    told.at(at_ms + 10, AttemptStarting(), attempt_id=attempt_id)
    told.at(at_ms + 20, AttemptRunning(), RunRunning(), attempt_id=attempt_id)


def test_a_run_that_is_lost_and_runs_again_is_recovered_when_its_process_is_confirmed() -> None:
    told = Told()
    told.at(1_000, RunCreated(task="build", policy=RetryPolicy()))
    told.at(1_100, RunQueued())
    claimed(told, 2_000, ONE, 1)
    told.at(50_000, AttemptLost(evidence=LOST), RunLost(evidence=LOST), attempt_id=ONE)
    told.at(51_000, RunRetryWait(due_at_ms=52_000))
    told.at(52_000, RunQueued())
    claimed(told, 53_000, TWO, 2)
    told.at(DAY_MS + 1_000, AttemptSucceeded(exit_code=0), RunSucceeded(exit_code=0), attempt_id=TWO)
    told.at(DAY_MS + 2_000, AttemptLateCallbackIgnored(sequence=9, reported="running"), attempt_id=ONE)
    assert told.totals(0) == {
        "created": 1,
        "attempts": 2,
        "retries": 1,
        "lost": 1,
        "recovery_count": 1,
        "recovery_ms": 3_020,
        "recovery_max_ms": 3_020,
    }
    # A lost Attempt's length is not known.
    assert told.totals(1) == {
        "succeeded": 1,
        "duration_count": 1,
        "duration_ms": DAY_MS,
        "duration_max_ms": DAY_MS,
        "execution_count": 1,
        "execution_ms": DAY_MS + 1_000 - 53_010,
        "execution_max_ms": DAY_MS + 1_000 - 53_010,
    }
    assert told.fold.runs[RUN].state == RunTimes("build", 1_000)
    assert told.fold.runs[RUN].sequence == told.history.version
    assert set(told.totals(0)) | set(told.totals(1)) <= set(COLUMNS)


def test_the_longest_is_kept_and_the_others_are_added_up() -> None:
    told = Told()
    told.at(0, RunCreated(task="build", policy=RetryPolicy()))
    for number, (attempt_id, at_ms, took_ms) in enumerate(((ONE, 1_000, 300), (TWO, 2_000, 100)), start=1):
        claimed(told, at_ms, attempt_id, number)
        told.at(at_ms + 10 + took_ms, AttemptFailed(exit_code=1), attempt_id=attempt_id)
    told.at(3_000, RunFailed(exit_code=1))
    assert {name: told.totals()[f"execution_{name}"] for name in ("count", "ms", "max_ms")} == {
        "count": 2,
        "ms": 400,
        "max_ms": 300,
    }


def test_a_run_whose_creation_is_not_known_and_one_created_twice_are_set_aside() -> None:
    told = Told()
    first, second = told.history.record(
        [Draft(RunCreated(task="build", policy=RetryPolicy())), Draft(RunQueued())], RecordedBy(ANA, 0)
    )
    assert not told.fold.take(second)
    assert [(item.sequence, item.reason) for item in told.fold.aside] == [(2, "its run's creation is not known")]
    assert not told.fold.take(first)
    assert told.fold.aside[1].reason == "behind an earlier one"
    assert told.fold.totals == {}


def test_a_fact_that_does_not_follow_the_one_before_is_set_aside() -> None:
    told = Told()
    first, second, third = told.history.record(
        [Draft(RunCreated(task="build", policy=RetryPolicy())), Draft(RunQueued()), Draft(RunQueued())],
        RecordedBy(ANA, 0),
    )
    assert told.fold.take(first)
    assert not told.fold.take(third)
    assert told.fold.aside[0].reason == "follows sequence 1"
    assert not told.fold.take(second)

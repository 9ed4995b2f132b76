"""Recorded histories in tests: as the given, as golden files, and before today's code (R14.3)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runfacts import IntentKind, Outcome, UnknownFactsInRun
from runfacts.domain import decisions
from runfacts.domain.decisions import Refusal
from runfacts.domain.history import History
from runfacts.domain.payloads import AttemptCancelled, RunCancelled, RunCancelRequested
from runfacts.testing.ledgers import sqlite_ledgers
from runfacts.testing.recorded import (
    UPDATE,
    assert_golden,
    golden_lines,
    import_recorded,
    recorded,
    recorded_run,
    today_decides,
)
from stages import finished, running

GOLDEN = Path(__file__).parents[2] / "golden"
FAILED = GOLDEN / "0.1.0" / "failed_twice.jsonl"


def test_a_recorded_history_is_the_given_of_a_decision() -> None:
    run = recorded_run(GOLDEN / "0.1.0" / "cancelled_while_queued.jsonl")
    run.given(2).when(lambda history: decisions.request_cancellation(history, IntentKind.USER, None)).then(
        RunCancelRequested(kind=IntentKind.USER), RunCancelled(reason=IntentKind.USER)
    )
    run.given().when(lambda history: decisions.request_cancellation(history, IntentKind.USER, None)).then(
        refusal=Refusal.ENDED
    )


def test_today_decides_after_each_fact_of_a_history() -> None:
    run = recorded_run(GOLDEN / "0.1.0" / "cancelled_before_a_start.jsonl")
    attempt_id = str(run.facts[3].attempt_id)
    words = [item.words for item in today_decides(run, lambda history, _: decisions.start(history, attempt_id, None))]
    assert words == [
        "1: raises AttemptNotFound",
        "2: raises AttemptNotFound",
        "3: raises AttemptNotFound",
        "4: attempt.starting",
        "5: attempt.cancelled, run.cancelled, refused as cancellation_requested",
        "6: nothing, refused as ended",
        "7: nothing, refused as ended",
    ]


def test_today_decides_at_chosen_moments() -> None:
    run = recorded_run(GOLDEN / "0.1.0" / "cancelled_before_a_start.jsonl")
    attempt_id = str(run.facts[3].attempt_id)
    (found,) = today_decides(run, lambda history, _: decisions.start(history, attempt_id, None), sequences=[5])
    assert found.recorded == (AttemptCancelled(reason=IntentKind.USER), RunCancelled(reason=IntentKind.USER))


def test_what_a_later_release_recorded_is_refused_by_name() -> None:
    later = list(recorded(GOLDEN / "by-hand" / "older_and_later.jsonl").values())[1]
    found = list(today_decides(later, lambda history, _: _guarded(history), sequences=[3, 8]))
    assert [type(item.error) for item in found] == [type(None), UnknownFactsInRun]


def _guarded(history: History) -> decisions.Decision:
    # By hand there is no attempt.claimed that this release reads, so only what comes before it is understood.
    decisions.require_runtime(history)
    return decisions.Decision()


@pytest.mark.parametrize("sequence", [0, 18, -1])
def test_a_moment_that_the_history_does_not_have(sequence: int) -> None:
    with pytest.raises(ValueError, match="facts 1 to 17"):
        recorded_run(FAILED).state(sequence)


def test_a_file_that_is_no_archive_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(FAILED.read_text().splitlines()[0] + "\n{}\n")
    with pytest.raises(ValueError, match=r"x\.jsonl, line 2: has no run_id"):
        recorded(file)
    with pytest.raises(ValueError, match="has 2 runs, not one"):
        recorded_run(GOLDEN / "by-hand" / "older_and_later.jsonl")


def test_a_recorded_history_in_a_ledger() -> None:
    with sqlite_ledgers() as ledgers:
        ledger = ledgers()
        (run_id,) = import_recorded(ledger, FAILED)
        assert ledger.run(run_id).status == "failed"
        assert ledger.verify().clean


def test_a_golden_file_is_the_same_for_every_run_of_a_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = tmp_path / "golden.jsonl"
    with sqlite_ledgers() as ledgers:
        ledger = ledgers()
        one = ledger.history(finished(ledger).run_id)
        two = ledger.history(finished(ledger).run_id)
    with pytest.raises(AssertionError, match="there is no golden file"):
        assert_golden(one, golden)
    monkeypatch.setenv(UPDATE, "1")
    assert_golden(one, golden)
    monkeypatch.delenv(UPDATE)
    assert_golden(two, golden)
    assert [json.loads(line) for line in golden.read_text().splitlines()][3] == {
        "run": "run-1",
        "sequence": 4,
        "type": "attempt.claimed",
        "actor": "worker",
        "attempt": "attempt-1",
        "payload": {"executor_type": "batch", "gated": False, "number": 1},
    }


def test_a_golden_file_that_differs_shows_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    golden = tmp_path / "golden.jsonl"
    with sqlite_ledgers() as ledgers:
        ledger = ledgers()
        well = ledger.history(finished(ledger).run_id)
        badly = ledger.history(finished(ledger, Outcome.failed(exit_code=7)).run_id)
        alive = ledger.history(running(ledger).run_id)
    monkeypatch.setenv(UPDATE, "1")
    assert_golden(well, golden)
    monkeypatch.delenv(UPDATE)
    with pytest.raises(AssertionError) as caught:
        assert_golden(badly, golden)
    changed = [line for line in str(caught.value).splitlines() if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    assert [(line[0], json.loads(line[1:])["type"]) for line in changed] == [
        ("-", "attempt.succeeded"),
        ("-", "run.succeeded"),
        ("+", "attempt.failed"),
        ("+", "run.failed"),
    ]
    with pytest.raises(AssertionError, match=r"attempt\.succeeded"):
        assert_golden(alive, golden)


def test_golden_lines_say_times_when_asked() -> None:
    lines = [json.loads(line) for line in golden_lines(recorded_run(FAILED).facts, times=True)]
    assert [line["after_ms"] for line in lines[:4]] == [0, 1_000, 1_000, 1_000]
    assert "after_ms" not in json.loads(golden_lines(recorded_run(FAILED).facts)[0])
    assert [line["attempt"] for line in lines if line["type"] == "attempt.claimed"] == ["attempt-1", "attempt-2"]

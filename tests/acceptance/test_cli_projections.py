"""``stats`` and ``rebuild``, projections in ``doctor``, ``verify`` and ``supervise`` (R1.4, R14.1, R14.2)."""

from __future__ import annotations

import pytest

from later_release import append
from runfacts import Ledger, Outcome
from stages import ANA, created, finished, queued
from told import Told


@pytest.fixture
def runs(database_url: str) -> list[str]:
    """Three Runs: one has succeeded, one has failed, one was cancelled before it ran."""
    with Ledger.open(database_url) as ledger:
        good = finished(ledger, project="books", task="import")
        bad = finished(ledger, Outcome.failed(exit_code=1), project="films", task="export")
        stopped = queued(ledger, project="films", task="import")
        ledger.request_cancellation(stopped, actor=ANA)
        return [good.run_id, bad.run_id, stopped]


def test_stats_give_a_line_for_each_group_and_how_far_they_lag(ledger_told: Told, runs: list[str]) -> None:
    assert len(runs) == 3
    found = ledger_told("stats", "--by", "task", "--json").json
    assert (found["next"], found["lag"]) == (None, {"facts": 0, "ms": 0})
    assert [
        (item["group"], item["created"], item["succeeded"], item["failed"], item["cancelled"])
        for item in found["items"]
    ] == [("export", 1, 0, 1, 0), ("import", 2, 1, 0, 1)]
    assert set(found["items"][0]) == {
        "group",
        "created",
        "succeeded",
        "failed",
        "cancelled",
        "timed_out",
        "attempts",
        "retries",
        "lost",
        "cancel_requests",
        "duration",
        "execution",
        "cancellation",
        "recovery",
    }
    assert found["items"][0]["cancellation"] == {"count": 0, "mean_ms": None, "longest_ms": 0}
    table = ledger_told("stats", "--by", "project").out.splitlines()
    assert [line.split()[0] for line in table] == ["GROUP", "books", "films"]
    (day,) = ledger_told("stats", "--json").json["items"]
    assert (day["created"], len(day["group"])) == (3, 10)
    assert ledger_told("stats", "--since", "9998-01-01", "--json").json["items"] == []


def test_stats_that_lag_say_so(ledger_told: Told, runs: list[str]) -> None:
    assert runs
    found = ledger_told("stats", "--set", "catch_up_ms=0")
    assert "This lags: 22 facts are not in it yet" in found.err


def test_stats_of_stops_say_what_became_of_each_request(ledger_told: Told, runs: list[str]) -> None:
    found = ledger_told("stats", "--stops", "--json").json
    (item,) = found["items"]
    assert (item["run_id"], item["kind"], item["requested_by_id"]) == (runs[2], "user", "ana")
    assert (item["status"], item["evidence"], item["delivery"]) == ("cancelled", "no_attempt", None)
    assert runs[2] in ledger_told("stats", "--stops").out


@pytest.mark.parametrize(
    "words",
    [
        ("stats", "--by", "month"),
        ("stats", "--stops", "--by", "day"),
        ("stats", "--limit", "3"),
        ("rebuild",),
        ("rebuild", "statistics", "--all"),
        ("rebuild", "audit"),
    ],
)
def test_what_does_not_go_together_is_a_usage_error(told: Told, words: tuple[str, ...]) -> None:
    assert told(*words).code == 2


def test_rebuild_says_what_it_did(ledger_told: Told, runs: list[str]) -> None:
    assert runs
    first = ledger_told("rebuild", "statistics", "--json").json
    assert (first["projection"], first["facts"], first["set_aside"], first["unknown"]) == ("statistics", 22, 0, 0)
    assert first["seconds"] >= 0
    lines = ledger_told("rebuild", "--all").out.splitlines()
    assert [line.rpartition(" in ")[0] for line in lines] == [
        "Rebuilt statistics from 22 facts",
        "Rebuilt stop_proof from 22 facts",
    ]


def test_what_is_set_aside_is_shown_and_tried_again(ledger_told: Told, database_url: str) -> None:
    with Ledger.open(database_url) as ledger:
        append(ledger, created(ledger), "run.queued", '{"surprise":1}')
        ledger.project()
    (check,) = (
        item for item in ledger_told("doctor", "--json").json["checks"] if item["name"] == "projection statistics"
    )
    assert check["ok"] is False
    assert check["detail"] == "has every fact; 1 set aside: see `runfacts rebuild statistics --set-aside`"
    again = ledger_told("rebuild", "statistics", "--set-aside", "--json")
    assert (again.code, again.json) == (1, {"projection": "statistics", "applied": 0, "left": 1})
    other = ledger_told("rebuild", "stop_proof", "--set-aside")
    assert (other.code, other.out) == (1, "Applied 0 facts to stop_proof; still set aside: 1.\n")


def test_supervise_can_be_told_to_project_only(ledger_told: Told, runs: list[str]) -> None:
    assert runs
    counted = ledger_told("supervise", "--once", "--only", "project", "--json").json
    assert counted == {"projections": {"seen": 44, "claimed": 0, "projected": 44}}

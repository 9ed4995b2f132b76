"""The bench runs from end to end, and its hand-written opponent writes what the ledger writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import (
    backlogs,
    crowds,
    delivery_sides,
    delivery_sql,
    long_ledgers,
    recovery_sides,
    recovery_sql,
    sql_sides,
    trail_sides,
)
from benchmarks.__main__ import main
from benchmarks.figures import Figure, Report
from benchmarks.ledger_sides import STEPS_PER_RUN, one_fact
from benchmarks.texts import differences, page_tables, table
from runfacts import Ledger, RunStatus
from runfacts.domain.facts import Fact
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.testing.ledgers import contents_of

COLUMNS = cancellation_dispatches.columns.keys()
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_the_quickest_run_measures_every_case(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "run", "--quick", "--json"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
    report = Report.from_json(json.loads(ended.stdout))
    assert {figure.case for figure in report.figures} == {
        "one-fact command",
        "one-fact command, history not kept",
        "whole life",
        "replay",
        *(
            f"page of the audit trail, {search}"
            for search in (
                *("run", "actor", "type", "project", "time"),
                *("actor and time", "type and time", "project and time"),
            )
        ),
        *("verify", "export", "rebuild"),
        "claim and settle",
        "page of due dispatches",
        "claim in a crowd",
        "page of recovery looked for",
        "page of recovery claimed and given back",
        "lose and settle",
        "backlog of expired Attempts",
        "request to TERM",
        "a cycle of an idle supervisor",
        "a startup gate with nothing to recover",
        "disk of 1,000 runs",
        "written for one fact",
        "import",
        "open a new SQLite ledger",
        "memory of an idle SQLite ledger",
        "peak memory",
    }
    assert {figure.side for figure in report.figures if figure.unit == "ratio"} == {
        "ledger : sql",
        "ledger : recorder",
        "ledger, facts read : sql",
        "replayed : decoded",
        "many : few",
        "ledger : by hand",
        "peak memory, many : few",
        *("statistics : decoded", "stop_proof : decoded"),
    }
    idle_cases = {"a cycle of an idle supervisor", "a startup gate with nothing to recover"}
    idle = [figure for figure in report.figures if figure.case in idle_cases]
    assert all(figure.median > 0 for figure in report.figures if figure not in idle)
    assert [(figure.setting, figure.unit, figure.median) for figure in idle] == [
        ("sqlite, cancellation alone", "bytes written", 0),
        ("sqlite, cancellation alone", "rows changed", 0),
        ("sqlite, cancellation alone", "statements", 1),
        ("sqlite, all duties", "bytes written", 0),
        ("sqlite, all duties", "rows changed", 0),
        ("sqlite, all duties", "statements", 22),
        ("sqlite", "bytes written", 0),
        ("sqlite", "rows changed", 0),
        ("sqlite", "statements", 13),
    ]
    assert sorted(figure.setting for figure in report.figures if figure.case == "request to TERM") == [
        "postgresql, one process",
        "postgresql, two processes",
        "sqlite, one process",
        "sqlite, two processes, a look each 250 ms",
    ]
    assert any(note.startswith("edge: ") for note in report.notes)
    (tmp_path / "new.json").write_text(ended.stdout)
    assert main(["baseline", str(tmp_path / "new.json")]) == 1


def test_an_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", "one-fakt"])

    assert "no such case: one-fakt" in capsys.readouterr().err


def written_by_hand(database_url: str) -> tuple[Fact, ...]:
    """The facts of one Run after the hand-written side has taken its steps on it."""
    side = sql_sides.one_fact(database_url)
    taken = sum(side.prepare(STEPS_PER_RUN))
    side.close()
    assert taken == STEPS_PER_RUN
    return only_run(database_url)


def only_run(database_url: str) -> tuple[Fact, ...]:
    """The facts of the database's only Run, whose rows are what the facts amount to."""
    with Ledger.open(database_url) as ledger:
        report = ledger.verify()
        assert (report.runs, report.facts, report.differences) == (1, 7 + STEPS_PER_RUN, ())
        return ledger.history(ledger.runs().items[0].run_id)


def test_the_hand_written_rows_pass_verification(database_url: str) -> None:
    facts = written_by_hand(database_url)

    assert [fact.type for fact in facts[-2:]] == ["run.waiting_approval", "run.running"]


def test_the_ledger_writes_facts_of_the_same_kind_and_size(database_url: str) -> None:
    side = one_fact(database_url)
    assert sum(side.prepare(STEPS_PER_RUN)) == STEPS_PER_RUN
    side.close()

    last = only_run(database_url)[-1]

    assert (last.type, last.payload_text, last.actor.id, last.dedupe_key) == ("run.running", "{}", "bench", None)


def test_deliveries_by_hand_are_what_the_ledger_records(database_url: str) -> None:
    histories = []
    for opener in (delivery_sql.pairs, delivery_sides.pairs):
        side = opener(database_url)
        assert sum(side.prepare(1)) == 1
        with Ledger.open(database_url) as ledger:
            histories.append(ledger.history(ledger.runs(limit=1).items[0].run_id))
        side.close()

    by_hand, recorded = (history[-1] for history in histories)
    assert (by_hand.type, by_hand.actor) == (recorded.type, recorded.actor)
    assert by_hand.dedupe_key == f"cancel-dispatch:{by_hand.attempt_id}:1"
    assert by_hand.payload_text == recorded.payload_text.replace(str(recorded.attempt_id), str(by_hand.attempt_id))
    with Ledger.open(database_url) as ledger:
        verified = ledger.verify()
        assert (verified.runs, verified.facts, verified.differences) == (2, 18, ())
        rows = contents_of(ledger)[cancellation_dispatches.name]
    assert [row[COLUMNS.index("status")] for row in rows] == ["dispatched", "dispatched"]
    assert [row[COLUMNS.index("version")] for row in rows] == [2, 2]
    assert [sum(value is None for value in row) for row in rows] == [7, 7]


def test_recovery_by_hand_is_what_the_ledger_records(database_url: str) -> None:
    for opener in (recovery_sql.losses, recovery_sides.losses):
        side = opener(database_url)
        assert sum(side.prepare(2)) == 2
        side.close()

    with Ledger.open(database_url) as ledger:
        verified = ledger.verify()
        assert (verified.runs, verified.facts, verified.differences) == (4, 36, ())
        histories = [ledger.history(run.run_id)[7:] for run in ledger.runs().items]
        rows = contents_of(ledger)[recovery_claims.name]
        open_claims = ledger.scan_recoveries(frozenset({delivery_sides.SERVED}), limit=32)
    told = {tuple((fact.type, fact.payload_text, fact.actor) for fact in history) for history in histories}
    assert len(told) == 1
    names = recovery_claims.columns.keys()
    states = [
        tuple(row[names.index(name)] for name in ("purpose", "kind", "state", "version", "executor_type", "scope"))
        for row in rows
    ]
    assert sorted(states) == [
        *[("recovery", "attempt", "resolved", 2, "bench", "")] * 4,
        *[("retry", "run", "available", 0, "bench", "")] * 4,
    ]
    assert {sum(value is None for value in row) for row in rows} == {8, 9}
    assert open_claims.unsafe == 0


def test_a_backlog_is_due_and_is_drained(database_url: str) -> None:
    backlogs.fill(database_url, 10)

    side = recovery_sides.drain(database_url)
    assert sum(side.prepare(1)) + sum(side.prepare(1)) == 10
    side.close()
    with Ledger.open(database_url) as ledger:
        assert {run.status for run in ledger.runs().items} == {RunStatus.FAILED}
        # The facts of copies are sound but for their hashes.
        lost = [fact for run in ledger.runs().items for fact in ledger.history(run.run_id) if fact.type == "run.lost"]
    assert len(lost) == 10


def test_a_crowd_is_in_every_table_and_none_of_it_is_due(database_url: str) -> None:
    crowds.fill(database_url, 10)

    with Ledger.open(database_url) as ledger:
        counts = {name: len(rows) for name, rows in contents_of(ledger).items()}
        page, _ = ledger.due_dispatches((delivery_sides.SERVED,), limit=64)
        assert {run.status for run in ledger.runs().items} == {RunStatus.CANCELLED}

    crowded = ("runs", "attempts", "executions", "cancellation_dispatches", "recovery_claims")
    assert {counts[name] for name in crowded} == {11}
    # Those of the Run that was copied, and one of each copy.
    assert counts["facts"] == 11 + 10
    assert page.items == ()


def filled(url: str, count: int) -> int:
    """Put facts into a new ledger; how many Runs these are."""
    Ledger.open(url).close()
    return long_ledgers.fill(url, count)


def test_a_long_ledger_is_sound_and_of_the_size_that_was_asked_for(database_url: str) -> None:
    assert filled(database_url, 401) == 44

    with Ledger.open(database_url) as ledger:
        verified = ledger.verify()
        assert (verified.runs, verified.facts, verified.unknown_types, verified.differences) == (44, 440, {}, ())
        statuses = [run.status for run in ledger.runs().items]
        assert [statuses.count(status) for status in (RunStatus.SUCCEEDED, RunStatus.FAILED)] == [22, 11]
        assert statuses.count(RunStatus.CANCELLED) == 11
        (first, second) = ledger.history(long_ledgers.run_id_of(5))[:2]
    assert (first.project, first.actor.id, first.aggregate_id) == ("project-01", "w-01", long_ledgers.run_id_of(5))
    assert second.recorded_at_ms - first.recorded_at_ms == 1_000


def test_pages_by_hand_are_those_of_the_ledger(database_url: str) -> None:
    runs = filled(database_url, 4_000)
    for name in trail_sides.SEARCHES:
        ours = trail_sides.ledger_pages(name, runs)(database_url)
        theirs = trail_sides.pages_by_hand(name, runs)(database_url)
        assert isinstance(ours, trail_sides.LedgerPages)
        assert isinstance(theirs, trail_sides.PagesByHand)
        for number in range(3):
            rows = theirs.rows(number)
            page = ours.page(number)
            assert [fact.position for fact in page.items] == [row[0] for row in rows[:100]], name
            assert (page.next is not None) is (len(rows) > 100), name
        ours.close()
        theirs.close()


@pytest.fixture
def report() -> Report:
    """Two figures and their ratio."""
    setting = "sqlite, disk, 1 writer"
    return Report(
        {"processors": 2},
        quick=False,
        figures=[
            Figure.of("one-fact command", setting, "ledger", "commits/s", [1_000, 1_200, 1_100]),
            Figure.of("one-fact command", setting, "ledger : sql", "ratio", [0.5, 0.7, 0.6]),
        ],
        fsync_us=[{"case": "one-fact command", "setting": setting, "before_us": 250, "after_us": 2_400}],
        notes=["edge: nothing"],
    )


def test_the_table_has_medians_and_spreads(report: Report) -> None:
    assert list(table(report)) == [
        "processors 2",
        "",
        "one-fact command",
        "  sqlite, disk, 1 writer         ledger                         1,100 commits/s  1,000 to 1,200",
        "  sqlite, disk, 1 writer         ledger : sql                    0.60 ratio      0.50 to 0.70",
        "",
        "flush of a small append, before and after each case",
        "  one-fact command, sqlite, disk, 1 writer: 250 and 2400 µs",
        "",
        "edge: nothing",
    ]


def test_a_comparison_names_what_left_the_spread(report: Report) -> None:
    setting = "sqlite, disk, 1 writer"
    now = Report({}, quick=False, figures=[Figure.of("one-fact command", setting, "ledger", "commits/s", [550])])

    assert list(differences(report, now)) == [
        "gone   one-fact command, sqlite, disk, 1 writer, ledger : sql, ratio: 0.60",
        "  -50%  one-fact command, sqlite, disk, 1 writer, ledger, commits/s: 550.0, was 1,100 (1,000 to 1,200)",
    ]
    assert list(differences(report, report)) == []


def test_a_comparison_names_what_was_nothing_and_is_something() -> None:
    def idle(count: float) -> Report:
        return Report({}, quick=False, figures=[Figure.of("idle", "sqlite", "ledger", "bytes", [count])])

    assert list(differences(idle(0), idle(4_096))) == [
        "not 0   idle, sqlite, ledger, bytes: 4,096, was 0.00 (0.00 to 0.00)"
    ]
    assert list(differences(idle(0), idle(0))) == []


def test_the_page_says_which_goals_are_reached(report: Report) -> None:
    lines = list(page_tables(report))

    assert "| one-fact command, sqlite, disk, 1 writer, ledger : sql | ≥ 0.5 | 0.60 | 0.50 to 0.70 | yes |" in lines
    assert "| one-fact command, sqlite, disk, 4 writers, ledger : sql | ≥ 0.5 | to be filled |  |  |" in lines
    assert "Between the cases the flush of a small append took 250 to 2,400 µs." in lines


def test_the_page_compares_how_rates_change_with_more_writers() -> None:
    rates = {("4", "ledger"): 1_000.0, ("16", "ledger"): 800.0, ("4", "sql"): 2_000.0, ("16", "sql"): 1_800.0}
    figures = [
        Figure.of("one-fact command", f"sqlite, disk, {writers} writers", side, "commits/s", [rate])
        for (writers, side), rate in rates.items()
    ]

    lines = list(page_tables(Report({}, quick=False, figures=figures)))

    row = "| one-fact command, sqlite, disk, from 4 to 16 writers, ledger | ≥ 0.90, as sql | 0.80 |  | **no** |"
    assert row in lines


def test_the_page_has_goals_that_are_lengths_and_counts() -> None:
    figures = [
        Figure.of("request to TERM", "postgresql, two processes", "ledger", "ms", [4.0, 11.0, 12.0]),
        Figure.of("a cycle of an idle supervisor", "sqlite, cancellation alone", "ledger", "statements", [1]),
    ]

    lines = list(page_tables(Report({}, quick=False, figures=figures)))

    assert "| request to TERM, postgresql, two processes, ledger | ≤ 10 ms | 11.0 | 4.00 to 12.0 | **no** |" in lines
    idle = "a cycle of an idle supervisor, sqlite, cancellation alone, ledger"
    assert f"| {idle} | ≤ 1 statements | 1.00 |  | yes |" in lines
    assert f"| {idle} | ≤ 0 rows changed | to be filled |  |  |" in lines


def test_the_page_compares_one_worker_with_eight() -> None:
    figures = [
        Figure.of("claim and settle", f"postgresql, disk, {writers}", "ledger", "pairs/s", [rate])
        for writers, rate in (("1 writer", 1_000.0), ("8 writers", 950.0))
    ]

    lines = list(page_tables(Report({}, quick=False, figures=figures)))

    assert "| claim and settle, postgresql, disk, from 1 to 8 workers, ledger | ≥ 0.9 | 0.95 |  | yes |" in lines


def test_the_page_is_what_the_baseline_gives() -> None:
    assert main(["page", "--check"]) == 0

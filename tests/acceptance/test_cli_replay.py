"""The commands that look back and carry over: replay, timeline, export, import (R3.7, R14.2)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from runfacts import Ledger, Outcome
from runfacts.infrastructure.cli.timeline_command import elapsed
from stages import finished, queued
from told import Told, apart, environment


@pytest.fixture
def run_id(database_url: str) -> str:
    """A run that has succeeded."""
    with Ledger.open(database_url) as ledger:
        return finished(ledger, project="books").run_id


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """Another ledger, which is not there yet."""
    return f"sqlite:///{tmp_path / 'elsewhere.db'}"


def test_replay_gives_the_run_as_it_was(ledger_told: Told, run_id: str) -> None:
    said = ledger_told("replay", run_id, "--at", "5", "--json")
    then = said.json
    assert (said.code, then["status"], then["version"], then["finished_at_ms"]) == (0, "dispatching", 5, None)
    (attempt,) = then["attempts"]
    assert (attempt["status"], attempt["exit_code"], attempt["running_at_ms"]) == ("starting", None, None)
    assert not {name for name in attempt if "lease" in name}
    assert (then["cancellation"], then["recovery"], then["unknown_types"]) == (None, None, [])


def test_replay_takes_a_moment(ledger_told: Told, run_id: str) -> None:
    now = ledger_told("show", run_id, "--json").json
    at_end = ledger_told("replay", run_id, "--at", str(now["finished_at_ms"]), "--json").json
    shown = {name: value for name, value in now.items() if name not in {"attempts", "cancellation", "recovery"}}
    assert {name: at_end[name] for name in shown} == shown
    assert ledger_told("replay", run_id, "--at", "2099-01-01T00:00:00Z", "--json").json == at_end
    before = ledger_told("replay", run_id, "--at", "1999-01-01", "--json")
    assert (before.code, before.json["error"]["code"]) == (2, "usage")


def test_replay_for_people(ledger_told: Told, run_id: str) -> None:
    lines = ledger_told("replay", run_id, "--at", "4").out.splitlines()
    assert lines[0].split() == ["run", run_id]
    assert "status    dispatching" in lines
    assert lines[-1].split()[1:5] == ["1", "claimed", "-", "batch"]


@pytest.mark.parametrize("at", ["0", "10", "later", "-1", "2026-13-01"])
def test_replay_refuses_what_is_no_moment_of_the_run(ledger_told: Told, run_id: str, at: str) -> None:
    said = ledger_told("replay", run_id, f"--at={at}", "--json")
    assert (said.code, said.json["error"]["code"]) == (2, "usage")


def test_a_timeline_is_plain_when_piped(ledger_told: Told, run_id: str) -> None:
    said = ledger_told("timeline", run_id)
    first, *facts = said.out.splitlines()
    assert first == f"run {run_id}  report  succeeded"
    assert [line.split()[2:5] for line in facts] == [
        ["1", "-", "run.created"],
        ["2", "-", "run.queued"],
        ["3", "#1", "run.dispatching"],
        ["4", "#1", "attempt.claimed"],
        ["5", "#1", "attempt.starting"],
        ["6", "#1", "attempt.running"],
        ["7", "#1", "run.running"],
        ["8", "#1", "attempt.succeeded"],
        ["9", "#1", "run.succeeded"],
    ]
    assert facts[0].split()[1:] == ["+0.000s", "1", "-", "run.created", "user:ana", "task=report"]
    assert facts[-1].endswith("exit_code=0")
    assert "\x1b" not in said.out


def test_a_timeline_has_no_json(ledger_told: Told, run_id: str) -> None:
    said = ledger_told("timeline", run_id, "--json")
    assert (said.code, said.json["error"]["code"]) == (2, "usage")


def test_a_timeline_is_drawn_on_a_terminal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(url) as ledger:
        run_id = finished(ledger, Outcome.failed(error_summary="evil\x1b[2J")).run_id
    leader, follower = pty.openpty()
    ended = subprocess.run(
        [sys.executable, "-m", "runfacts", "timeline", run_id],
        env=environment(url, TERM="xterm-256color", COLUMNS="120"),
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(follower)
    drawn = os.read(leader, 65_536).decode()
    os.close(leader)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert "●" in drawn
    assert "○" in drawn
    assert "\x1b[" in drawn
    assert "\x1b[2J" not in drawn


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0, "+0.000s"), (59_999, "+59.999s"), (60_000, "+1m 00s"), (3_600_000, "+1h 00m"), (90_000_000, "+1d 01h")],
)
def test_times_of_a_timeline(ms: int, words: str) -> None:
    assert elapsed(ms) == words


def test_what_was_exported_is_imported_elsewhere(
    ledger_told: Told, run_id: str, elsewhere: str, tmp_path: Path
) -> None:
    exported = ledger_told("export", run_id)
    assert [line["sequence"] for line in exported.lines] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    file = tmp_path / "archive.jsonl"
    file.write_text(exported.out)
    first = ledger_told("import", str(file), "--db", elsewhere, "--json")
    assert (first.code, first.json) == (0, {"runs": 1, "facts": 9, "already_there": 0, "refused": 0, "refusals": []})
    again = ledger_told("import", str(file), "--db", elsewhere)
    assert (again.code, again.out) == (0, "Imported 0 runs and 0 facts, 1 run already there.\n")
    hashes = [line["hash"] for line in exported.lines]
    assert [line["hash"] for line in ledger_told("export", "--db", elsewhere).lines] == hashes
    assert ledger_told("verify", "--db", elsewhere).code == 0


def test_an_export_of_a_run_that_is_not_there_writes_nothing(ledger_told: Told, run_id: str) -> None:
    said = ledger_told("export", run_id, "01890000-0000-7000-8000-00000000dead")
    assert (said.code, said.out) == (3, "")


def test_a_run_that_has_not_ended_is_imported_as_an_archive_only(
    ledger_told: Told, database_url: str, elsewhere: str, tmp_path: Path
) -> None:
    with Ledger.open(database_url) as ledger:
        run_id = queued(ledger)
    file = tmp_path / "archive.jsonl"
    file.write_text(ledger_told("export").out)
    refused = ledger_told("import", str(file), "--db", elsewhere, "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "import_refused")
    assert refused.json["refusals"] == [
        {"run_id": run_id, "line": 2, "reason": "the run has not ended, it is queued"},
    ]
    assert ledger_told("show", run_id, "--db", elsewhere).code == 3
    taken = ledger_told("import", str(file), "--db", elsewhere, "--as-archive", "--as", "bo", "--json")
    assert (taken.code, taken.json["runs"], taken.json["facts"]) == (0, 1, 3)
    last = ledger_told("audit", run_id, "--db", elsewhere, "--json").lines[-1]
    assert (last["type"], last["actor_id"], last["payload"]) == ("run.imported", "bo", {"execution_owner": "legacy"})
    cancelled = ledger_told("cancel", run_id, "--db", elsewhere, "--json")
    assert (cancelled.code, cancelled.json["error"]["code"]) == (1, "legacy_run")


def test_an_import_names_what_it_refused(ledger_told: Told, run_id: str, elsewhere: str, tmp_path: Path) -> None:
    lines = ledger_told("export", run_id).lines
    lines[3]["actor_id"] = "eve"
    file = tmp_path / "archive.jsonl"
    file.write_text("no fact\n" + "".join(json.dumps(line) + "\n" for line in lines))
    said = ledger_told("import", str(file), "--db", elsewhere)
    assert said.code == 1
    header, first, second, end = said.out.splitlines()
    assert header.split() == ["LINE", "RUN", "REASON"]
    assert first.split() == ["1", "-", "the", "line", "is", "no", "JSON"]
    assert second.split()[:2] == ["5", run_id]
    assert end == "Imported 0 runs and 0 facts."
    assert said.err == "runfacts: a line was refused at line 1: the line is no JSON; 1 more refused\n"


def test_an_archive_comes_through_a_pipe(tmp_path: Path, elsewhere: str) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(url) as ledger:
        finished(ledger, task="报告 😀")
    exported = apart("export", url=url, more={"PYTHONIOENCODING": "ascii"})
    assert exported.out.isascii()
    taken = apart("import", "-", "--json", url=elsewhere, stdin=exported.out)
    assert (taken.code, taken.json["facts"]) == (0, 9)
    with Ledger.open(elsewhere) as ledger:
        assert [run.task for run in ledger.runs().items] == ["报告 😀"]


def test_a_file_that_is_not_there_is_a_usage_error(ledger_told: Told, tmp_path: Path) -> None:
    said = ledger_told("import", str(tmp_path / "none"), "--json")
    assert (said.code, said.json["error"]["code"]) == (2, "usage")


def test_an_audit_goes_on_page_by_page_up_to_its_limit(ledger_told: Told, database_url: str) -> None:
    with Ledger.open(database_url) as ledger:
        for _ in range(260):
            queued(ledger)
    said = ledger_told("audit", "--limit", "515", "--format", "jsonl")
    assert [line["position"] for line in said.lines] == list(range(1, 516))
    assert said.err == "There are more: --after 515\n"
    rest = ledger_told("audit", "--limit", "100000", "--after", "515", "--format", "csv")
    assert [row.split(",")[0] for row in rest.out.splitlines()] == ["position", "516", "517", "518", "519", "520"]
    assert rest.err == ""
    refused = ledger_told("audit", "--limit", "501")
    assert (refused.code, "at most 500 rows" in refused.err) == (2, True)

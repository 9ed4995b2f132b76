"""What a newcomer meets first: a ledger that is not there yet, or empty, and where a command's output is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runfacts import Actor, Ledger
from told import Told

OWN_MACHINE, OTHER_MACHINE = "rack-7", "rack-8"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command's ledger is, or will be."""
    path = tmp_path / "ledger.db"
    monkeypatch.setenv("RUNFACTS_DB", f"sqlite:///{path}")
    return path


def test_doctor_misses_a_ledger_that_was_named(told: Told, file: Path) -> None:
    """A name that is wrong must not look well; nothing is made by looking."""
    said = told("doctor", "--json")
    first, *others = said.json["checks"]
    assert (said.code, first) == (
        1,
        {
            "name": "database",
            "ok": False,
            "detail": f"there is no ledger at {file}: is the name right? `runfacts migrate` makes one there",
        },
    )
    assert "pidfd" in {check["name"] for check in others}
    assert not file.exists()
    assert told("migrate").code == 0
    assert told("doctor").code == 0


def test_doctor_says_that_the_own_ledger_cannot_be_made(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file where a directory is needed")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "taken"))
    said = told("doctor", "--json")
    detail = said.json["checks"][0]["detail"]
    assert detail.startswith(f"there is no ledger at {tmp_path}/taken/runfacts/ledger.db, and none can be made:")
    assert (said.code, detail.endswith(f": {tmp_path}/taken cannot be written")) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("list",), "There are no runs yet; `runfacts submit` and `runfacts exec` make some."),
        (("list", "--status", "lost"), "No run is like that."),
        (("list", "--project", "films"), "No run is like that."),
        (("audit",), "There are no such facts."),
        (("stats",), "Nothing is counted for that time: no fact of it is in the statistics."),
        (("stats", "--stops"), "No run of that time was asked to stop."),
        (("unproven",), "No run was asked to stop whose end is not proven."),
        (("blocked",), "No cancellation waits for an operator."),
        (("manual",), "No run waits for an operator to say what became of it."),
    ],
)
def test_an_empty_list_is_a_sentence_for_people_and_empty_for_programs(
    told: Told, file: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    assert told("migrate").code == 0
    said = told(*arguments)
    assert (said.code, said.out, said.err) == (0, f"{sentence}\n", "")
    programs = told(*arguments, "--json")
    if arguments == ("audit",):
        assert programs.out == ""
    else:
        assert (programs.json["items"], programs.json["next"]) == ([], None)
    assert file.exists()


def test_csv_of_no_fact_is_its_header(told: Told, file: Path) -> None:
    assert told("audit", "--format", "csv").out.startswith("position,run_id,")
    assert file.exists()


def test_show_says_where_the_output_of_each_attempt_is(told: Told, file: Path) -> None:
    script = "echo said; echo complained >&2; exit 3"
    host = told("exec", "--attempts", "2", "--retry-failed", "--json", "--", "sh", "-c", script)
    shown = told("show", host.run_id, "--json").json
    assert [attempt["number"] for attempt in shown["attempts"]] == [1, 2]
    for attempt in shown["attempts"]:
        stem = f"{file}.runs/{attempt['attempt_id']}"
        assert attempt["output"] == "here"
        assert (attempt["stdout_path"], attempt["stderr_path"]) == (f"{stem}.out", f"{stem}.err")
        assert Path(attempt["stdout_path"]).read_text() == "said\n"
        assert Path(attempt["stderr_path"]).read_text() == "complained\n"
    lines = told("show", host.run_id).out.splitlines()
    assert lines[-4:] == [
        f"{name} of {attempt['number']}  {attempt[f'{name}_path']}"
        for attempt in shown["attempts"]
        for name in ("stdout", "stderr")
    ]
    assert str(file) not in told("audit", host.run_id, "--json").out


def test_show_says_that_output_is_gone(told: Told, file: Path) -> None:
    run_id = told("exec", "--", "true").run_id
    (attempt,) = told("show", run_id, "--json").json["attempts"]
    Path(attempt["stderr_path"]).unlink()
    gone = f"gone: not in {file}.runs, where it was written"
    assert told("show", run_id).out.splitlines()[-2:] == [
        f"stdout of 1  {attempt['stdout_path']}",
        f"stderr of 1  {gone}",
    ]
    shutil.rmtree(f"{file}.runs")
    assert told("show", run_id).out.splitlines()[-1] == f"output of 1  {gone}"
    (attempt,) = told("show", run_id, "--json").json["attempts"]
    assert (attempt["output"], attempt["stdout_path"], attempt["stderr_path"]) == ("gone", None, None)


def test_show_says_that_output_is_on_another_machine(
    ledger_told: Told, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(database_url, machine_id=OWN_MACHINE) as ledger:
        run_id = ledger.create(actor=Actor.user("ana"), task="t").run.run_id
        ledger.queue(run_id, actor=Actor.user("ana"))
        worker = Actor.worker("w-1")
        claimed = ledger.claim(run_id, actor=worker, executor_type="local", scope=f"{OTHER_MACHINE}/1/2")
        monkeypatch.setenv("RUNFACTS_MACHINE_ID", OWN_MACHINE)
        (attempt,) = ledger_told("show", run_id, "--json").json["attempts"]
        assert attempt["output"] == "none"
        assert ledger_told("show", run_id).out.splitlines()[-1] == "output of 1  none: no command was started"
        ledger.start(claimed.claim, actor=worker)  # type: ignore[union-attr] # it is free
    (attempt,) = ledger_told("show", run_id, "--json").json["attempts"]
    assert (attempt["output"], attempt["stdout_path"], attempt["stderr_path"]) == ("elsewhere", None, None)
    assert ledger_told("show", run_id).out.splitlines()[-1] == "output of 1  on another machine: that of the host"


def test_show_says_nothing_of_the_output_of_other_executors(ledger_told: Told, database_url: str) -> None:
    with Ledger.open(database_url) as ledger:
        run_id = ledger.create(actor=Actor.user("ana"), task="t").run.run_id
        ledger.queue(run_id, actor=Actor.user("ana"))
        ledger.claim(run_id, actor=Actor.worker("w-1"), executor_type="mine")
    (attempt,) = ledger_told("show", run_id, "--json").json["attempts"]
    assert (attempt["output"], attempt["stdout_path"], attempt["stderr_path"]) == (None, None, None)
    assert "output" not in ledger_told("show", run_id).out


def test_show_says_that_the_output_of_an_imported_run_stayed_behind(told: Told, file: Path, tmp_path: Path) -> None:
    run_id = told("exec", "--", "true").run_id
    archive = tmp_path / "archive.jsonl"
    archive.write_text(told("export").out)
    there = ("--db", f"sqlite:///{tmp_path}/there.db")
    assert told(*there, "import", str(archive)).code == 0
    (attempt,) = told(*there, "show", run_id, "--json").json["attempts"]
    assert (attempt["output"], attempt["stdout_path"]) == ("imported", None)
    assert told(*there, "show", run_id).out.splitlines()[-1] == (
        "output of 1  with the ledger from which the run was imported"
    )
    assert file.exists()


def test_the_audit_trail_and_the_timeline_say_yes_in_the_same_word(told: Told, file: Path) -> None:
    run_id = told("exec", "--", "true").run_id
    for command in ("audit", "timeline"):
        assert " gated=yes " in told(command, run_id).out
    assert file.exists()

"""What holds for every command: options, streams, terminals, the user's own database, completion."""

from __future__ import annotations

import os
import pty
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from runfacts import Actor, Ledger
from runfacts.domain.payloads import FACT_TYPES
from runfacts.infrastructure.cli.program import COMMANDS
from told import COMMAND, Told, apart, environment


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with some runs, which the command uses."""
    found = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("RUNFACTS_DB", found)
    with Ledger.open(found) as ledger:
        for number in range(300):
            ledger.create(actor=Actor.user("ana"), task=f"task {number}")
    return found


def test_options_of_all_commands_stand_before_or_after_the_command(told: Told, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    before = told("--db", url, "--json", "--as", "ana", "list")
    after = told("list", "--db", url, "--json", "--as", "ana")
    assert (before.code, before.out) == (after.code, after.out) == (0, '{"items": [], "next": null}\n')


def test_who_it_was_is_what_they_said_and_else_the_login_name(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNFACTS_DB", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("LOGNAME", "login")

    def who(*options: str) -> tuple[str, str]:
        run_id = told("exec", *options, "--", "true").run_id
        first = told("audit", run_id, "--json").lines[0]
        return first["actor_type"], first["actor_id"]

    assert who() == ("user", "login")
    monkeypatch.setenv("RUNFACTS_AS", "bo")
    assert who() == ("user", "bo")
    assert who("--as", "ana") == ("user", "ana")


def test_the_users_own_ledger_is_made_in_the_state_directory_for_them_alone(told: Told, own_state: Path) -> None:
    before = told("doctor", "--json")
    detail = "yet; the first command that needs it, such as `runfacts exec`, makes it"
    database = {
        "name": "database",
        "ok": True,
        "detail": f"there is no ledger at {own_state}/runfacts/ledger.db {detail}",
    }
    assert (before.code, before.json["checks"][0]) == (0, database)
    assert not own_state.exists()
    assert told("list").code == 0
    folder = own_state / "runfacts"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "ledger.db").stat().st_mode) == 0o600
    assert told("exec", "--", "true").code == 0
    assert told("doctor").code == 0


def test_version_and_help(told: Told) -> None:
    assert told("--version").out == "runfacts 0.1.0\n"
    for arguments in (["--help"], ["-h"], ["exec", "--help"]):
        said = told(*arguments)
        assert (said.code, said.err) == (0, "")
        assert "Usage: runfacts" in said.out


def test_the_list_of_commands_fits_the_narrowest_terminal(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = told("--help").out.splitlines()
    commands = lines[lines.index("Commands:") + 1 : lines.index("", lines.index("Commands:"))]
    assert [line.split()[0] for line in commands] == list(COMMANDS)
    for line in commands:
        assert line.endswith("."), line
        assert not line.endswith("..."), line
        assert len(line) <= 80, line


def test_nothing_to_do_is_a_usage_error_that_shows_the_help(told: Told) -> None:
    nothing = told()
    assert (nothing.code, nothing.out) == (2, "")
    assert "Commands:" in nothing.err


@pytest.mark.parametrize("module", ["runfacts", "runfacts.infrastructure.cli"])
def test_it_can_be_run_as_a_module(module: str) -> None:
    said = subprocess.run([sys.executable, "-m", module, "--version"], stdout=subprocess.PIPE, text=True, check=True)
    assert said.stdout == "runfacts 0.1.0\n"


def test_without_its_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['click'] = None; from runfacts.infrastructure.cli import main; sys.exit(main())"
    said = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, check=False)
    assert (said.returncode, said.stderr) == (1, "runfacts: the command needs its extra: pip install 'runfacts[cli]'\n")


def test_facts_gives_the_catalogue_without_a_database(told: Told, own_state: Path) -> None:
    assert set(told("facts", "--json").json) == set(FACT_TYPES)
    one = told("facts", "run.created", "--json").json
    assert set(one) == {"run.created"}
    assert one["run.created"]["properties"]["task"]["maxLength"] == 200
    assert "run.created" in told("facts").out
    assert not own_state.exists()


@pytest.mark.usefixtures("url")
def test_a_defect_shows_its_place_with_debug_only(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_given: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Ledger, "runs", broken)
    said = told("list", "--json")
    assert (said.code, said.json["error"]["code"], len(said.err.splitlines())) == (1, "internal", 1)
    assert "ZeroDivisionError" in said.err
    debugged = told("list", "--debug")
    assert (debugged.code, "Traceback (most recent call last)" in debugged.err) == (1, True)


def test_a_reader_that_has_enough_ends_it_quietly(url: str) -> None:
    reader = subprocess.Popen(
        [*COMMAND, "audit", "--json", "--limit", "500"],
        env=environment(url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.close()
        assert reader.stderr.read() == ""
    assert reader.returncode == 141


def test_output_that_cannot_be_written_is_an_error_of_one_line(url: str) -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [*COMMAND, "list"], env=environment(url), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (said.returncode, said.stderr) == (1, "runfacts: No space left on device\n")


def test_ctrl_c_ends_it_without_a_word(url: str) -> None:
    program = (
        "import os, signal, sys; from runfacts import Ledger; from runfacts.infrastructure.cli import main;"
        "Ledger.runs = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT); sys.exit(main(['list']))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], env=environment(url), capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout, said.stderr) == (128 + signal.SIGINT, "", "")


def test_a_terminal_gets_colour_and_sees_no_control_characters(url: str, tmp_path: Path) -> None:
    with Ledger.open(url) as ledger:
        run_id = ledger.create(actor=Actor.user("ana"), task="[red]marked up[/red]").run.run_id
    ours, theirs = pty.openpty()
    shown = tmp_path / "shown"
    with shown.open("wb") as copy:
        command = subprocess.Popen(
            [*COMMAND, "show", run_id],
            env=environment(url, TERM="xterm-256color", COLUMNS="120"),
            stdout=theirs,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        while True:
            try:
                data = os.read(ours, 65_536)
            except OSError:  # the other side is closed
                break
            if not data:
                break
            copy.write(data)
        os.close(ours)
        assert command.wait(60) == 0
    text = shown.read_text()
    assert "\x1b[" in text
    assert "[red]marked up[/red]" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(told: Told, shell: str) -> None:
    said = told("completion", shell)
    assert said.code == 0
    assert "_RUNFACTS_COMPLETE" in said.out


def test_completion_completes_commands_options_and_statuses() -> None:
    def completed(words: str, number: int) -> list[str]:
        said = apart(more={"_RUNFACTS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)})
        return [line.partition(",")[2] for line in said.out.splitlines()]

    assert completed("runfacts ve", 1) == ["verify"]
    assert completed("runfacts list --st", 2) == ["--status"]
    assert completed("runfacts list --status succ", 3) == ["succeeded"]

"""``exec`` with real processes: exit codes, output, keys, interruption, and hosts that are killed (R10, R2.11)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from process_watch import Marked, wait_until
from runfacts import Actor, Ledger
from told import COMMAND, Said, Told, apart, environment

# Runs the command; at a named step it kills itself, as the machine's memory keeper or an operator might.
DYING_HOST = """
import functools, os, signal, sys
from runfacts.infrastructure.cli import main
from runfacts.infrastructure.ledger import Ledger

class DieAt:
    def reached(self, name):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)

Ledger.open = functools.partial(Ledger.open, steps=DieAt())
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger file yet to be made."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def file_told(told: Told, url: str, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The command in this process, on one file."""
    monkeypatch.setenv("RUNFACTS_DB", url)
    return told


def shown(said: Said) -> dict[str, object]:
    """The object that is the last line of stderr."""
    read: dict[str, object] = json.loads(said.err.splitlines()[-1])
    return read


def test_the_output_and_the_exit_code_are_the_commands_own(ledger_told: Told) -> None:
    said = ledger_told("exec", "--task", "t", "--project", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (said.code, said.out) == (7, "out\n")
    assert said.err.splitlines() == [f"run {said.run_id}", "err"]
    run = ledger_told("show", said.run_id, "--json").json
    (attempt,) = run["attempts"]
    assert (run["task"], run["project"], run["status"]) == ("t", "p", "failed")
    assert (attempt["status"], attempt["exit_code"], attempt["executor_type"]) == ("failed", 7, "local")
    assert [fact["type"] for fact in ledger_told("audit", said.run_id, "--json").lines] == [
        "run.created",
        "run.queued",
        "run.dispatching",
        "attempt.claimed",
        "attempt.starting",
        "attempt.running",
        "run.running",
        "attempt.failed",
        "run.failed",
    ]
    assert ledger_told("verify").code == 0


@pytest.mark.parametrize(
    ("command", "code", "status"),
    [
        (["true"], 0, "succeeded"),
        (["sh", "-c", "exit 125"], 125, "failed"),
        (["sh", "-c", "kill -TERM $$"], 128 + 15, "failed"),
        (["no-such-command-anywhere"], 127, "failed"),
        (["/etc/passwd"], 126, "failed"),
    ],
    ids=["success", "125", "signal", "not found", "not executable"],
)
def test_exit_codes(file_told: Told, command: list[str], code: int, status: str) -> None:
    said = file_told("exec", "--json", "--", *command)
    assert (said.code, said.out) == (code, "")
    assert (shown(said)["status"], shown(said)["run_id"]) == (status, said.run_id)
    assert "Traceback" not in said.err


def test_the_json_stands_on_a_line_of_its_own_after_an_unfinished_one(file_told: Told) -> None:
    said = file_told("exec", "--json", "--", "sh", "-c", "printf unfinished >&2")
    assert said.err.splitlines()[1] == "unfinished"
    assert shown(said)["status"] == "succeeded"


def test_bytes_pass_through_as_they_are(url: str, tmp_path: Path) -> None:
    source = tmp_path / "bytes"
    source.write_bytes(bytes(range(256)) * 1_000)
    with source.open("rb") as stdin:
        ended = subprocess.run(
            [*COMMAND, "exec", "--stdin", "--", "cat"],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(url),
            check=True,
        )
    assert ended.stdout == source.read_bytes()


def test_a_command_reads_nothing_unless_it_is_asked_for(url: str) -> None:
    assert apart("exec", "--", "cat", url=url, stdin="not for it").out == ""


def test_options_of_the_command_are_not_ours(file_told: Told) -> None:
    said = file_told("exec", "--", "echo", "--json", "--debug", "--", "--key")
    assert (said.code, said.out) == (0, "--json --debug -- --key\n")
    assert file_told("exec", "echo", "--json").out == "--json\n"


def test_a_key_runs_once_and_then_answers_with_its_run(file_told: Told, tmp_path: Path) -> None:
    script = f"echo once >> {tmp_path / 'ran'}; exit 3"
    first = file_told("exec", "--key", "k", "--", "sh", "-c", script)
    again = file_told("exec", "--key", "k", "--json", "--", "sh", "-c", script)
    assert (first.code, again.code, again.run_id) == (3, 3, first.run_id)
    assert shown(again)["run_id"] == first.run_id
    assert (tmp_path / "ran").read_text() == "once\n"


def test_a_key_of_another_task_is_a_conflict(file_told: Told) -> None:
    file_told("exec", "--key", "k", "--", "true")
    said = file_told("exec", "--key", "k", "--task", "other", "--json", "--", "true")
    assert (said.code, shown(said)["error"]) == (
        125,
        {
            "code": "idempotency_conflict",
            "message": f"the idempotency key is used by run {file_told('list', '--json').json['items'][0]['run_id']}"
            " with another task",
        },
    )


def test_a_key_whose_run_has_not_ended_is_exit_code_4(file_told: Told, url: str) -> None:
    with Ledger.open(url) as ledger:
        there = ledger.create(actor=Actor.user("ana"), task="command", idempotency_key="k").run
    said = file_told("exec", "--key", "k", "--json", "--", "true")
    assert (said.code, shown(said)["run_id"], shown(said)["status"]) == (4, there.run_id, "created")


def test_an_exec_that_is_interrupted_before_it_starts_anything_cancels_its_run(
    file_told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Ledger.create

    def interrupted(ledger: Ledger, **given: Any) -> object:  # noqa: ANN401 - as the command calls it
        signal.raise_signal(signal.SIGTERM)
        return create(ledger, **given)

    monkeypatch.setattr(Ledger, "create", interrupted)
    said = file_told("exec", "--json", "--", "touch", str(tmp_path / "ran"))
    assert (said.code, shown(said)["status"], shown(said)["attempts"]) == (143, "cancelled", [])
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("step", ["launch:after:start", "launch:before:running", "launch:before:gate"])
def test_a_host_killed_before_the_gate_opens_runs_nothing(
    file_told: Told, url: str, tmp_path: Path, marked: Marked, step: str
) -> None:
    run_id = die_at(step, url, f"echo ran >> {tmp_path / 'ran'}")
    marked.wait_until_gone()
    assert file_told("exec", "--", "true").code == 0
    assert not (tmp_path / "ran").exists()
    assert file_told("show", run_id, "--json").json["attempts"][0]["finished_at_ms"] is None
    assert file_told("verify").code == 0


@pytest.mark.parametrize(
    "step",
    ["launch:after:gate", "launch:before:finish", "sql:before:commit", "launch:after:finish"],
)
def test_a_host_killed_later_loses_no_exit_code_and_runs_nothing_twice(
    file_told: Told, url: str, tmp_path: Path, marked: Marked, step: str
) -> None:
    if step == "sql:before:commit":
        # The last commit of a launch is the one of its end; kill there, not at the first.
        step = "sql:before:commit/after/launch:before:finish"
    run_id = die_at(step, url, f"echo ran >> {tmp_path / 'ran'}; exit 9")
    marked.wait_until_gone()
    assert file_told("exec", "--", "true").code == 0
    (attempt,) = file_told("show", run_id, "--json").json["attempts"]
    assert (attempt["status"], attempt["exit_code"]) == ("failed", 9)
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert file_told("verify").code == 0
    assert not [file for file in (tmp_path / "ledger.db.runs").iterdir() if file.suffix in {".receipt", ".lock"}]


def test_a_killed_host_on_postgresql_leaves_its_receipt_in_the_state_directory(
    ledger_told: Told, database_url: str, tmp_path: Path, marked: Marked
) -> None:
    run_id = die_at("launch:after:gate", database_url, f"echo ran >> {tmp_path / 'ran'}; exit 9")
    marked.wait_until_gone()
    assert ledger_told("exec", "--", "true").code == 0
    assert ledger_told("show", run_id, "--json").json["attempts"][0]["exit_code"] == 9
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_a_run_that_another_worker_took_is_followed_to_its_end(url: str) -> None:
    # The other worker is so fast that it has ended the run before this host can claim it.
    program = """
import sys
from runfacts import Actor, Outcome
from runfacts.infrastructure.cli import main
from runfacts.infrastructure.ledger import Ledger

create = Ledger.create
def create_and_take(self, **given):
    answer = create(self, **given)
    other = Actor.worker("other")
    claim = self.claim(answer.run.run_id, actor=other, executor_type="other", queue=True).claim
    self.start(claim, actor=other)
    self.running(claim, actor=other)
    self.finish(claim, Outcome.failed(exit_code=11), actor=other)
    return answer
Ledger.create = create_and_take
sys.exit(main(["exec", "--json", "--", "true"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment(url), stderr=subprocess.PIPE, text=True, check=False
    )
    said = Said(ended.returncode, "", ended.stderr)
    assert (said.code, shown(said)["status"]) == (11, "failed")


def test_a_reader_that_goes_away_does_not_change_the_exit_code(url: str) -> None:
    host = subprocess.Popen(
        [*COMMAND, "exec", "--", "sh", "-c", "yes | head -c 1000000; exit 6"],
        env=environment(url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with host:
        assert host.stdout is not None
        assert host.stderr is not None
        host.stdout.close()
        assert host.wait(60) == 6
        assert len(host.stderr.read().splitlines()) == 1


@pytest.mark.usefixtures("marked")
def test_a_reader_that_stalls_can_be_left_by_a_signal_when_the_command_has_ended(
    file_told: Told, url: str, tmp_path: Path
) -> None:
    host = subprocess.Popen(
        [*COMMAND, "exec", "--", "sh", "-c", f"yes | head -c 1000000; touch {tmp_path / 'ended'}; exit 6"],
        env=environment(url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with host:
        assert host.stderr is not None
        run_id = host.stderr.readline().removeprefix("run ").rstrip()
        wait_until(lambda: file_told("show", run_id, "--json").json["status"] == "failed", "the end is recorded")
        host.terminate()
        assert host.wait(60) == 6


def test_one_key_used_by_many_at_once_runs_once(url: str, tmp_path: Path) -> None:
    hosts = [
        subprocess.Popen(
            [*COMMAND, "exec", "--key", "k", "--", "sh", "-c", f"echo ran >> {tmp_path / 'ran'}; exit 3"],
            env=environment(url),
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    said = [host.communicate()[1] for host in hosts]
    assert {text.splitlines()[0] for text in said} == {said[0].splitlines()[0]}
    # Who comes while it runs is told so; who comes later gets its code.
    assert {host.returncode for host in hosts} <= {3, 4}
    assert (tmp_path / "ran").read_text() == "ran\n"


def die_at(step: str, url: str, script: str) -> str:
    """Host a command by a process that kills itself at a step; the id of its run."""
    program = DYING_HOST
    step, _, after = step.partition("/after/")
    if after:
        program = program.replace("if name == sys.argv[1]:", ARMED.replace("AFTER", repr(after)))
    ended = subprocess.run(
        [sys.executable, "-c", program, step, "exec", "--", "sh", "-c", script],
        env=environment(url),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    return ended.stderr.splitlines()[0].removeprefix("run ")


ARMED = """if name == AFTER:
            self.armed = True
        elif name == sys.argv[1] and getattr(self, "armed", False):"""

"""
Cancelling real commands: from elsewhere, at the host, by time; and supervisors that take over.

R6, R8, R8.8, R9, R10.4, R10.5.

With the command in processes of its own; on every database where that makes a difference. Leases are short, deadlines
generous.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deliveries import brought_to, dispatch_of
from process_watch import DEADLINE_S, Marked, kill, leads_its_session, state_of, wait_until
from real_time import RealTime
from runfacts import Actor, Ledger
from told import COMMAND, Said, Told, environment

SHORT = ("--set", "grace_ms=200", "--set", "cancel_lease_ms=4000")
STUBBORN = "trap '' TERM; echo up; while :; do sleep 0.05; done"


@pytest.fixture
def database_url(databases: RealTime) -> str:
    """A fresh database of each kind whose time passes by itself: what is tested here waits for real leases."""
    return databases.create()


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """A ledger file yet to be made."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def file_told(told: Told, file_url: str, monkeypatch: pytest.MonkeyPatch) -> Told:
    """The command in this process, on one file."""
    monkeypatch.setenv("RUNFACTS_DB", file_url)
    return told


class Running:
    """The command in a process of its own, under way."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._first = ""

    def line(self) -> str:
        """Wait for a line of its stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    @property
    def run_id(self) -> str:
        """Wait for the id of the run that ``exec`` names first."""
        assert self.process.stderr is not None
        if not self._first:
            self._first = self.process.stderr.readline()
        return self._first.rstrip("\n").removeprefix("run ")

    def said(self) -> Said:
        """Wait for its end."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return Said(self.process.returncode, out, self._first + err)

    def end(self) -> None:
        """Kill it, if it is still there."""
        if self.process.poll() is None:
            kill(self.process.pid)
        self.process.communicate(timeout=DEADLINE_S)


@pytest.fixture
def begun(marked: Marked) -> Iterator[list[Running]]:
    """What the test has under way; nothing of it outlives the test."""
    assert marked.living() == set()
    started: list[Running] = []
    yield started
    for running in started:
        running.end()


def started(begun: list[Running], url: str, *arguments: str) -> Running:
    begun.append(Running(url, *arguments))
    return begun[-1]


def hosting(begun: list[Running], url: str, script: str, *options: str) -> Running:
    """A host whose command has said that it is up."""
    host = started(begun, url, "exec", *SHORT, *options, "--", "sh", "-c", script)
    assert host.line() == "up"
    assert host.run_id
    return host


def facts(told: Told, run_id: str) -> list[dict[str, Any]]:
    """The run's facts, as the audit trail has them."""
    return told("audit", run_id, "--json").lines


def of_type(told: Told, run_id: str, kind: str) -> list[dict[str, Any]]:
    """What the run's facts of one type say."""
    return [fact["payload"] for fact in facts(told, run_id) if fact["type"] == kind]


def last_run(told: Told) -> str:
    """The id of the newest run."""
    run_id: str = told("list", "--json").json["items"][0]["run_id"]
    return run_id


def test_a_cancel_from_another_process_stops_the_command(
    ledger_told: Told, database_url: str, begun: list[Running]
) -> None:
    host = hosting(begun, database_url, "echo up; exec sleep 600", "--json")
    said = ledger_told("cancel", host.run_id, "--reason", "not needed", "--wait", "60", "--json")
    assert (said.code, said.json) == (0, {"run_id": host.run_id, "outcome": "accepted", "status": "cancelled"})
    ended = host.said()
    assert ended.code == 128 + signal.SIGTERM
    assert "runfacts: the run was cancelled" in ended.err
    shown = json.loads(ended.err.splitlines()[-1])
    (attempt,) = shown["attempts"]
    assert (shown["status"], attempt["status"], attempt["signal"], attempt["observed"]) == (
        "cancelled",
        "cancelled",
        signal.SIGTERM,
        "failed",
    )
    assert (shown["cancellation"]["kind"], shown["cancellation"]["reason"]) == ("user", "not needed")
    (delivered,) = of_type(ledger_told, host.run_id, "run.cancel_dispatched")
    assert (delivered["result"], delivered["escalation"]) == ("termination_requested", "term")
    assert ledger_told("verify").code == 0


def test_a_tree_whose_child_ignores_term_ends_only_when_the_child_is_gone(
    file_told: Told, file_url: str, marked: Marked, begun: list[Running], tmp_path: Path
) -> None:
    # The leader ends on TERM, its child does not.
    child = f"trap '' TERM; echo $$ > {tmp_path}/child; echo up; while :; do sleep 0.05; done"
    host = hosting(begun, file_url, f'sh -c "{child.replace("$$", chr(92) + "$$")}" & wait')
    said = file_told("cancel", host.run_id, "--wait", "60", "--json")
    assert said.json["status"] == "cancelled"
    # Whoever inherited it may not have waited for it yet; dead it is.
    assert state_of(int((tmp_path / "child").read_text())) in {None, "Z"}
    assert host.said().code == 128 + signal.SIGTERM
    marked.wait_until_gone()
    (delivered,) = of_type(file_told, host.run_id, "run.cancel_dispatched")
    assert delivered["escalation"] == "kill"


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")], ids=["ctrl-c", "sigterm"]
)
def test_an_interrupted_host_cancels_its_run_for_the_user(
    file_told: Told, file_url: str, begun: list[Running], number: signal.Signals, name: str
) -> None:
    host = hosting(begun, file_url, "echo up; exec sleep 600", "--as", "ana")
    host.process.send_signal(number)
    ended = host.said()
    assert ended.code == 128 + signal.SIGTERM
    assert f"runfacts: stopping run {host.run_id}; once more leaves it alone" in ended.err
    shown = file_told("show", host.run_id, "--json").json
    assert (shown["status"], shown["cancellation"]["kind"], shown["cancellation"]["reason"]) == (
        "cancelled",
        "user",
        f"{name} at the host",
    )
    (requested,) = [fact for fact in facts(file_told, host.run_id) if fact["type"] == "run.cancel_requested"]
    assert (requested["actor_type"], requested["actor_id"]) == ("user", "ana")


def test_a_command_that_ends_well_when_it_is_stopped_does_not_look_like_success(
    file_told: Told, file_url: str, begun: list[Running]
) -> None:
    host = hosting(begun, file_url, "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done")
    host.process.send_signal(signal.SIGINT)
    assert host.said().code == 143
    (attempt,) = file_told("show", host.run_id, "--json").json["attempts"]
    assert (attempt["status"], attempt["observed"], attempt["exit_code"]) == ("cancelled", "succeeded", 0)


def test_an_interrupted_host_whose_stderr_nobody_reads_looks_on_at_its_command(
    file_told: Told, file_url: str, begun: list[Running]
) -> None:
    # Far more than a pipe holds, and than what a stalled reader has read when the host is interrupted.
    host = hosting(begun, file_url, "yes | head -c 1000000 >&2; echo up; exec sleep 600")
    time.sleep(0.5)
    host.process.send_signal(signal.SIGINT)
    wait_until(lambda: file_told("show", host.run_id, "--json").json["status"] == "cancelled", "the end is recorded")
    assert host.said().code == 143


def test_a_second_interruption_leaves_the_run_alone_and_a_supervisor_takes_over(
    file_told: Told, file_url: str, marked: Marked, begun: list[Running]
) -> None:
    host = hosting(begun, file_url, STUBBORN, "--set", "grace_ms=60000", "--set", "cancel_lease_ms=63000", "--json")
    host.process.send_signal(signal.SIGINT)
    # One at a time: two signals of a kind that wait are one.
    wait_until(lambda: of_type(file_told, host.run_id, "run.cancel_requested"), "the first is recorded")
    host.process.send_signal(signal.SIGTERM)
    ended = host.said()
    assert ended.code == 143
    *_, left_alone, last = ended.err.splitlines()
    assert left_alone == f"run {host.run_id} is left alone; `runfacts supervise` goes on with stopping it"
    assert json.loads(last)["status"] == "running"
    assert marked.living()
    # The host held the delivery; its lease, of a minute, is not waited for here.
    assert file_told("cancel", host.run_id, "--json").json["outcome"] == "already_requested"
    assert file_told("cancel", host.run_id, "--wait", "0", "--json").json["error"]["code"] == "wait_timeout"
    (leader,) = [pid for pid in marked.living() if leads_its_session(pid, "while")]
    kill(leader)
    marked.wait_until_gone()
    assert file_told("supervise", "--only", "complete", "--once", "--json").json["completion"]["recorded"] == 1
    assert file_told("show", host.run_id, "--json").json["status"] == "cancelled"


def test_a_command_whose_time_is_over_is_stopped_by_its_host(ledger_told: Told) -> None:
    said = ledger_told("exec", *SHORT, "--timeout", "0.3", "--", "sleep", "600")
    assert said.code == 124
    assert said.err.splitlines() == [f"run {said.run_id}", "runfacts: its time was over"]
    shown = ledger_told("show", said.run_id, "--json").json
    assert (shown["status"], shown["cancellation"]["kind"]) == ("timed_out", "timeout")
    assert shown["attempts"][0]["status"] == "timed_out"
    assert of_type(ledger_told, said.run_id, "run.cancel_requested") == [{"kind": "timeout"}]


def test_a_command_that_ends_in_time_is_not_stopped(file_told: Told) -> None:
    said = file_told("exec", "--timeout", "600", "--", "sh", "-c", "exit 3")
    assert said.code == 3
    assert of_type(file_told, said.run_id, "run.cancel_requested") == []


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "1e30"])
def test_a_time_out_that_is_none_is_a_mistake_of_the_caller(file_told: Told, text: str) -> None:
    said = file_told("exec", f"--timeout={text}", "--", "true")
    assert said.code == 125
    assert "--timeout" in said.err
    assert file_told("list", "--json").json["items"] == []


def test_when_the_host_is_gone_a_supervisor_delivers_and_records_the_end(
    ledger_told: Told, database_url: str, marked: Marked, begun: list[Running]
) -> None:
    host = hosting(begun, database_url, STUBBORN)
    kill(host.process.pid)
    host.said()
    supervisor = started(begun, database_url, "supervise", *SHORT, "--interval", "0.25", "--json")
    said = ledger_told("cancel", host.run_id, "--wait", "60", "--json")
    assert (said.code, said.json["status"]) == (0, "cancelled")
    marked_before = marked.living()
    assert marked_before <= {supervisor.process.pid}
    (delivered,) = of_type(ledger_told, host.run_id, "run.cancel_dispatched")
    assert (delivered["result"], delivered["escalation"]) == ("termination_requested", "kill")
    supervisor.process.send_signal(signal.SIGTERM)
    ended = supervisor.said()
    assert ended.code == 0
    counted = ended.lines
    assert sum(line["cancellation"].get("termination_requested", 0) for line in counted) == 1
    assert sum(line["completion"]["recorded"] for line in counted) == 1
    assert ledger_told("verify").code == 0


@pytest.mark.parametrize("database_url", ["postgresql-18"], indirect=True)
def test_when_the_host_is_gone_a_supervisor_enforces_its_deadline(
    ledger_told: Told, database_url: str, begun: list[Running]
) -> None:
    host = hosting(begun, database_url, "echo up; exec sleep 600", "--timeout", "2")
    kill(host.process.pid)
    host.said()
    started(begun, database_url, "supervise", *SHORT, "--interval", "0.25")
    wait_until(
        lambda: ledger_told("show", host.run_id, "--json").json["status"] == "timed_out", "the supervisor stops it"
    )
    (requested,) = [fact for fact in facts(ledger_told, host.run_id) if fact["type"] == "run.cancel_requested"]
    assert (requested["actor_type"], requested["payload"]) == ("supervisor", {"kind": "timeout"})


def test_two_supervisors_side_by_side_deliver_each_cancellation_once(
    ledger_told: Told, database_url: str, begun: list[Running], tmp_path: Path
) -> None:
    script = f"trap 'echo got >> {tmp_path}/got-$RUNFACTS_RUN_ID; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    supervisors = [started(begun, database_url, "supervise", *SHORT, "--interval", "0.25", "--json") for _ in range(2)]
    hosts = [started(begun, database_url, "exec", *SHORT, "--", "sh", "-c", script) for _ in range(3)]
    for host in hosts:
        assert host.line() == "up"
        assert host.run_id
        kill(host.process.pid)
        host.said()
    for supervisor in supervisors:
        assert supervisor.line()
    for host in hosts:
        assert ledger_told("cancel", host.run_id).code == 0
    for host in hosts:
        assert ledger_told("cancel", host.run_id, "--wait", "60", "--json").json["status"] == "cancelled"
        assert (tmp_path / f"got-{host.run_id}").read_text() == "got\n"
        (delivered,) = of_type(ledger_told, host.run_id, "run.cancel_dispatched")
        assert (delivered["dispatch_count"], delivered["escalation"]) == (1, "term")
        assert of_type(ledger_told, host.run_id, "run.cancel_dispatch_taken_over") == []


def test_a_supervisor_killed_between_signal_and_settle_is_taken_over(
    file_told: Told, file_url: str, marked: Marked, begun: list[Running]
) -> None:
    host = hosting(begun, file_url, STUBBORN)
    kill(host.process.pid)
    host.said()
    assert file_told("cancel", host.run_id).code == 0
    # It gives the command a minute between TERM and KILL, and is killed meanwhile.
    lease = ("--set", "grace_ms=1000", "--set", "cancel_lease_ms=3600")
    first = started(begun, file_url, "supervise", *lease, "--interval", "0.25")
    wait_until(lambda: _leased(file_url, host.run_id), "the first supervisor holds the delivery")
    kill(first.process.pid)
    first.said()
    started(begun, file_url, "supervise", *SHORT, "--interval", "0.25")
    said = file_told("cancel", host.run_id, "--wait", "60", "--json")
    assert said.json["status"] == "cancelled"
    assert len(of_type(file_told, host.run_id, "run.cancel_dispatch_taken_over")) == 1
    (delivered,) = of_type(file_told, host.run_id, "run.cancel_dispatched")
    assert (delivered["dispatch_count"], delivered["escalation"]) == (2, "kill")
    marked_left = marked.living() - {running.process.pid for running in begun}
    assert marked_left == set()


def _leased(url: str, run_id: str) -> bool:
    with Ledger.open(url) as ledger:
        row = dispatch_of(ledger, run_id)
    return row is not None and row["status"] == "leased"


def test_the_only_cycle_of_an_idle_supervisor(ledger_told: Told) -> None:
    said = ledger_told("supervise", "--once", "--json")
    assert said.code == 0
    assert said.json == {
        "completion": {
            "seen": 0,
            "claimed": 0,
            "recorded": 0,
            "repeated": 0,
            "late": 0,
            "quarantined": 0,
            "kept": 0,
        },
        "deadlines": {"seen": 0, "claimed": 0, "requested": 0},
        "cancellation": {"seen": 0, "claimed": 0},
        "recovery": {"seen": 0, "claimed": 0, "swept": 0},
        "stop": {"seen": 0, "claimed": 0},
        "retry": {"seen": 0, "claimed": 0},
        "projections": {"seen": 0, "claimed": 0},
    }
    assert list(ledger_told("supervise", "--once", "--json", "--only", "cancel").json) == ["deadlines", "cancellation"]
    for only, part in (("complete", "completion"), ("recover", "recovery"), ("stop", "stop"), ("retry", "retry")):
        assert list(ledger_told("supervise", "--once", "--json", "--only", only).json) == [part]
    said = ledger_told("supervise", "--once")
    assert (said.code, said.out) == (0, "There was nothing to do.\n")
    assert ledger_told("work", "--once").out == "There was nothing to do.\n"


def test_the_gate_says_whether_new_runs_may_be_admitted(ledger_told: Told) -> None:
    said = ledger_told("supervise", "--once", "--gate")
    assert (said.code, said.err.splitlines()[0]) == (0, "runfacts: new runs may be admitted")
    said = ledger_told("work", "--once", "--gate")
    assert said.code == 0


def test_a_cancel_of_what_has_not_begun_ends_it_at_once(ledger_told: Told, database_url: str) -> None:
    with Ledger.open(database_url) as ledger:
        run_id = ledger.create(actor=Actor.user("ana"), task="t").run.run_id
    said = ledger_told("cancel", run_id, "--json")
    assert (said.code, said.json) == (0, {"run_id": run_id, "outcome": "accepted", "status": "cancelled"})
    again = ledger_told("cancel", run_id, "--json", "--wait", "1")
    assert (again.code, again.json["outcome"]) == (0, "already_terminal")
    with Ledger.open(database_url) as ledger:
        another = ledger.create(actor=Actor.user("ana"), task="t").run.run_id
    assert ledger_told("cancel", another).err == f"run {another}: nothing of it was running, and it has ended\n"


def test_who_waits_at_a_terminal_is_told_how_it_stands_and_in_vain_only_so_long(
    file_told: Told, file_url: str, marked: Marked
) -> None:
    assert not marked.living()
    with Ledger.open(file_url) as ledger:
        run_id = brought_to(ledger, "running").run_id
    ours, terminal = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        waiting = subprocess.Popen(
            [*COMMAND, "cancel", run_id, "--wait", "1"],
            env=environment(file_url, TERM="xterm"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=terminal,
        )
        os.close(terminal)
        shown = b""
        # The terminal is gone with its last user.
        with suppress(OSError):
            while written := screen.read(4_096):
                shown += written
        out, _ = waiting.communicate(timeout=DEADLINE_S)
    assert f"run {run_id}: it is asked to stop".encode() in shown
    assert b"waiting for its end: running, 0 s" in shown
    assert (waiting.returncode, out) == (1, b"")
    assert file_told("show", run_id, "--json").json["status"] == "running"


def test_a_cancel_of_nothing_is_not_found(ledger_told: Told) -> None:
    said = ledger_told("cancel", "019316d5-0000-7000-8000-00000000dead", "--json")
    assert (said.code, said.json["error"]["code"]) == (3, "not_found")
    assert ledger_told("cancel", "nonsense").code == 2


def test_a_supervisor_whose_reader_has_gone_ends_quietly(file_url: str, begun: list[Running]) -> None:
    supervisor = started(begun, file_url, "supervise", "--interval", "0.25", "--json")
    supervisor.line()
    assert supervisor.process.stdout is not None
    supervisor.process.stdout.close()
    code = supervisor.process.wait(DEADLINE_S)
    assert supervisor.process.stderr is not None
    assert (code, supervisor.process.stderr.read().splitlines()[1:]) == (141, [])


def test_an_interval_out_of_its_bounds_is_a_mistake_of_the_caller(file_told: Told) -> None:
    assert file_told("supervise", "--once", "--interval", "0.1").code == 2

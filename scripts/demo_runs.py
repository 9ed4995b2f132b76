"""
Real commands under a fresh ledger, and what was recorded of them.

Everything goes through the ``runfacts`` command, as a user would do it. The ledger stays where it is, so that whoever
has read the output can look at the same facts again. What does not turn out as promised ends the demo with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_DEADLINE_S = 30.0
_COMMAND = (sys.executable, "-m", "runfacts")
_TREE = """\
#!/bin/sh
# The first process ends on TERM. Its child ignores it; after a minute it gives up by itself.
sh -c 'trap "" TERM; echo $$; n=0; while [ $n -lt 600 ]; do sleep 0.1; n=$((n + 1)); done' &
wait
"""
_ONCE_MORE = "echo $$; [ ! -e again ] || exit 0; touch again; n=0; while [ $n -lt 600 ]; do sleep 0.1; n=$((n+1)); done"
"""A command that says its number and ends at once the second time."""
_AGAIN = ("attempt.claimed", "attempt.running", "run.running", "attempt.succeeded", "run.succeeded")
_SAFE_TWICE = ("--attempts", "2", "--retry-lost", "--replay-safe", "idempotent")
_FIRST_WORKER = ("--set", "grace_ms=3000", "--set", "cancel_lease_ms=6000")
"""The time between TERM and KILL, and how long others must leave a delivery to its holder."""
_SECOND_WORKER = ("--set", "grace_ms=200", "--set", "cancel_lease_ms=4000")

Fact = dict[str, Any]
"""A fact, as the audit trail has it."""


class NotAsPromised(Exception):
    """Something turned out otherwise than this product says."""


class Demo:
    """One demo in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        # Nothing that the user has set for another ledger counts here.
        own = {name: value for name, value in os.environ.items() if not name.startswith("RUNFACTS_")}
        self.environment = own | {"RUNFACTS_DB": self.url}
        self.runs: list[tuple[str, str]] = []
        self.workers = "", ""
        """Who held the delivery first, and who took it over."""

    def exec(self, what: str, *command: str, code: int) -> str:
        """Run a command under the ledger, show it, and give the id of its run."""
        say(f"$ runfacts exec --task {shlex.quote(what)} -- {shlex.join(command)}")
        ended = subprocess.run(
            [*_COMMAND, "exec", "--task", what, "--", *command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        say((ended.stdout + ended.stderr).rstrip())
        say(f"exit code {ended.returncode}\n")
        expect(ended.returncode == code, f"exit code {code} and not {ended.returncode}")
        return self.note(what, ended.stderr.partition("\n")[0])

    def note(self, what: str, first_line: str) -> str:
        """Keep the id that the first line on stderr gives."""
        expect(first_line.startswith("run "), f"a first line that names the run, and not {first_line!r}")
        run_id = first_line.removeprefix("run ").strip()
        self.runs.append((run_id, what))
        return run_id

    def show(self, run_id: str) -> dict[str, Any]:
        """Read a run."""
        read: dict[str, Any] = json.loads(self.read("show", run_id, "--json"))
        return read

    def read(self, *arguments: str) -> str:
        """Give what a command writes."""
        return subprocess.run(
            [*_COMMAND, *arguments], env=self.environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    def tell(self, *arguments: str) -> None:
        """Show a command and what it writes."""
        say(f"$ runfacts {shlex.join(arguments)}")
        sys.stdout.flush()
        subprocess.run([*_COMMAND, *arguments], env=self.environment, stderr=subprocess.STDOUT, check=True)
        say("")

    def lose_the_host(self) -> str:
        """Kill the host of a command that runs; the command ends later, and leaves a receipt."""
        go = self.folder / "go"
        # Gives up by itself after a minute, should this demo not live to say go.
        script = (
            "echo begun | tee -a began; n=0; "
            "until [ -e go ] || [ $n -ge 600 ]; do sleep 0.1; n=$((n + 1)); done; echo done; exit 3"
        )
        say(f"$ runfacts exec --task 'its host is killed' -- sh -c {shlex.quote(script)}")
        try:
            with self._started("exec", "--task", "its host is killed", "--", "sh", "-c", script) as host:
                first_line, begun = _first_lines(host)
            run_id = self.note("its host is killed", first_line)
            say(f"{first_line.rstrip()}\n{begun.rstrip()}")
            expect(begun == "begun\n", "that the command begins")
            say(f"Now the host is dead (kill -9). The run is {self.show(run_id)['status']}: nobody has seen its end.")
        finally:
            go.touch()
        receipts = self.folder / "ledger.db.runs"
        wait_until(lambda: any(receipts.glob("*.receipt")), "that the command ends and leaves a receipt")
        say("Its command has ended meanwhile, and its keeper has left a receipt. The next exec records it.\n")
        return run_id

    def lose_the_worker(self) -> str:
        """Cancel a tree of processes, kill the worker between TERM and KILL, and have another one take over."""
        what = "it does not stop easily"
        tree = self.folder / "tree.sh"
        tree.write_text(_TREE)
        say(f"$ cat tree.sh\n{_TREE}")
        say(f"$ runfacts exec --task {shlex.quote(what)} -- sh tree.sh")
        with self._started("exec", "--task", what, "--", "sh", tree.name) as host:
            first_line, line = _first_lines(host)
            host.kill()
        run_id, child = self.note(what, first_line), int(line)
        leader = _parent_of(child)
        say(f"{first_line.rstrip()}\nIts host is dead (kill -9), so that somebody else has to stop it.\n")
        self.tell("cancel", run_id, "--reason", "the demo wants to see it stop")

        say(f"$ runfacts supervise {shlex.join(_FIRST_WORKER)}")
        with self._started("supervise", "--interval", "0.25", *_FIRST_WORKER) as worker:
            first = _owner(worker)
            wait_until(lambda: not _lives(leader), "that the first process ends on TERM")
            worker.kill()
        run = self.show(run_id)
        expect((run["status"], _lives(child)) == ("running", True), "that the run goes on as long as the child lives")
        held = run["cancellation"]["dispatch"]
        expect(held["status"] == "leased", f"a delivery that is leased, and not {held['status']}")
        say(
            "It has sent TERM and is dead (kill -9). The tree's first process has ended, its child has not: the run is"
            " still running.\n"
        )
        self.tell("unproven")

        say(f"$ runfacts supervise {shlex.join(_SECOND_WORKER)}")
        with self._started("supervise", "--interval", "0.25", *_SECOND_WORKER) as worker:
            second = _owner(worker)
            self.tell("cancel", run_id, "--wait", f"{_DEADLINE_S:.0f}")
            expect(not _lives(child), "that the run ends only when the child is gone")
            worker.send_signal(signal.SIGTERM)
            expect(worker.wait(_DEADLINE_S) == 0, "that a worker ends well on SIGTERM")
        say("It has waited until the lease of the dead one was over, and the child is gone.\n")
        self.workers = first, second
        return run_id

    def lose_everything(self) -> str:
        """Kill a host, its keeper and the command; a worker finds out, and runs what may be run twice once more."""
        what = "all of it is killed"
        options = ("--task", what, *_SAFE_TWICE, "--set", "execution_lease_ms=2000")
        say(f"$ runfacts exec {shlex.join(options)} -- sh -c {shlex.quote(_ONCE_MORE)}")
        with self._started("exec", *options, "--", "sh", "-c", _ONCE_MORE) as host:
            first_line, line = _first_lines(host)
            run_id, command = self.note(what, first_line), int(line)
            # The host first: it would otherwise see that its keeper is gone.
            host.kill()
            os.kill(_parent_of(command), signal.SIGKILL)
            os.killpg(command, signal.SIGKILL)
        say(f"{first_line.rstrip()}\nHost, keeper and command are dead (kill -9). Nobody is left to say so.\n")
        self.tell("list", "--limit", "1")
        say("$ runfacts work")
        with self._started("work", "--interval", "0.25") as worker:
            _owner(worker)
            wait_until(lambda: self.show(run_id)["status"] == "succeeded", "that a worker runs it once more")
            worker.send_signal(signal.SIGTERM)
            expect(worker.wait(_DEADLINE_S) == 0, "that a worker ends well on SIGTERM")
        say("When the lease was over it has proven that nothing of the run lives, and run it again.\n")
        return run_id

    @contextmanager
    def _started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Have a command in the background; killed at the latest at the end of the block."""
        process = subprocess.Popen(
            [*_COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()


def _first_lines(host: subprocess.Popen[str]) -> tuple[str, str]:
    """Read the first lines of stderr and stdout."""
    if host.stdout is None or host.stderr is None:
        raise NotAsPromised("the host has no output")
    return host.stderr.readline(), host.stdout.readline()


def _owner(worker: subprocess.Popen[str]) -> str:
    """Show and give the name under which a worker supervises."""
    if worker.stderr is None:
        raise NotAsPromised("the worker has no output")
    line = worker.stderr.readline().rstrip()
    say(line)
    return line.partition(" as ")[2].partition(",")[0]


def _fields_of(pid: int) -> list[str]:
    """Give what the kernel says of a process, from its state on; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _lives(pid: int) -> bool:
    """Whether a process has not ended; one that nobody has waited for yet has."""
    return _fields_of(pid)[:1] not in ([], ["Z"], ["X"])


def _parent_of(pid: int) -> int:
    fields = _fields_of(pid)
    expect(len(fields) > 1, "that the tree lives")
    return int(fields[1])


def say(text: str) -> None:
    """Print a line."""
    print(text, flush=True)


def expect(holds: bool, promise: str) -> None:  # noqa: FBT001 - reads as a sentence where it is called
    """End the demo when a promise does not hold."""
    if not holds:
        raise NotAsPromised(f"promised was {promise}")


def wait_until(holds: Callable[[], bool], promise: str) -> None:
    """Wait for what has to happen."""
    deadline = time.monotonic() + _DEADLINE_S
    while not holds():
        expect(time.monotonic() < deadline, promise)
        time.sleep(0.02)


def main() -> int:
    """Run the demo; 0 if everything was as promised."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description="Runs real commands and shows what was recorded.")
    parser.add_argument("--into", type=Path, help="a folder for the ledger, which must not exist or be empty")
    given: Path | None = parser.parse_args().into
    folder = (given or Path(f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"{folder} is not empty")
    try:
        _play(Demo(folder))
    except (NotAsPromised, subprocess.CalledProcessError) as broken:
        print(f"\nNot as promised: {broken}", file=sys.stderr)
        return 1
    return 0


def _play(demo: Demo) -> None:
    say(f"A fresh ledger in {demo.folder}\n")

    say("--- Four commands, each a run of its own\n")
    good = demo.exec("it succeeds", "echo", "hello from a real process", code=0)
    seven = demo.exec("it exits with 7", "sh", "-c", "echo 'this will not do' >&2; exit 7", code=7)
    killed = demo.exec("it kills itself", "sh", "-c", "kill -TERM $$", code=128 + 15)
    orphan = demo.lose_the_host()
    last = demo.exec("it comes next", "true", code=0)

    attempt = demo.show(orphan)["attempts"][0]
    expect(attempt["exit_code"] == 3, f"exit code 3 by the receipt, and not {attempt['exit_code']}")  # noqa: PLR2004 - see the script
    began = (demo.folder / "began").read_text().split()
    expect(began == ["begun"], f"that it ran once, and not {len(began)} times")
    say("The receipt was recorded: the run whose host was killed has ended with exit code 3, and ran once.\n")

    say("--- A tree of processes is cancelled, and the worker that does it is killed\n")
    stubborn = demo.lose_the_worker()

    say("--- A host dies with its command, and a worker finds out\n")
    lost = demo.lose_everything()

    say("--- The board\n")
    demo.tell("list")

    say("--- What happened, fact by fact\n")
    for run_id, _ in demo.runs:
        demo.tell("audit", run_id)

    say("--- Everything computed anew from the facts\n")
    demo.tell("verify")
    ends = {good: {"exit_code": 0}, seven: {"exit_code": 7}, killed: {"signal": 15}, orphan: {"exit_code": 3}}
    facts = [json.loads(line) for line in demo.read("audit", "--json").splitlines()]
    _check(demo, facts, ends | {last: {"exit_code": 0}})
    _check_take_over(demo, [fact for fact in facts if fact["run_id"] == stubborn])
    _check_lost([fact for fact in facts if fact["run_id"] == lost])

    say(f"The ledger stays in {demo.folder}. To read all of this again:\n")
    script = Path(sys.executable).with_name("runfacts")
    runfacts = shlex.quote(str(script)) if script.exists() else f"{shlex.quote(sys.executable)} -m runfacts"
    say(f"  export RUNFACTS_DB={shlex.quote(demo.url)}")
    say(f"  {runfacts} audit --json")
    say(f"  {runfacts} show {orphan}")


def _check(demo: Demo, facts: list[Fact], ends: dict[str, dict[str, int]]) -> None:
    """See that the ledger says of each run what has happened, and that nothing of the trail is missing."""
    for run_id, what in demo.runs:
        if run_id not in ends:
            continue
        trail = [fact for fact in facts if fact["run_id"] == run_id]
        expect([fact["sequence"] for fact in trail] == list(range(1, 10)), f"a trail of 9 facts of the run {what!r}")
        end = trail[-1]
        expect(end["payload"] == ends[run_id], f"an end of {ends[run_id]} of the run {what!r}, not {end['payload']}")


def _check_take_over(demo: Demo, trail: list[Fact]) -> None:
    """See that the trail shows who held the delivery, who took it over, and that the run ended after it."""
    first, second = demo.workers
    requested, taken, delivered, *ends = trail[-5:]
    expect(
        [fact["type"] for fact in (requested, taken, delivered, *ends)]
        == [
            "run.cancel_requested",
            "run.cancel_dispatch_taken_over",
            "run.cancel_dispatched",
            "attempt.cancelled",
            "run.cancelled",
        ],
        "a trail that shows request, take-over, delivery and end",
    )
    expect(taken["payload"]["previous_owner"] == first, f"that {first} held the delivery before")
    expect({taken["actor_id"], delivered["actor_id"]} == {second}, f"that {second} took it over")
    expect(delivered["payload"]["escalation"] == "kill", "that the child needed KILL")


def _check_lost(trail: list[Fact]) -> None:
    """See that the trail shows the proof, the retry and the end."""
    words = [fact["type"] for fact in trail if fact["type"] not in {"attempt.starting", "run.dispatching"}]
    expect(
        words[6:] == ["run.lost", "run.retry_wait", "run.queued", *_AGAIN],
        f"a trail of the loss, the retry and the end, and not {words[6:]}",
    )
    proof = next(fact for fact in trail if fact["type"] == "attempt.lost")
    expect(proof["payload"] == {"evidence": "not_running", "provider_type": "local"}, "a proof that nothing lived")


if __name__ == "__main__":
    sys.exit(main())

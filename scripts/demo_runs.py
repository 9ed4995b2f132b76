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
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_DEADLINE_S = 30.0
_COMMAND = (sys.executable, "-m", "runfacts")


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
        subprocess.run([*_COMMAND, *arguments], env=self.environment, check=True)
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
        host = subprocess.Popen(
            [*_COMMAND, "exec", "--task", "its host is killed", "--", "sh", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            with host:
                try:
                    first_line, begun = _first_lines(host)
                finally:
                    host.kill()
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


def _first_lines(host: subprocess.Popen[str]) -> tuple[str, str]:
    """Read the first lines of stderr and stdout."""
    if host.stdout is None or host.stderr is None:
        raise NotAsPromised("the host has no output")
    return host.stderr.readline(), host.stdout.readline()


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

    say("--- The board\n")
    demo.tell("list")

    say("--- What happened, fact by fact\n")
    for run_id, _ in demo.runs:
        demo.tell("audit", run_id)

    say("--- Everything computed anew from the facts\n")
    demo.tell("verify")
    ends = {good: {"exit_code": 0}, seven: {"exit_code": 7}, killed: {"signal": 15}, orphan: {"exit_code": 3}}
    _check(demo, ends | {last: {"exit_code": 0}})

    say(f"The ledger stays in {demo.folder}. To read all of this again:\n")
    script = Path(sys.executable).with_name("runfacts")
    runfacts = shlex.quote(str(script)) if script.exists() else f"{shlex.quote(sys.executable)} -m runfacts"
    say(f"  export RUNFACTS_DB={shlex.quote(demo.url)}")
    say(f"  {runfacts} audit --json")
    say(f"  {runfacts} show {orphan}")


def _check(demo: Demo, ends: dict[str, dict[str, int]]) -> None:
    """See that the ledger says of each run what has happened, and that nothing of the trail is missing."""
    facts = [json.loads(line) for line in demo.read("audit", "--json").splitlines()]
    for run_id, what in demo.runs:
        trail = [fact for fact in facts if fact["run_id"] == run_id]
        expect([fact["sequence"] for fact in trail] == list(range(1, 10)), f"a trail of 9 facts of the run {what!r}")
        end = trail[-1]
        expect(end["payload"] == ends[run_id], f"an end of {ends[run_id]} of the run {what!r}, not {end['payload']}")


if __name__ == "__main__":
    sys.exit(main())

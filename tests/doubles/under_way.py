"""The command ``runfacts`` under way in a process of its own, whose output can be read meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

from process_watch import DEADLINE_S, kill, wait_until
from told import COMMAND, environment


class UnderWay:
    """One call. What it writes goes to files, so that no pipe can stop it."""

    def __init__(self, place: Path, url: str, *arguments: str) -> None:
        number = len(list(place.glob("*.err")))
        self._out, self._err = place / f"{number}.out", place / f"{number}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [*COMMAND, *arguments], env=environment(url), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def out(self) -> str:
        """What it has written to stdout so far."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """What it has written to stderr so far."""
        return self._err.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it has written to stdout so far, an object a line; the last line may be unfinished."""
        return [json.loads(line) for line in self.out.splitlines(keepends=True) if line.endswith("\n")]

    def counted(self, part: str, counter: str) -> int:
        """Give what its cycles counted so far."""
        return sum(line[part].get(counter, 0) for line in self.lines)

    def says(self, words: str) -> None:
        """Wait until it says something on stderr."""
        wait_until(lambda: words in self.err or self._process.poll() is not None, f"it says {words!r}")
        assert words in self.err

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        kill(self._process.pid, number)

    def code(self) -> int:
        """Wait for its end, and give its exit code."""
        return self._process.wait(DEADLINE_S)

    def end(self) -> None:
        """Kill it, if it is still there."""
        if self._process.poll() is None:
            kill(self._process.pid)
        self._process.wait(DEADLINE_S)


def left_by_a_killed_host(url: str, *options: str) -> tuple[str, int]:
    """Let ``exec`` host a command that stays, kill it, and give the run and the number of the command's process."""
    host = subprocess.Popen(
        [*COMMAND, "exec", *options, "--", "sh", "-c", "echo $$; exec sleep 600"],
        env=environment(url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    assert host.stderr is not None
    run_id = host.stderr.readline().removeprefix("run ").strip()
    leader = int(host.stdout.readline())
    kill(host.pid)
    host.communicate(timeout=DEADLINE_S)
    return run_id, leader

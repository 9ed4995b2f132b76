"""Workers in processes of their own, started by a test: what they say, and how they are thawed and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

from process_watch import DEADLINE_S, kill, state_of, wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/acceptance/processes"
ENVIRONMENT_PATH = f"{ROOT / 'src'}:{ROOT / 'tests/doubles'}"


@dataclass(frozen=True)
class Job:
    """One worker; see ``workers_program.Job``."""

    name: str
    url: str
    lease_ms: int = 30_000
    grace_ms: int = 200
    fault: str | None = None
    phase: str | None = None
    step: str | None = None
    clock: str | None = None


@dataclass(frozen=True)
class RecoveryJob:
    """One worker or host; see ``recovery_program.Job``."""

    name: str
    url: str
    role: str = "supervise"
    settings: dict[str, int] = field(default_factory=dict)
    machine_id: str | None = None
    run_id: str = ""
    argv: tuple[str, ...] = ()
    fault: str | None = None
    call: str | None = None
    step: str | None = None
    duties: tuple[str, ...] = ()
    answers: str | None = None


class Workers:
    """Worker processes under way."""

    def __init__(self, jobs: Sequence[Job | RecoveryJob], program: str, prefix: tuple[str, ...] = ()) -> None:
        self._said: list[dict[str, Any]] = []
        self._program = subprocess.Popen(
            [*prefix, sys.executable, PROGRAMS / program, json.dumps([asdict(job) for job in jobs])],
            env=os.environ | {"PYTHONPATH": ENVIRONMENT_PATH},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = Thread(target=self._listen, daemon=True)
        self._reader.start()

    def all(self, event: str, worker: str | None = None) -> list[dict[str, Any]]:
        """Give what was said about one kind of event so far, by one worker or by all."""
        return [said for said in tuple(self._said) if said["event"] == event and worker in {None, said["worker"]}]

    def first(self, event: str, worker: str) -> dict[str, Any]:
        """Wait until a worker says something for the first time."""
        wait_until(lambda: self.all(event, worker), f"{worker} says that it {event}")
        return self.all(event, worker)[0]

    def owner(self, worker: str) -> str:
        """Wait until a worker has begun, and give the name that it claims under."""
        owner: str = self.first("begins", worker)["owner"]
        return owner

    def pid(self, worker: str) -> int:
        """Wait until a worker has begun, and give its number."""
        pid: int = self.first("begins", worker)["pid"]
        return pid

    def sent(self, worker: str) -> list[str]:
        """Give the signals that a worker sent and that somebody took."""
        return [said["signal"] for said in self.all("sent", worker) if said["answer"] == "accepted"]

    def counted(self, worker: str, counter: str) -> int:
        """Give what a worker's cycles counted of one kind."""
        return sum(said["counters"].get(counter, 0) for said in self.all("cycle", worker))

    def counted_by(self, worker: str, part: str, counter: str) -> int:
        """Give the same for one part of the cycles, where they have several."""
        return self.counted(worker, f"{part}.{counter}")

    def counts(self, worker: str, part: str, counter: str, at_least: int = 1) -> None:
        """Wait until it has counted so many."""
        wait_until(lambda: self.counted_by(worker, part, counter) >= at_least, f"{worker} counts {at_least} {counter}")

    def next_cycle(self, worker: str) -> None:
        """Wait until a worker has ended one more cycle from its beginning on."""
        # The one under way may end first.
        ended = len(self.all("cycle", worker)) + 2
        wait_until(lambda: len(self.all("cycle", worker)) >= ended, f"{worker} goes on with its cycles")

    def kill(self, worker: str) -> None:
        """Kill a worker, if it has not ended by itself, and wait until it has."""
        if not self.all("ended", worker):
            kill(self.pid(worker))
        self.first("ended", worker)

    def freeze(self, worker: str) -> None:
        """Stop a worker, wherever it is."""
        kill(self.pid(worker), signal.SIGSTOP)
        wait_until(lambda: state_of(self.pid(worker)) == "T", f"{worker} stands still")

    def thaw(self, worker: str) -> None:
        """Let a worker go on that stops itself, once it stands still."""
        wait_until(lambda: state_of(self.pid(worker)) == "T", f"{worker} stands still")
        kill(self.pid(worker), signal.SIGCONT)

    def end(self) -> dict[str, int]:
        """Ask everybody to end, wait for it, and give their exit codes."""
        self._signal_those_left(signal.SIGTERM)
        self._program.wait(DEADLINE_S)
        self._reader.join()
        return {said["worker"]: said["code"] for said in self.all("ended")}

    def close(self) -> None:
        """Kill whoever is left."""
        if self._program.poll() is None:
            self._signal_those_left(signal.SIGKILL)
            kill(self._program.pid)
            self._program.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self._program.stdout is not None
        self._program.stdout.close()

    def _signal_those_left(self, number: signal.Signals) -> None:
        # The program reaps them: the number of one that has ended may be another process's by now.
        ended = {said["worker"] for said in self.all("ended")}
        for begun in self.all("begins"):
            if begun["worker"] not in ended:
                kill(begun["pid"], number)

    def _listen(self) -> None:
        assert self._program.stdout is not None
        for line in self._program.stdout:
            self._said.append(json.loads(line))


@contextmanager
def working(*jobs: Job) -> Iterator[Workers]:
    """Run workers that deliver cancellations within the block."""
    yield from _running(Workers(jobs, "workers_program.py"))


@contextmanager
def recovering(*jobs: RecoveryJob, prefix: tuple[str, ...] = ()) -> Iterator[Workers]:
    """Run hosts and workers that recover within the block; ``prefix`` is what starts them."""
    yield from _running(Workers(jobs, "recovery_program.py", prefix))


def _running(workers: Workers) -> Iterator[Workers]:
    try:
        yield workers
    finally:
        workers.close()

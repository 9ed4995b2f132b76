"""
Workers in processes of their own that deliver cancellations, each with a fault at a place that the test names.

Usage: ``python workers_program.py JOBS`` with a JSON list of ``Job`` fields. One process is forked for each, once the
product is imported. They and their parent say what happens, one JSON object a line; a worker ends when it gets SIGTERM.

A fault is met once. ``kill`` is SIGKILL, ``freeze`` SIGSTOP; ``cut`` takes the database away and lets the worker go
on: on SQLite the kernel refuses every further write to a file, on PostgreSQL the worker's sessions are ended and it may
not log in again.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from forked_jobs import Said, fork_each
from runfacts import Ledger
from runfacts.domain.cancellation.supervisor import Diagnostic, SupervisorReport
from runfacts.domain.limits import Settings
from runfacts.infrastructure.api.cancellation_delivery import ClaimOfDispatch, SettleAnswer
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.pidfds import Pidfds, Sent
from stepped_clock import SteppedClock

INTERVAL_MS: Final = 250


@dataclass(frozen=True)
class Job:
    """One worker."""

    name: str
    url: str
    lease_ms: int
    grace_ms: int
    fault: str | None = None
    """``kill``, ``freeze`` or ``cut``."""
    phase: str | None = None
    """During what it is met: ``claim``, ``settle``, or neither of the two."""
    step: str | None = None
    """At which step."""
    clock: str | None = None
    """The file that says by how much the wall clock is off; this machine's own clock if left out."""


class SayingPidfds(Pidfds):
    """Sends as the kernel does, and says what was sent."""

    def __init__(self, say: Said) -> None:
        self._say = say

    def send(self, pidfd: int, number: signal.Signals, *, group: bool = False) -> Sent:
        """See ``Pidfds``."""
        sent = super().send(pidfd, number, group=group)
        at_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        self._say("sent", signal=number.name, answer=sent.value, at_boot_ms=at_ms)
        return sent


class PhasedLedger(Ledger):
    """A ledger that knows during which command of a delivery a step is reached."""

    phase: str | None = None

    def claim_dispatch(self, *arguments: Any, **more: Any) -> ClaimOfDispatch:  # noqa: ANN401 - those of the ledger
        """See ``Ledger``."""
        self.phase = "claim"
        self.database.steps.reached("asked")
        try:
            return super().claim_dispatch(*arguments, **more)
        finally:
            self.phase = None

    def settle_dispatch(self, *arguments: Any, **more: Any) -> SettleAnswer:  # noqa: ANN401 - as above
        """See ``Ledger``."""
        self.phase = "settle"
        try:
            return super().settle_dispatch(*arguments, **more)
        finally:
            self.phase = None


class Fault:
    """Steps that meet one fault, once."""

    def __init__(self, job: Job, say: Said) -> None:
        self.ledger: PhasedLedger | None = None
        self._job = job
        self._say = say
        self._met = False

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        if self._met or self.ledger is None or (self.ledger.phase, name) != (self._job.phase, self._job.step):
            return
        self._met = True
        self._say("reached")
        _FAULTS[str(self._job.fault)](self._job.url)


def cut(url: str) -> None:
    """Take the database away from this process, now and for ever."""
    if url.startswith("sqlite"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        return
    import psycopg
    from psycopg import sql

    role = urlsplit(url).username
    assert role is not None
    with psycopg.connect(url.replace(f"//{role}@", "//postgres@"), autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER ROLE {} NOLOGIN").format(sql.Identifier(role)))
        connection.execute("SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE usename = %s", [role])


_FAULTS: Final[dict[str, Callable[[str], None]]] = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    # To this very thread: sent to the process, another one may take it and this one run on for a moment.
    "freeze": lambda _: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "cut": cut,
}


def work(job: Job) -> None:
    """Deliver cancellations until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    say = Said(job.name)
    fault = Fault(job, say)

    def failed(diagnostic: Diagnostic) -> None:
        say("failed", error=diagnostic.error)

    def counted(report: SupervisorReport) -> None:
        say("cycle", counters=report.counters["cancellation"])

    clock = None if job.clock is None else SteppedClock(Path(job.clock))
    settings = Settings.from_sources({"cancel_lease_ms": job.lease_ms, "grace_ms": job.grace_ms}, os.environ)
    with PhasedLedger.open(job.url, clock=clock, steps=fault, settings=settings) as ledger:
        fault.ledger = ledger
        pidfds = SayingPidfds(say)
        controller = LocalController(ledger.machine(), grace_ms=job.grace_ms, pidfds=pidfds, steps=fault)
        supervision = ledger.supervise(
            controllers=[controller],
            local=False,
            interval_ms=INTERVAL_MS,
            on_cycle=counted,
            on_diagnostic=failed,
        )
        say("begins", owner=supervision.owner)
        with supervision:
            signal.sigwait({signal.SIGTERM})


def main() -> None:
    """Fork the processes that are asked for."""
    fork_each([Job(**fields) for fields in json.loads(sys.argv[1])], work)


if __name__ == "__main__":
    main()

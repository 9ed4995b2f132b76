"""
Hosts and recovering workers in processes of their own, each with a fault at a place that the test names.

Usage: ``python recovery_program.py JOBS`` with a JSON list of ``Job`` fields. One process is forked for each, once the
product is imported. They and their parent say what happens, one JSON object a line; a worker ends when it gets SIGTERM,
a host with its Run.

A fault is met once, ``before`` or ``after`` a call of the ledger or of the examiner, or at a step within it. ``kill``
is SIGKILL, ``freeze`` SIGSTOP.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from forked_jobs import Said, fork_each
from runfacts import Actor, Ledger
from runfacts.domain.cancellation.supervisor import Diagnostic, SupervisorReport
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking, Unknown
from runfacts.infrastructure.examiner import AttemptExaminer
from runfacts.infrastructure.processes.host import LocalHost
from runfacts.infrastructure.processes.hosted import Command
from runfacts.infrastructure.processes.launcher import Launcher

INTERVAL_MS: Final = 250
CALLS: Final = {
    Ledger: ("renew", "claim_recoveries", "recovery_snapshot", "apply_lost", "apply_stopped", "settle_recovery"),
    AttemptExaminer: ("has_receipt", "examine"),
}
"""Where faults are met."""


@dataclass(frozen=True)
class Job:
    """One process."""

    name: str
    url: str
    role: str
    """``host``, ``supervise`` or ``work``."""
    settings: dict[str, int] = field(default_factory=dict)
    machine_id: str | None = None
    run_id: str = ""
    """What a host hosts."""
    argv: tuple[str, ...] = ()
    fault: str | None = None
    """``kill`` or ``freeze``."""
    call: str | None = None
    """During which call it is met; during none, where it is left out."""
    step: str | None = None
    """At which step, ``before`` or ``after``."""
    duties: tuple[str, ...] = ()
    """What this worker does, everything if left out."""
    answers: str | None = None
    """The directory where this worker's provider of the executor type ``batch`` finds what to answer."""


class Faults:
    """Steps that meet one fault, once, in the thread that makes the call."""

    def __init__(self, job: Job, say: Said) -> None:
        self._job = job
        self._say = say
        self._here = threading.local()
        self._met = False

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        call = getattr(self._here, "call", None)
        if call is not None:
            self._here.steps.append(name)
        if self._met or self._job.fault is None or (call, name) != (self._job.call, self._job.step):
            return
        self._met = True
        self._say("reached")
        if self._job.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        # To this very thread: sent to the process, another one may take it and this one run on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def around(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Say what a call answers, and meet the fault at its side."""

        @functools.wraps(call)
        def called(*arguments: object, **more: object) -> object:
            self._here.call, self._here.steps = name, []
            try:
                self.reached("before")
                answer = call(*arguments, **more)
                self.reached("after")
            finally:
                self._here.call = None
            if name.startswith("apply"):
                self._say(name, answer=type(answer).__name__, steps=self._here.steps)
            return answer

        return called


class AnswerFromFiles:
    """A provider that waits until somebody writes down what it is to answer."""

    executor_type = "batch"
    required = frozenset[str]()

    def __init__(self, root: Path, say: Said) -> None:
        self._root = root
        self._say = say

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        del timeout_ms
        self._say("asked", attempt=target.attempt_id)
        file = self._root / target.attempt_id
        while not cancelled.is_set():
            if file.exists() and (word := file.read_text()):
                return Evidence.running() if word == "running" else Evidence.not_running()
            time.sleep(0.01)
        return Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)


def host(job: Job, ledger: Ledger, faults: Faults, say: Said) -> None:
    """Host one Run."""
    launcher = Launcher(ledger.machine(), gate_timeout_ms=60_000, steps=faults)
    lease_ms = ledger.settings.execution_lease_ms
    hosting = LocalHost(ledger, launcher, ledger.places(), worker_id=job.name, lease_ms=lease_ms, steps=faults)
    say("begins")
    outcome = hosting.run(job.run_id, Command(tuple(job.argv)), actor=Actor.executor("local"))
    say("outcome", type=type(outcome).__name__)


def work(job: Job, ledger: Ledger, say: Said) -> None:
    """Supervise, or work, until SIGTERM."""

    def failed(diagnostic: Diagnostic) -> None:
        say("failed", part=diagnostic.part, error=diagnostic.error, detail=diagnostic.detail)

    def counted(report: SupervisorReport) -> None:
        say("cycle", counters={f"{part}.{name}": n for part, of in report.counters.items() for name, n in of.items()})

    providers = [] if job.answers is None else [AnswerFromFiles(Path(job.answers), say)]
    begin: Any = ledger.work if job.role == "work" else ledger.supervise
    begun = begin(
        providers=providers,
        duties=job.duties or None,
        interval_ms=INTERVAL_MS,
        on_cycle=counted,
        on_diagnostic=failed,
    )
    say("begins", owner=begun.owner)
    with begun:
        signal.sigwait({signal.SIGTERM})


def run(job: Job) -> None:
    """Do one job."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if job.role != "host" else set())
    say = Said(job.name)
    faults = Faults(job, say)
    for kind, calls in CALLS.items():
        for name in calls:
            setattr(kind, name, faults.around(getattr(kind, name), name))
    settings = Settings(**job.settings)
    with Ledger.open(job.url, machine_id=job.machine_id, steps=faults, settings=settings) as ledger:
        if job.role == "host":
            host(job, ledger, faults, say)
        else:
            work(job, ledger, say)


def main() -> None:
    """Fork the processes that are asked for."""
    fork_each([Job(**fields) for fields in json.loads(sys.argv[1])], run)


if __name__ == "__main__":
    main()

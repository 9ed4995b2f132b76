"""One run that a process of its own hosts, to be killed somewhere, and what must hold whatever was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from process_watch import DEADLINE_S, Marked, kill
from runfacts import Ledger
from runfacts.domain.actors import Actor
from runfacts.domain.views import AttemptView, RunView
from runfacts.infrastructure.processes.collect import CollectedReceipts
from runfacts.infrastructure.processes.host import LocalHost
from runfacts.infrastructure.processes.hosted import Command, NotHosted
from runfacts.infrastructure.processes.launcher import Launcher

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests/acceptance/processes"
EXIT_CODE = 7
"""What the command exits with."""


@dataclass
class Scene:
    """One queued run and its host."""

    root: Path
    url: str
    marked: Marked
    run_id: str = field(init=False)
    host: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        """Queue the run."""
        self.root.mkdir(exist_ok=True)
        (self.root / "steps").mkdir()
        with Ledger.open(self.url) as ledger:
            self.run_id = ledger.create(actor=Actor.user("ana"), task="crash").run.run_id
            ledger.queue(self.run_id, actor=Actor.user("ana"))

    @property
    def command(self) -> tuple[str, ...]:
        """The command, which counts how often it ran."""
        return (sys.executable, str(PROGRAMS / "counting_command.py"), self.url, str(self.root / "runs"))

    def begin(self, **settings: object) -> subprocess.Popen[str]:
        """Start the host."""
        arguments = {"root": str(self.root), "url": self.url, "run_id": self.run_id, "argv": self.command} | settings
        self.host = subprocess.Popen(
            [sys.executable, PROGRAMS / "host_program.py", json.dumps(arguments)],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            text=True,
        )
        return self.host

    def end(self) -> None:
        """End the host, if it is still there."""
        if self.host is not None and self.host.poll() is None:
            kill(self.host.pid)
            self.host.communicate(timeout=DEADLINE_S)

    def said(self) -> dict[str, Any]:
        """Give what the host said at its end."""
        assert self.host is not None
        output, _ = self.host.communicate(timeout=DEADLINE_S)
        assert self.host.returncode == 0
        said: dict[str, Any] = json.loads(output.splitlines()[-1])
        return said

    def host_is_killed(self) -> None:
        """Wait for the host's end by SIGKILL."""
        assert self.host is not None
        self.host.communicate(timeout=DEADLINE_S)
        assert self.host.returncode == -9

    def runs(self) -> list[str]:
        """Give a line for each time that the command ran."""
        path = self.root / "runs"
        return path.read_text().splitlines() if path.exists() else []

    def run(self) -> RunView:
        """Give the run as it stands."""
        with Ledger.open(self.url) as ledger:
            return ledger.run(self.run_id)

    def attempt(self) -> AttemptView:
        """Give the one attempt as it stands."""
        [attempt] = self.run().attempts
        return attempt

    def settle(self) -> CollectedReceipts:
        """Wait until nothing runs, collect what was left, and check what must hold after every crash (R10.1, R10.2)."""
        self.marked.wait_until_gone()
        with Ledger.open(self.url) as ledger:
            collected = ledger.collect_receipts(actor=Actor.worker("collector"))
            run = ledger.run(self.run_id)
            # Never a process without a committed handle, never twice.
            assert self.runs() in ([], ["recorded"])
            for attempt in run.attempts:
                execution = ledger.execution(attempt.attempt_id)
                if attempt.status == "running":
                    assert execution.handle is not None
                if attempt.status in {"claimed", "starting"}:
                    assert execution.handle is None
                    assert self.runs() == []
                # Never a wrong end.
                if attempt.finished_at_ms is not None and self.runs():
                    assert (attempt.status, attempt.exit_code, attempt.signal) == ("failed", EXIT_CODE, None)
                if not self.runs():
                    assert attempt.exit_code is None
            # Nothing more comes of it, nobody can run it again once it was claimed, and the facts are sound.
            assert ledger.collect_receipts(actor=Actor.worker("collector")) == CollectedReceipts()
            if run.attempts:
                again = LocalHost(ledger, Launcher(ledger.machine()), ledger.places())
                outcome = again.run(self.run_id, Command(self.command), actor=Actor.executor("local"))
                assert isinstance(outcome, NotHosted)
            report = ledger.verify()
            assert report.clean, report.differences
        return collected

"""
A host in a process of its own, for tests that kill it.

Usage: ``python host_program.py SETTINGS`` with a JSON object: ``root``, ``run_id``, ``argv``; ``kill_at`` or
``pause_at`` name a step at which the process kills, or stops, itself; ``keeper_stops_at`` are the keeper's. The
last line says what came out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from journal_ledger import JournalLedger
from runfacts.domain.actors import Actor
from runfacts.infrastructure.processes.host import Command, Ended, LocalHost
from runfacts.infrastructure.processes.launcher import KeeperSteps, Launcher
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import Places


class SignalAtStep:
    """Signals this process at one named step, after saying so in a file."""

    def __init__(self, step: str | None, number: signal.Signals, marker: Path) -> None:
        self.step = step
        self.number = number
        self.marker = marker

    def reached(self, name: str) -> None:
        """See Steps."""
        if name == self.step:
            self.marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), self.number)


def main() -> None:
    """Host one run."""
    settings = json.loads(sys.argv[1])
    root = Path(settings["root"])
    kill_at, pause_at = settings.get("kill_at"), settings.get("pause_at")
    number = signal.SIGKILL if kill_at else signal.SIGSTOP
    steps = SignalAtStep(kill_at or pause_at, number, root / "host-step")
    stops_at = frozenset(settings.get("keeper_stops_at", ()))
    launcher = Launcher(
        MachineIdentity.of_this_process(),
        gate_timeout_ms=60_000,
        steps=steps,
        keeper_steps=KeeperSteps(root / "steps", stops_at) if stops_at else None,
    )
    host = LocalHost(JournalLedger(root / "journal"), launcher, Places.beside_file(root / "ledger.db"), steps=steps)
    outcome = host.run(settings["run_id"], Command(tuple(settings["argv"])), actor=Actor.executor("local"))
    said: dict[str, str | int | None] = {"type": type(outcome).__name__}
    if isinstance(outcome, Ended):
        said |= {"exit_code": outcome.outcome.exit_code, "signal": outcome.outcome.signal}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()

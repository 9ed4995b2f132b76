"""
A host in a process of its own, for tests that kill it.

Usage: ``python host_program.py SETTINGS`` with a JSON object: ``url``, ``root``, ``run_id``, ``argv``; ``kill_at`` or
``pause_at``, a step and the how-manieth time it is reached, at which the process kills, or stops, itself;
``keeper_stops_at`` are the keeper's. The last line says what came out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from runfacts import Ledger
from runfacts.domain.actors import Actor
from runfacts.infrastructure.processes.host import LocalHost
from runfacts.infrastructure.processes.hosted import Command, Ended
from runfacts.infrastructure.processes.launcher import KeeperSteps, Launcher
from runfacts.infrastructure.steps import NO_STEPS, Steps
from runfacts.testing.steps import CallAt, KillAt


def steps_of(settings: dict[str, Any]) -> Steps:
    """Give the steps at which this process is to be killed or stopped."""
    if "kill_at" in settings:
        name, nth = settings["kill_at"]
        return KillAt(name, nth=nth)
    if "pause_at" in settings:
        name, nth = settings["pause_at"]

        def pause() -> None:
            (Path(settings["root"]) / "host-step").touch()
            os.kill(os.getpid(), signal.SIGSTOP)

        return CallAt(name, pause, nth=nth)
    return NO_STEPS


def main() -> None:
    """Host one run."""
    settings = json.loads(sys.argv[1])
    steps = steps_of(settings)
    stops_at = frozenset(settings.get("keeper_stops_at", ()))
    with Ledger.open(settings["url"], steps=steps) as ledger:
        launcher = Launcher(
            ledger.machine(),
            gate_timeout_ms=60_000,
            steps=steps,
            keeper_steps=KeeperSteps(Path(settings["root"]) / "steps", stops_at) if stops_at else None,
        )
        host = LocalHost(ledger, launcher, ledger.places(), steps=steps)
        outcome = host.run(settings["run_id"], Command(tuple(settings["argv"])), actor=Actor.executor("local"))
    said: dict[str, str | int | None] = {"type": type(outcome).__name__}
    if isinstance(outcome, Ended):
        said |= {"exit_code": outcome.outcome.exit_code, "signal": outcome.outcome.signal}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()

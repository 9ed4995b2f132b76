"""
A process in a PID namespace of its own, and a worker beside it.

Usage: ``python namespace_guest.py ROOT``. It says the process's handle, then reads one handle of a process outside and
says what stopping and looking for that one gives; it ends, and its namespace with it, when its input does.
"""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.machine import MachineIdentity
from stop_scene import StopScene, TimeIs


def main() -> None:
    """Be the guest."""
    machine = MachineIdentity.of_this_process("rack-7")
    scene = StopScene(Path(sys.argv[1]), machine)
    handle = scene.handle(scene.start_logging("guest"))
    say({"handle": handle.encode(), "attempt_id": scene.attempt_id})
    for line in sys.stdin:
        other = ProcessHandle.decode(line.strip())
        target = replace(scene.target(other), scope=other.scope)
        result = LocalController(machine).stop(target, TimeIs())
        evidence = LocalEvidence(machine).inspect(scene.asked(other), timeout_ms=5_000, cancelled=threading.Event())
        say({"result": result.result, "evidence": evidence.liveness, "reason": str(evidence.reason)})
    scene.end()


def say(said: dict[str, str]) -> None:
    """Say one line."""
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

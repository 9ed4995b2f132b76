"""
Stopping a process whose number was used again, in a PID namespace of its own, where the next number can be chosen.

Usage: ``python namespace_program.py SCENE/HOW ROOT``; the output is one JSON object. HOW is ``group`` or ``members``.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

from number_reuse import Reuse
from process_watch import wait_until
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.infrastructure.steps import NO_STEPS, Steps
from runfacts.testing.steps import CallAt
from stop_scene import RecordingPidfds, StopScene, TimeIs


def main() -> None:
    """Play one scene."""
    what, _, how = sys.argv[1].partition("/")
    machine = MachineIdentity.of_this_process()
    scene = StopScene(Path(sys.argv[2]), machine)
    pidfds = RecordingPidfds()
    steps: Steps = NO_STEPS
    if what == "foreign-proc":
        # The number that this namespace gives, where /proc shows another process or none under it.
        impostor = scene.start_logging("log", cookie=False)
        start_ticks = next(stat.start_ticks for stat in map(ProcFs().stat, ProcFs().pids()) if stat is not None)
        handle = ProcessHandle(
            machine.machine_id, machine.boot_id, machine.pid_namespace, machine.time_namespace, impostor.pid,
            start_ticks, None, impostor.pid,
        )  # fmt: skip
    else:
        reuse = Reuse(scene)
        handle = reuse.handle
        if what == "reused-between":
            steps = CallAt("stop:after:proof", reuse.change_hands)
        else:
            reuse.change_hands()
        if what == "same-tick":
            stat = ProcFs().stat(reuse.impostor.pid)
            assert stat is not None
            handle = replace(handle, start_ticks=stat.start_ticks)
    controller = LocalController(machine, pidfds=pidfds, group_signals=how == "group", steps=steps)
    result = controller.stop(scene.target(handle), TimeIs())
    evidence = LocalEvidence(machine).inspect(scene.asked(handle), timeout_ms=5_000, cancelled=threading.Event())
    if what != "foreign-proc":
        impostor = reuse.impostor
    # Whatever had been sent would be written down by now: a signal of our own comes after it.
    impostor.send_signal(signal.SIGUSR1)
    wait_until(lambda: "SIGUSR1" in scene.log("log") or impostor.poll() is not None, "it has written down everything")
    said = {
        "same_number": impostor.pid == handle.pid,
        "result": result.result,
        "escalation": result.escalation,
        "sent": [number.name for number, _ in pidfds.sent],
        "impostor_log": [name for name in scene.log("log") if name != "SIGUSR1"],
        "impostor_alive": impostor.poll() is None,
        "evidence": [evidence.liveness, evidence.reason],
    }
    scene.end()
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()

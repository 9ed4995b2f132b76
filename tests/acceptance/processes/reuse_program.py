"""
A supervisor's cycle while the number of the process to be stopped changes hands, in a PID namespace of its own.

Usage: ``python reuse_program.py before|between ROOT``: the number has a new owner before the cycle, or gets it between
proof and signal. The output is one JSON object.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from number_reuse import Reuse
from process_watch import wait_until
from runfacts import Actor, Claimed, Ledger
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.testing.steps import CallAt
from stop_scene import StopScene

CYCLES = 3


def main() -> None:
    """Play one scene."""
    when, root = sys.argv[1], Path(sys.argv[2])
    machine = MachineIdentity.of_this_process()
    reuse = Reuse(StopScene(root, machine))
    host = Actor.executor("local")
    steps = CallAt("stop:after:proof", reuse.change_hands)
    with Ledger.open(f"sqlite:///{root / 'ledger.db'}", steps=steps) as ledger:
        run_id = ledger.create(actor=host, task="reuse").run.run_id
        ledger.queue(run_id, actor=host)
        claimed = ledger.claim(run_id, actor=host, executor_type="local", gated=True, scope=machine.scope)
        assert isinstance(claimed, Claimed)
        ledger.start(claimed.claim, actor=host)
        ledger.running(claimed.claim, actor=host, handle=reuse.handle.encode(), pid=reuse.handle.pid)
        ledger.request_cancellation(run_id, actor=host)
        if when == "before":
            reuse.change_hands()
        supervision = ledger.supervise()
        cycles = [supervision.cycle()["cancellation"] for _ in range(CYCLES)]
        run = ledger.run(run_id)
        delivered = [
            [fact.type, fact.payload.model_dump(mode="json")["result"], fact.payload.model_dump()["dispatch_count"]]
            for fact in ledger.history(run_id)
            if fact.type.startswith("run.cancel_dispatch")
        ]
        clean = ledger.verify().clean
    # Whatever had been sent would be written down by now: a signal of our own comes after it.
    impostor = reuse.impostor
    impostor.send_signal(signal.SIGUSR1)
    scene = reuse.scene
    wait_until(lambda: "SIGUSR1" in scene.log("log") or impostor.poll() is not None, "it has written down everything")
    assert run.cancellation is not None
    assert run.cancellation.dispatch is not None
    said = {
        "same_number": impostor.pid == reuse.handle.pid,
        "impostor": ["alive" if impostor.poll() is None else "dead", *scene.log("log")],
        "status": [run.status, run.cancellation.dispatch.status],
        "delivered": delivered,
        "claims": [cycle["claimed"] for cycle in cycles],
        "clean": clean,
    }
    scene.end()
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()

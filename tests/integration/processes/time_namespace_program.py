"""
A worker in a time namespace of its own, in the PID namespace that it came from.

Usage: ``python time_namespace_program.py HANDLE…``. The output is one JSON object: what is seen of each, and whether
the boot clock is shifted here.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.recovery.evidence import EvidenceTarget
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.proofs import proofs


def main() -> None:
    """Look at what was asked about."""
    machine = MachineIdentity.of_this_process("rack-7")
    # A clock on which this boot, as it is told here, began an hour after the handles were heard of.
    now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 + 3_600_000
    provider = LocalEvidence(machine, now_ms=lambda: now_ms)
    seen = []
    for text in sys.argv[1:]:
        handle = ProcessHandle.decode(text)
        target = EvidenceTarget(
            "run", "attempt", AttemptStatus.RUNNING, "local", handle.scope, None, text, handle.pid, 0, last_seen_at_ms=0
        )
        found = provider.inspect(target, timeout_ms=5_000, cancelled=threading.Event())
        seen.append([found.liveness, found.reason])
    said = {proof.name: proof.detail for proof in proofs("rack-7")}["after a reboot"]
    sys.stdout.write(
        json.dumps(
            {
                "time_namespace": machine.time_namespace,
                "pid_namespace": machine.pid_namespace,
                "seen": seen,
                "after_a_reboot": said,
                "shifted": bool(Path("/proc/self/timens_offsets").read_text().split()[4] != "0"),
            }
        )
    )


if __name__ == "__main__":
    main()

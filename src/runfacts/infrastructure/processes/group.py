"""
Proof that a process group is gone (R6.5, R12.3), as far as this machine can give one.

What counts as a proof is ``sight``'s to say. Here nobody knows when the process was last heard of, so a reboot proves
nothing.
"""

from __future__ import annotations

from runfacts.infrastructure.processes.handle import InvalidHandle, ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.infrastructure.processes.sight import Lookout, Sight


def group_is_gone(recorded: str | None, machine: MachineIdentity, procfs: ProcFs) -> bool:
    """Tell whether the group of a recorded handle is proven to have no living member."""
    if recorded is None:
        return False
    try:
        handle = ProcessHandle.decode(recorded)
    except InvalidHandle:
        return False
    try:
        return Lookout(machine, procfs).see(handle, attempt_id=None) is Sight.GONE
    except OSError:
        # Nothing can be looked at just now, for want of descriptors or memory.
        return False

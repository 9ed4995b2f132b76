"""
Proof that a process group is gone (R6.5, R12.3), as far as this machine can give one.

It holds only within the handle's scope and boot, and where every process can be seen. A group is gone when no member
of it lives, or when its number now belongs to another process: a number is not used again while any process has it as
its group. Everything else proves nothing. Declared limit: a descendant that left the group by ``setsid`` is not
covered.
"""

from __future__ import annotations

from runfacts.infrastructure.processes.handle import InvalidHandle, ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.procfs import ProcFs


def group_is_gone(recorded: str | None, machine: MachineIdentity, procfs: ProcFs) -> bool:
    """Tell whether the group of a recorded handle is proven to have no living member."""
    if recorded is None:
        return False
    try:
        handle = ProcessHandle.decode(recorded)
    except InvalidHandle:
        return False
    if handle.scope != machine.scope or handle.boot_id != machine.boot_id:
        return False
    if not procfs.is_real() or procfs.hides_processes():
        return False
    leader = procfs.stat(handle.pid)
    if leader is not None and leader.start_ticks != handle.start_ticks:
        return True
    return not procfs.living_members(handle.group)

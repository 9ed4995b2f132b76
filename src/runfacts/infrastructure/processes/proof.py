"""
Proof that a process is the recorded one (R8.4, R12.3).

Two steps. The *record* is proven without touching any process: the handle can be read, it names the Attempt's number,
this machine and these namespaces. Then the *leader* is: a descriptor is opened first, everything is read after that,
and last the kernel is asked whether what was read was read of the descriptor's process. A number alone never counts,
nor does "no such process".
"""

from __future__ import annotations

from enum import Enum

from runfacts.domain.cancellation.results import DispatchResult
from runfacts.infrastructure.processes.handle import InvalidHandle, ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.pidfds import REAPED, Pidfds, number_in
from runfacts.infrastructure.processes.procfs import ProcFs


class Leader(Enum):
    """What became of the recorded process, the leader of its group."""

    ALIVE = "alive"
    """It is the recorded one, and has not ended."""
    ZOMBIE = "zombie"
    """It is the recorded one, and has ended; its number is still its own."""
    REAPED = "reaped"
    """No process has its number."""
    STRANGER = "stranger"
    """Its number belongs to another process: it has ended, and so has its group, or the number would not be free."""
    MOVED = "moved"
    """It is the recorded one but does not lead the recorded group."""
    UNSEEN = "unseen"
    """There is a process, and nothing about it can be read."""


def prove_record(
    handle: str | None, pid: int | None, scope: str, machine: MachineIdentity
) -> ProcessHandle | DispatchResult:
    """Prove what was recorded, or say what is wrong with it: the first that applies (R8.4)."""
    if handle is None:
        return DispatchResult.HANDLE_MISSING
    try:
        recorded = ProcessHandle.decode(handle)
    except InvalidHandle as error:
        return DispatchResult.INVALID if error.supported else DispatchResult.UNSUPPORTED
    if pid != recorded.pid:
        return DispatchResult.PID_MISMATCH
    if recorded.scope != machine.scope or scope != machine.scope:
        return DispatchResult.SCOPE_MISMATCH
    if recorded.boot_id != machine.boot_id:
        return DispatchResult.IDENTITY_MISMATCH
    return recorded


def open_leader(handle: ProcessHandle, procfs: ProcFs, pidfds: Pidfds) -> int | Leader:
    """Open a descriptor of the process that has the recorded number; or say why there is none."""
    pidfd = pidfds.open(handle.pid)
    if pidfd is not None:
        return pidfd
    # The number may be a thread's, which has an entry in /proc and is no process.
    return Leader.REAPED if procfs.stat(handle.pid) is None else Leader.STRANGER


def prove_leader(handle: ProcessHandle, pidfd: int, procfs: ProcFs, pidfds: Pidfds) -> Leader:
    """Prove the process that a descriptor names against the record.

    A descriptor that was proven before, or that is held since before the gate opened, can only become ``ZOMBIE`` and
    then ``REAPED``.
    """
    stat = procfs.stat(handle.pid)
    number = number_in(procfs, pidfd)
    if number == REAPED:
        return Leader.REAPED
    # Now what was read was read of this very process.
    if number != handle.pid or stat is None:
        return Leader.UNSEEN
    if stat.start_ticks != handle.start_ticks:
        return Leader.STRANGER
    # Start ticks are 10 ms long, and a number can be used twice within one; the inode tells them apart.
    if handle.pidfd_inode is not None and pidfds.inode(pidfd) != handle.pidfd_inode:
        return Leader.STRANGER
    if not stat.group == handle.group == handle.pid:
        return Leader.MOVED
    return Leader.ZOMBIE if pidfds.has_ended(pidfd) else Leader.ALIVE

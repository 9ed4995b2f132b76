"""
What can be seen of a recorded process and its group from here (R12.3).

The proofs of absence, each only within its scope:

* a **reboot**: both boot ids are procfs's own, the present boot began after the process was last heard of, and the
  machine id names one machine;
* **this boot and these namespaces**: the number belongs to another process, because a number is not used again while
  any process has it as its group; or nobody leads the group and no member of it lives;
* a **PID namespace that has ended**, seen from the initial one: nobody is in it.

Everything else proves nothing: another scope, an unreadable or foreign ``/proc``, hidden processes. Declared limit: a
descendant that left the group by ``setsid`` is not covered.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from runfacts.domain.errors import DatabaseUnreachable, UnsupportedPlatform
from runfacts.infrastructure.database.clocks import refuse_time_offset
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity, MachineIdSource
from runfacts.infrastructure.processes.members import GroupMembers
from runfacts.infrastructure.processes.pidfds import Pidfds, shows_our_namespace
from runfacts.infrastructure.processes.procfs import INITIAL_PID_NAMESPACE, ProcFs, raise_want, require_linux
from runfacts.infrastructure.processes.proof import Leader, open_leader, prove_leader


class Sight(Enum):
    """What is seen of a recorded process."""

    LIVES = "lives"
    """The recorded process lives, or a member of its group that is proven ours."""
    UNPROVEN = "unproven"
    """The leader is dead, and members live that cannot be told from strangers."""
    GONE = "gone"
    """It is proven that no member of the group lives."""
    CONTRADICTION = "contradiction"
    """It is the recorded process, and it does not lead the recorded group."""
    NOTHING = "nothing"
    """From here nothing is proven."""


def wall_clock_ms() -> int:
    """Give this machine's time, in UTC milliseconds."""
    return time.time_ns() // 1_000_000


def boot_began_at_ms(now_ms: Callable[[], int]) -> int:
    """Give when this boot began by the clock ``now_ms``, or a little earlier. Not for a shifted boot clock."""
    # In this order, a look that takes its time makes the boot older and never younger.
    now = now_ms()
    return now - time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000 - 1


@dataclass(frozen=True, slots=True)
class Lookout:
    """A place to look from. Looking changes nothing."""

    machine: MachineIdentity
    procfs: ProcFs = field(default_factory=ProcFs)
    pidfds: Pidfds = field(default_factory=Pidfds)
    now_ms: Callable[[], int] = wall_clock_ms
    """The clock that ``last_seen_at_ms`` comes from: the ledger's own (R5)."""
    machine_is_ambiguous: Callable[[int], bool] = lambda _: False
    """Whether another machine is known by this one's id (R8.3), given when this boot began; asked after a reboot."""

    def see(self, handle: ProcessHandle, *, attempt_id: str | None, last_seen_at_ms: int | None = None) -> Sight:
        """Look for a recorded process. Without ``attempt_id`` no survivor is known to be ours."""
        try:
            require_linux("looking for a process")
            # Read anew: a container's may have been hidden since.
            boot_id = self.procfs.boot_id()
        except UnsupportedPlatform:
            return Sight.NOTHING
        if boot_id != self.machine.boot_id:
            return Sight.NOTHING
        if handle.boot_id != boot_id:
            return self._after_a_reboot(handle, last_seen_at_ms)
        if handle.scope == self.machine.scope:
            return self._in_this_namespace(handle, attempt_id)
        return self._in_another_namespace(handle)

    def _after_a_reboot(self, handle: ProcessHandle, last_seen_at_ms: int | None) -> Sight:
        if handle.machine_id != self.machine.machine_id or self.machine.source is MachineIdSource.BOOT_ID:
            return Sight.NOTHING
        try:
            refuse_time_offset(self.procfs)
        except DatabaseUnreachable:
            return Sight.NOTHING
        began_at_ms = boot_began_at_ms(self.now_ms)
        if last_seen_at_ms is None or began_at_ms <= last_seen_at_ms or self.machine_is_ambiguous(began_at_ms):
            return Sight.NOTHING
        return Sight.GONE

    def _in_this_namespace(self, handle: ProcessHandle, attempt_id: str | None) -> Sight:
        if not shows_our_namespace(self.procfs):
            return Sight.NOTHING
        pidfd = open_leader(handle, self.procfs, self.pidfds)
        if isinstance(pidfd, Leader):
            # A thread with this number: most likely another process's, but only an equal look could tell.
            return self._of_the_group(handle, attempt_id) if pidfd is Leader.REAPED else Sight.NOTHING
        try:
            leader = prove_leader(handle, pidfd, self.procfs, self.pidfds)
        finally:
            os.close(pidfd)
        match leader:
            case Leader.ALIVE:
                return Sight.LIVES
            case Leader.STRANGER:
                return Sight.GONE
            case Leader.MOVED:
                return Sight.CONTRADICTION
            case Leader.UNSEEN:
                return Sight.NOTHING
            case Leader.ZOMBIE | Leader.REAPED:
                return self._of_the_group(handle, attempt_id)

    def _of_the_group(self, handle: ProcessHandle, attempt_id: str | None) -> Sight:
        """The leader has ended: look for members of its group."""
        if self.procfs.hides_processes():
            return Sight.NOTHING
        with GroupMembers(handle.group, attempt_id=attempt_id, procfs=self.procfs, pidfds=self.pidfds) as members:
            living = members.look()
            if members.nobody_is_proven:
                return Sight.GONE
        return Sight.LIVES if any(member.ours for member in living) else Sight.UNPROVEN

    def _in_another_namespace(self, handle: ProcessHandle) -> Sight:
        """Prove that the PID namespace has ended: nobody is in it, as seen from where all processes are seen."""
        # The boot id stands in where a container has no machine id of its own; it names this running kernel.
        if handle.machine_id not in {self.machine.machine_id, self.machine.boot_id}:
            return Sight.NOTHING
        if self.machine.pid_namespace != INITIAL_PID_NAMESPACE or handle.pid_namespace == INITIAL_PID_NAMESPACE:
            return Sight.NOTHING
        if not shows_our_namespace(self.procfs) or self.procfs.hides_processes():
            return Sight.NOTHING
        found = _pid_namespaces(self.procfs)
        # Its first process is there as long as it is, and when that one ends all others end with it.
        return Sight.GONE if found is not None and handle.pid_namespace not in found else Sight.NOTHING


def can_see_all_namespaces(procfs: ProcFs) -> bool:
    """Tell whether the PID namespace of every process can be looked at."""
    return not procfs.hides_processes() and _pid_namespaces(procfs) is not None


def _pid_namespaces(procfs: ProcFs) -> frozenset[int] | None:
    """Give the PID namespaces of all processes; ``None`` where one may not be looked at (``OSError``: not just now)."""
    found: set[int] = set()
    for pid in procfs.pids():
        if pid == 1:
            continue  # the first process of the initial namespace is in no other, and root may not look at it
        try:
            found.add((procfs.root / str(pid) / "ns/pid").stat().st_ino)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            raise_want(error)
            return None
    return frozenset(found)

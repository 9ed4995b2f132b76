"""
The members of a process group, each held by a descriptor of its own (R8.5, R8.6).

A scan of ``/proc`` finds them by the group's number. Each is opened first and looked at then, so what is proven about
it is true of the process that the descriptor names. A scan can miss what is forked while it runs; it is repeated until
none is new, and that there is none is said only after a second look.

A member is *ours* when its environment has the attempt's cookie. Once proven this stays true: the descriptor names the
same process. What has just been forked or is about to become another program may have no environment for a moment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from runfacts.infrastructure.processes.launcher import COOKIE_ATTEMPT
from runfacts.infrastructure.processes.pidfds import Pidfds, number_in
from runfacts.infrastructure.processes.procfs import ProcFs

_SCANS_MAX: Final = 16


@dataclass(slots=True, eq=False)
class Member:
    """A living member of the group; two are the same only when they are the same object."""

    pid: int
    pidfd: int
    ours: bool


class GroupMembers:
    """Looks for the living members of one group. A context manager: leaving it closes the descriptors."""

    def __init__(self, group: int, *, attempt_id: str | None, procfs: ProcFs, pidfds: Pidfds) -> None:
        """Without ``attempt_id`` no member is known to be ours."""
        self._group = group
        self._cookie = None if attempt_id is None else f"{COOKIE_ATTEMPT}={attempt_id}".encode()
        self._procfs = procfs
        self._pidfds = pidfds
        self._known: dict[int, Member] = {}

    def look(self) -> tuple[Member, ...]:
        """Give the members that have not ended, the leader first, as far as they can be seen."""
        anything_new = self._scan()
        if not self._known:
            anything_new = self._scan()
        for _ in range(_SCANS_MAX):
            if not anything_new:
                break
            anything_new = self._scan()
        return tuple(sorted(self._known.values(), key=lambda member: (member.pid != self._group, member.pid)))

    def close(self) -> None:
        """Close all descriptors."""
        known, self._known = self._known, {}
        for member in known.values():
            os.close(member.pidfd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _scan(self) -> bool:
        """Look at all processes once; tell whether a member was new."""
        found: dict[int, Member] = {}
        anything_new = False
        for pid in self._procfs.pids():
            if not self._is_in_group(pid):
                continue
            member = self._known.get(pid)
            if member is None or self._pidfds.has_ended(member.pidfd):
                member = self._meet(pid)
                anything_new = anything_new or member is not None
            elif not member.ours:
                member.ours = self._has_cookie(member.pid, member.pidfd)
            if member is not None:
                found[pid] = member
        for pid, member in self._known.items():
            if found.get(pid) is not member:
                os.close(member.pidfd)
        self._known = found
        return anything_new

    def _meet(self, pid: int) -> Member | None:
        """Open a process, then prove that it is a living member; ``None`` when it is not."""
        pidfd = self._pidfds.open(pid)
        if pidfd is None:
            return None
        # The group again, now of the process that is held.
        if self._is_in_group(pid) and number_in(self._procfs, pidfd) == pid and not self._pidfds.has_ended(pidfd):
            return Member(pid, pidfd, self._has_cookie(pid, pidfd))
        os.close(pidfd)
        return None

    def _is_in_group(self, pid: int) -> bool:
        stat = self._procfs.stat(pid)
        return stat is not None and stat.group == self._group

    def _has_cookie(self, pid: int, pidfd: int) -> bool:
        if self._cookie is None:
            return False
        return self._cookie in self._procfs.environment(pid) and number_in(self._procfs, pidfd) == pid

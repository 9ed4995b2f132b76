"""
The members of a process group, each held by a descriptor of its own (R8.5, R8.6).

A scan of ``/proc`` finds them by the group's number. Each is opened first and looked at then, so what is proven about
it is true of the process that the descriptor names. A scan is repeated until none is new.

That *nobody* lives is a proof, and a scan alone is none: a group can hand itself over from parent to child, each of
them born behind the scan and dead before the next. But a parent that is found dead has had all its children, and their
numbers are higher than its own. So after the scan every number that was given out meanwhile is looked at, upwards,
until no more are given out: whoever lives then has been seen.

A group may have more members than this process can have descriptors. Those above ``HELD_MAX`` are looked at in the same
way and not held.

A member is *ours* when its environment has the attempt's cookie. Once proven this stays true: the descriptor names the
same process. What has just been forked or is about to become another program may have no environment for a moment.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from runfacts.infrastructure.processes.launcher import COOKIE_ATTEMPT
from runfacts.infrastructure.processes.pidfds import Pidfds, number_in
from runfacts.infrastructure.processes.procfs import ProcFs

HELD_MAX: Final = 512
"""How many members are held at once; a process commonly has 1,024 descriptors, for everything."""

_SCANS_FOR_ALL: Final = 3
"""How often a group is scanned that is never without somebody new; whoever signals it looks again anyway."""
_SCANS_MAX: Final = 16
_CHASES_MAX: Final = 1_024
_CHASE_NUMBERS_MAX: Final = 4_096


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
        self.nobody_is_proven = False
        """Whether the last look proved that no member lives."""
        self.too_many = False
        """Whether more members were seen at the last look than can be held; these were proven and let go of."""
        self.rest_is_ours = True
        """Whether all of those that are not held were proven ours."""

    def look(self) -> tuple[Member, ...]:
        """Give the members that have not ended, the leader first, as far as they can be seen.

        Where there is none, ``nobody_is_proven`` says whether that is certain.
        """
        self.nobody_is_proven = False
        for scan in range(_SCANS_MAX):
            since = self._procfs.last_number()
            anything_new = self._scan()
            if self._known:
                if anything_new and scan < _SCANS_FOR_ALL:
                    continue
                break
            # Once more from the beginning: what was being born at the first look has come into sight.
            self._scan()
            if not self._known and self._nobody_was_born(since):
                self.nobody_is_proven = True
                break
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
        anything_new = self.too_many = False
        self.rest_is_ours = True
        held = len(self._known)
        try:
            for pid in self._procfs.pids():
                if not self._lives_in_group(pid):
                    continue
                member = self._known.get(pid)
                if member is None or self._pidfds.has_ended(member.pidfd):
                    member = self._meet(pid)
                    if member is not None and held >= HELD_MAX:
                        self.too_many, self.rest_is_ours = True, self.rest_is_ours and member.ours
                        os.close(member.pidfd)
                        continue
                    held += member is not None
                    anything_new = anything_new or member is not None
                elif not member.ours:
                    member.ours = self._has_cookie(member.pid, member.pidfd)
                if member is not None:
                    found[pid] = member
        finally:
            # Also where the look failed: nothing stays open that nobody knows.
            for pid, member in self._known.items():
                if found.get(pid) is not member:
                    os.close(member.pidfd)
            self._known = found
        return anything_new

    def _nobody_was_born(self, since: int | None) -> bool:
        """Look at every number that was given out since; tell whether none of them is a living member."""
        if since is None:
            return True  # two scans are all there is
        for _ in range(_CHASES_MAX):
            latest = self._procfs.last_number()
            if latest == since:
                return True
            if latest is None or not since < latest <= since + _CHASE_NUMBERS_MAX:
                return False  # begun anew at the bottom, or too far ahead: scan again
            for pid in range(since + 1, latest + 1):
                if self._lives_in_group(pid) and (member := self._meet(pid)) is not None:
                    self._known[pid] = member
                    return False
            since = latest
        return False

    def _meet(self, pid: int) -> Member | None:
        """Open a process, then prove that it is a living member; ``None`` when it is not."""
        pidfd = self._pidfds.open(pid)
        if pidfd is None:
            return None
        with ExitStack() as undo:
            undo.callback(os.close, pidfd)
            # The group again, now of the process that is held.
            if (
                self._lives_in_group(pid)
                and number_in(self._procfs, pidfd) == pid
                and not self._pidfds.has_ended(pidfd)
            ):
                member = Member(pid, pidfd, self._has_cookie(pid, pidfd))
                undo.pop_all()
                return member
        return None

    def _lives_in_group(self, pid: int) -> bool:
        stat = self._procfs.stat(pid)
        return stat is not None and stat.group == self._group and stat.is_alive

    def _has_cookie(self, pid: int, pidfd: int) -> bool:
        if self._cookie is None:
            return False
        return self._cookie in self._procfs.environment(pid) and number_in(self._procfs, pidfd) == pid

"""
Forks: a connection belongs to the process that made it.

A child that went on with its parent's connections would mix its words with the parent's: over one socket to PostgreSQL
each gets answers that were meant for the other. So a child gets connections of its own. Those of its parent it neither
uses nor closes: closing would hang up for the parent.

SQLite needs more. It keeps a process's file locks in variables of the library, which a child inherits as they are: it
would take the parent's locks for its own, and what it commits could vanish with a journal that the parent, to which the
child holds no lock, removes on closing. Its mutexes too are inherited as they are, locked for ever by threads that the
child does not have. So a fork waits until no other thread uses a database file, and every connection to it is closed
before. Where that cannot be had in time, only the child is refused (``QuietPool``).

A plain lock that another thread holds at the fork stays locked in the child; ``ForkedLock`` does not.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Final, Protocol
from weakref import WeakSet

_PATIENCE_S: Final = 5.0
"""How long a fork waits for other threads: as long as one of them may wait for SQLite's file lock, by default."""


class Forked(Protocol):
    """What has connections."""

    def forked(self) -> list[object]:
        """Go on in a child without the connections of its parent; return them."""


class Quieted(Protocol):
    """What must not be in use while its process forks."""

    def before_fork(self) -> None:
        """Admit no other thread from now on."""

    def quiet_by(self, deadline_s: float) -> bool:
        """Wait until nobody uses it, at most until this time of the monotonic clock; tell whether nobody does."""

    def after_fork(self, *, child: bool) -> None:
        """Admit everybody, in the parent and in the child."""


class ForkedLock:
    """A lock that is free in every child, whoever held it in the parent. Not for what is left half done by a fork."""

    def __init__(self) -> None:
        """It is free."""
        self._lock = threading.Lock()
        part_at_forks(self)

    def forked(self) -> list[object]:
        """See Forked: there are no connections."""
        self._lock = threading.Lock()
        return []

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


class _Forks:
    """What this process does about its forks."""

    def __init__(self) -> None:
        self.spoilt = False
        self._parted: WeakSet[Forked] = WeakSet()
        self._quieted: WeakSet[Quieted] = WeakSet()
        # Held over a fork, so that neither set changes under whoever goes through it.
        self._members = threading.RLock()
        self._hushed: list[Quieted] = []
        self._quiet = True
        self._left_to_the_parent: list[object] = []

    def part(self, owner: Forked) -> None:
        with self._members:
            self._parted.add(owner)

    def quiet(self, used: Quieted) -> None:
        with self._members:
            self._quieted.add(used)

    def before(self) -> None:
        self._members.acquire()
        self._quiet = True
        self._hushed = list(self._quieted)
        for used in self._hushed:
            used.before_fork()
        deadline_s = time.monotonic() + _PATIENCE_S
        for used in self._hushed:
            # All of them, also where one of them will not be quiet: the parent loses nothing by it.
            self._quiet = used.quiet_by(deadline_s) and self._quiet

    def in_the_parent(self) -> None:
        self._admit(child=False)
        self._members.release()

    def in_the_child(self) -> None:
        self.spoilt = self.spoilt or not self._quiet
        self._admit(child=True)
        for owner in list(self._parted):
            # Kept, since an object that is thrown away closes its connection.
            self._left_to_the_parent.extend(owner.forked())
        self._members.release()

    def _admit(self, *, child: bool) -> None:
        for used in self._hushed:
            used.after_fork(child=child)
        self._hushed = []


_forks: Final = _Forks()


def part_at_forks(owner: Forked) -> None:
    """Tell ``owner`` in every child that is forked from now on."""
    _forks.part(owner)


def quiet_at_forks(used: Quieted) -> None:
    """Fork only when nobody uses ``used``, or else spoil the child."""
    _forks.quiet(used)


def spoilt() -> bool:
    """Whether this process was forked while its parent used a database file, so that it must not use any."""
    return _forks.spoilt


os.register_at_fork(before=_forks.before, after_in_parent=_forks.in_the_parent, after_in_child=_forks.in_the_child)

"""
Subscriptions for the ``eventsourcing`` package: an application's events as they come, in order (R3.9).

The package's own wait for a notification in a thread of their own, and would sleep on after a rollback, which sends
none. These wait in the thread that iterates, and look again at a position that may still come.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from eventsourcing.persistence import Notification, PersistenceError, Subscription
from sqlalchemy import Table

from runfacts.domain.feeds import Waiting
from runfacts.infrastructure.database.wakeups import Listener, Pace

if TYPE_CHECKING:
    from runfacts.infrastructure.stores.recorder import SqlApplicationRecorder

_PLAIN: Final = re.compile(r"[a-z0-9_]{1,48}")


class SqlSubscription(Subscription["SqlApplicationRecorder"]):
    """Waits for new events in the thread that iterates; there is no other thread."""

    def __init__(
        self,
        recorder: SqlApplicationRecorder,
        listener: Listener,
        pace: Pace,
        gt: int | None,
        topics: Sequence[str],
        *,
        page: int,
    ) -> None:
        """Begin after position ``gt``; look at no more than ``page`` events at once."""
        super().__init__(recorder, gt, topics)
        self._listener = listener
        self._pace = pace
        self._page = page
        self._wanted = frozenset(topics)
        self._read_to = gt or 0
        self._ready: deque[Notification] = deque()
        # Held by whoever iterates: what a thread waits on is not closed under it.
        self._iterating = threading.Lock()

    def stop(self) -> None:
        """End the iteration, also one that waits; from any thread."""
        super().stop()
        self._listener.stop()
        if self._iterating.acquire(blocking=False):
            self._listener.close()
            self._iterating.release()

    def __next__(self) -> Notification:
        with self._iterating:
            while not self._listener.stopped:
                if self._ready:
                    return self._ready.popleft()
                page = self._read_on()
                if page is None:
                    break
                found, read_to, waiting = page
                self._ready.extend(found)
                moved, self._read_to = read_to > self._read_to, read_to
                if moved or self._listener.wait(self._pace.pause_s(waiting)):
                    self._pace.woken()
            self._listener.close()
        raise StopIteration

    def _read_on(self) -> tuple[list[Notification], int, Waiting | None] | None:
        try:
            return self._recorder.read_after(self._read_to, self._page, self._wanted)
        except PersistenceError:
            # Whoever closes the database stops its subscriptions first.
            if self._listener.stopped:
                return None
            raise


def channel_of(table: Table) -> str:
    """Give the channel on which it is said that there is something new in a table."""
    if _PLAIN.fullmatch(table.name):
        return f"runfacts_{table.name}"
    return f"runfacts_{sha256(table.fullname.encode()).hexdigest()[:32]}"

"""
The feed: all facts in order, page by page or as they come (R3.9).

A page is a short read that never waits. ``follow`` gives fact after fact and waits for new ones in the thread that asks
for them; no other thread runs for it.
"""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Final, Self

from runfacts.domain.facts import Fact
from runfacts.domain.feeds import Checkpoint, FeedHealth, FeedPage, Waiting
from runfacts.domain.limits import Settings
from runfacts.infrastructure.api.reads import Reads
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.wakeups import QUIET_S, Listener
from runfacts.infrastructure.stores.lag import read_lag

_SOON_S: Final = 0.005
_LATER_S: Final = 0.1
_SQLITE_SHARE: Final = 10


class Feed(Reads):
    """Read the facts in order."""

    def feed(self, after: Checkpoint | None = None, *, limit: int | None = None) -> FeedPage:
        """Give the next facts in order, from the beginning or after a checkpoint; never waits.

        An empty page is the end for now; ``waiting`` says what holds up facts that are committed already. Raises
        ``ReaderRefused`` where the order cannot be trusted (a standby, another isolation, positions in blocks) and
        ``CheckpointLost`` where the database is not the one that the checkpoint was taken from.
        """
        page = self._ordered.read(after, self._page(limit))
        checkpoint = Checkpoint.of(page.facts[-1]) if page.facts else after
        return FeedPage(page.facts, checkpoint, page.waiting)

    def follow(self, after: Checkpoint | None = None, *, limit: int | None = None) -> Following:
        """Give fact after fact in order, and wait for each next one; ``limit`` bounds a single read.

        Close it, or use it as a context manager; ``stop`` ends it from any thread, and so does ``close`` of the ledger.
        Iterating raises what ``feed`` does.
        """
        limit = self._page(limit)
        return Following(self, self._commands.wakeups.listen(), after, limit)

    def feed_health(self, after: Checkpoint | None = None) -> FeedHealth:
        """Say how far a reader at this checkpoint is behind, and what its next read would wait for."""
        page = self._ordered.read(after, self._page(None))
        position = 0 if after is None else after.position
        with self._database.reading() as reading:
            newest, facts, ms = read_lag(reading, position)
        return FeedHealth(position, newest, facts, ms, page.waiting)


class Following:
    """Facts as they come. Iterate in one thread; ``stop`` from any."""

    def __init__(self, feed: Feed, listener: Listener, after: Checkpoint | None, limit: int) -> None:
        """Begin after a checkpoint."""
        self._feed = feed
        self._listener = listener
        self._limit = limit
        self._read_to = after
        self._ready: deque[Fact] = deque()
        self._pace = Pace(feed.database, feed.settings)
        self.checkpoint = after
        """After the fact that was given last. Store it once that fact is dealt with."""
        self.waiting: Waiting | None = None
        """What the last read waited for."""

    def stop(self) -> None:
        """End the iteration; from any thread."""
        self._listener.stop()

    def close(self) -> None:
        """Give the connection back; from the thread that iterates."""
        self._listener.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Fact:
        while not self._listener.stopped:
            if self._ready:
                fact = self._ready.popleft()
                self.checkpoint = Checkpoint.of(fact)
                return fact
            page = self._feed.feed(self._read_to, limit=self._limit)
            self._read_to, self.waiting = page.checkpoint, page.waiting
            self._ready.extend(page.facts)
            if page.facts or self._listener.wait(self._pace.pause_s(page.waiting)):
                self._pace.woken()
        self.close()
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Pace:
    """How long a follower waits for a wake-up before it looks by itself."""

    def __init__(self, database: Database, settings: Settings) -> None:
        """Look soon at first: the wake-up for what was just committed may have been sent before."""
        self._net_s = settings.feed_poll_ms / 1_000
        if database.dialect == SQLITE:
            # Other processes send no wake-up there, and looking costs next to nothing.
            self._net_s /= _SQLITE_SHARE
        self._woken_s = time.monotonic()

    def woken(self) -> None:
        """Something happened just now."""
        self._woken_s = time.monotonic()

    def pause_s(self, waiting: Waiting | None) -> float:
        """Give the length of the next wait, in seconds."""
        if waiting is not None:
            # A rollback wakes nobody. The longer it takes, the less does one more moment matter.
            return min(max(_SOON_S, waiting.waited_ms / 10_000), _LATER_S, self._net_s)
        if time.monotonic() - self._woken_s < 2 * QUIET_S:
            return min(2 * _SOON_S, self._net_s)
        return self._net_s

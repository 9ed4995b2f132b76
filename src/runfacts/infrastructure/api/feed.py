"""
The feed: all facts in order, page by page or as they come (R3.9).

A page is a short read that never waits. ``follow`` gives fact after fact and waits for new ones in the thread that asks
for them; no other thread runs for it.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Self

from runfacts.domain.errors import DatabaseUnreachable
from runfacts.domain.facts import Fact
from runfacts.domain.feeds import Checkpoint, FeedHealth, FeedPage, Waiting
from runfacts.infrastructure.api.reads import Reads
from runfacts.infrastructure.database.wakeups import FACTS, Listener, Pace
from runfacts.infrastructure.stores.lag import read_lag


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
        return Following(self, self._database.wakeups(FACTS).listen(), after, limit)

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
        self._pace = Pace(feed.database.dialect, feed.settings.feed_poll_ms)
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
            page = self._read_on()
            if page is None:
                break
            self._read_to, self.waiting = page.checkpoint, page.waiting
            self._ready.extend(page.facts)
            if page.facts or self._listener.wait(self._pace.pause_s(page.waiting)):
                self._pace.woken()
        self.close()
        raise StopIteration

    def _read_on(self) -> FeedPage | None:
        try:
            return self._feed.feed(self._read_to, limit=self._limit)
        except DatabaseUnreachable:
            # Whoever closes the ledger stops its followers first.
            if self._listener.stopped:
                return None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

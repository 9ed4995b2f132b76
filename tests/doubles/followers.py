"""Followers of the feed in threads of their own, and waiting with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runfacts import Checkpoint, Fact, Ledger

DEADLINE_S = 30


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        time.sleep(0.002)


class Follower:
    """Follows in a thread of its own, and keeps what it was given."""

    def __init__(self, ledger: Ledger, after: Checkpoint | None = None, *, limit: int | None = None) -> None:
        self.following = ledger.follow(after, limit=limit)
        self.facts: list[Fact] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for fact in self.following:
            self.facts.append(fact)

    def await_facts(self, count: int) -> None:
        """Wait until there are so many, and insist that there are no more."""
        eventually(lambda: len(self.facts) >= count, f"{count} facts come")
        assert len(self.facts) == count

    def end(self) -> None:
        """Stop, and wait for the thread."""
        self.following.stop()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@contextmanager
def following(ledger: Ledger, after: Checkpoint | None = None, *, limit: int | None = None) -> Iterator[Follower]:
    """Follow during the block."""
    follower = Follower(ledger, after, limit=limit)
    try:
        yield follower
    finally:
        follower.end()

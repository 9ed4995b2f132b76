"""
Kept histories: the Runs that this process wrote last, replayed and ready (R1.6).

A kept history is a fast path and never a source of truth: it is used only where the row of ``runs``, read in the
command's own transaction, has the same version and hash; where the row is ahead, the facts in between are read. What
is decided on it is written by the same compare-and-set as ever. It is taken out while a command works on it, since
the command changes it, and comes back only when the write is committed; so a write that did not happen leaves nothing
behind, and no two threads share one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from runfacts.domain.history import History
from runfacts.infrastructure.database.forks import ForkedLock

KEPT_MAX: Final = 512
"""How many histories are kept."""
FACTS_MAX: Final = 256
"""Longer histories are not kept: their dedupe keys and Attempts take memory, and long Runs are rare."""


class KeptHistories:
    """A bounded store of histories, the least recently used go first."""

    def __init__(self, most: int = KEPT_MAX) -> None:
        """Keep at most ``most`` histories."""
        self._most = most
        self._histories: OrderedDict[str, History] = OrderedDict()
        self._lock = ForkedLock()

    def take(self, run_id: str) -> History | None:
        """Give a history away: nobody else gets it until it is put back."""
        with self._lock:
            return self._histories.pop(run_id, None)

    def put(self, history: History) -> None:
        """Keep a history that is committed as it is."""
        if history.version > FACTS_MAX:
            return
        with self._lock:
            self._histories[history.run_id] = history
            if len(self._histories) > self._most:
                self._histories.popitem(last=False)

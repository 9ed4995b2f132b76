"""
The bridge to freezegun: code under test that asks Python for the time sees the ledger's time (R5.4).

A ledger with a ``ManualClock`` never asks Python. Code that uses the ledger often does: it computes deadlines or
filters by ``datetime.now()``. Within ``frozen(clock)`` that is the clock's wall time, and it moves when the clock
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runfacts.testing.clock import ManualClock

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What waits for threads, processes and servers needs time that passes.
_GOES_ON: Final = ["psycopg", "runfacts.infrastructure", "sqlalchemy", "threading", "queue", "selectors", "subprocess"]


@contextmanager
def frozen(clock: ManualClock) -> Iterator[None]:
    """Freeze Python's wall time at the clock's, and move it with the clock, until the block ends."""
    from freezegun import freeze_time

    def wall_time() -> datetime:
        return _EPOCH + timedelta(milliseconds=clock.wall_ms())

    with freeze_time(wall_time(), ignore=_GOES_ON) as frozen_time:

        def follow(_database_ms: int) -> None:
            frozen_time.move_to(wall_time())

        clock.drive(follow)
        try:
            yield
        finally:
            clock.release(follow)

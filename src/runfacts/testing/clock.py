"""
A clock that stands still until a test moves it (R5.4).

There are three times. The *wall clock* is for people and may jump. The *boot clock* decides leases on SQLite and never
jumps, but starts again with every boot. The *database's* time decides leases and due times on PostgreSQL. ``advance``
lets time pass on all three, which is what tests want nearly always; ``jump_wall``, ``jump_database`` and ``reboot`` are
what goes wrong in real life.

A PostgreSQL database follows the clock if its ``runfacts_now_ms()`` was replaced by one that tests can move, as in the
databases of the plugin's fixtures; no other database is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runfacts.infrastructure.database.connections import Database

EPOCH_MS: Final = 1_767_225_600_000
"""The time at which clocks and PostgreSQL test databases stand until they are moved: 2026-01-01T00:00:00Z."""
_FIRST_BOOT_MS: Final = 3_600_000


class ManualClock:
    """A ``Clock`` for ``Ledger.open`` that only a test moves. May be used from several threads."""

    def __init__(self, wall_ms: int = EPOCH_MS) -> None:
        """Stand at ``wall_ms``, on a machine that started an hour before."""
        self._lock = RLock()
        self._wall_ms = wall_ms
        self._database_ms = wall_ms
        self._boot_ms = _FIRST_BOOT_MS
        self._boots = 1
        self._followers: list[Callable[[int], None]] = []

    def wall_ms(self) -> int:
        """Give the wall time in UTC milliseconds."""
        return self._wall_ms

    def boot_ms(self) -> int:
        """Give the milliseconds since this machine started."""
        return self._boot_ms

    def boot_id(self) -> str:
        """Give the id of this boot, another one after every ``reboot``."""
        return f"00000000-0000-4000-8000-{self._boots:012d}"

    def database_ms(self) -> int:
        """Give the time of the PostgreSQL databases that follow this clock."""
        return self._database_ms

    def advance(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass, everywhere. Time does not go back: a negative number is a ``ValueError``."""
        if ms < 0:
            msg = "time does not go back; jump_wall and jump_database set a clock back"
            raise ValueError(msg)
        with self._lock:
            self._wall_ms += ms
            self._boot_ms += ms
            self._set_database(self._database_ms + ms)

    def jump_wall(self, ms: int) -> None:
        """Set this machine's wall clock by ``ms``, forward or back, as a time server or a person does."""
        with self._lock:
            self._wall_ms += ms
            # Whoever follows may look at the wall clock, too; the database's time is what it was.
            self._set_database(self._database_ms)

    def jump_database(self, ms: int) -> None:
        """Set the database server's clock by ``ms``, forward or back. A SQLite ledger has no clock of its own."""
        with self._lock:
            self._set_database(self._database_ms + ms)

    def reboot(self) -> None:
        """Start the machine again: another boot id, and a boot clock that begins anew."""
        with self._lock:
            self._boots += 1
            self._boot_ms = 0

    def drive(self, follower: Callable[[int], None]) -> None:
        """Call ``follower`` with the database's time, now and after every move of any of the clocks."""
        with self._lock:
            self._followers.append(follower)
            follower(self._database_ms)

    def release(self, follower: Callable[[int], None]) -> None:
        """Stop calling ``follower``."""
        with self._lock:
            self._followers.remove(follower)

    def _set_database(self, ms: int) -> None:
        self._database_ms = ms
        for follower in self._followers:
            follower(ms)


class TestServerClock:
    """Moves ``runfacts_now_ms()`` of a PostgreSQL test database, on a connection of its own."""

    __test__ = False

    def __init__(self, url: str) -> None:
        """Use the test database at ``url``; see ``database.clocks.install_test_clock``."""
        from runfacts.infrastructure.database.opening import connect

        self._database: Database = connect(url)

    def __call__(self, now_ms: int) -> None:
        """Set the database's time and commit."""
        from runfacts.infrastructure.database.clocks import set_test_clock

        with self._database.engine.begin() as connection:
            set_test_clock(connection, now_ms)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

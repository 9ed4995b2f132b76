"""
Time comes in from outside (R5).

On PostgreSQL the database's own time decides, through the one function ``runfacts_now_ms()``; a process's clock is
only asked for what never decides an expiry. On SQLite all processes share one host: the wall clock is for people, and
the boot clock, which a jump of the wall clock does not touch and which goes on while the machine sleeps, decides
leases. Its values mean something only within one boot, hence the boot id beside them.

``CLOCK_BOOTTIME`` differs in a time namespace with an offset, and the boot id can be hidden by a mount: both are
looked at.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

from runfacts.domain.errors import DatabaseUnreachable, UnsupportedPlatform
from runfacts.infrastructure.processes.procfs import ProcFs, raise_want

if TYPE_CHECKING:
    from sqlalchemy import Connection


_SET_MS: Final = 1_000
"""No ordinary correction moves a clock that far at once."""


class Clock(Protocol):
    """Where a ledger gets its time from."""

    def wall_ms(self) -> int:
        """Return the wall time in UTC milliseconds."""
        ...

    def boot_ms(self) -> int:
        """Return the milliseconds since this machine started, sleep included."""
        ...

    def boot_id(self) -> str:
        """Return the id of this boot: a UUID in its usual text form, another one after every start."""
        ...


class SystemClock:
    """The clocks of this machine; the boot clock is refused where it cannot be trusted."""

    def __init__(self, procfs: ProcFs | None = None) -> None:
        """Read nothing yet: PostgreSQL ledgers need no boot clock and work where there is none."""
        self._procfs = procfs or ProcFs()
        self._boot_id: str | None = None

    def wall_ms(self) -> int:
        """See ``Clock``."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """See ``Clock``."""
        self.boot_id()
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        """
        See ``Clock``; read once, since a process lives within one boot.

        Raises ``UnsupportedPlatform`` or, in a time namespace with an offset, ``DatabaseUnreachable``.
        """
        if self._boot_id is None:
            if not hasattr(time, "CLOCK_BOOTTIME"):
                raise UnsupportedPlatform("a SQLite ledger, whose leases are kept by the boot clock,")
            refuse_time_offset(self._procfs)
            self._boot_id = self._procfs.boot_id()
        return self._boot_id


class WallClockWatch:
    """Notices that the wall clock was set while this process runs, by the boot clock beside it (R5.2)."""

    def __init__(self, clock: Clock) -> None:
        """Look at ``clock`` for the first time."""
        self._clock = clock
        self._boot_id = clock.boot_id()
        self._began_at_ms = self._look()

    def set_by_ms(self) -> int:
        """Give by how much it was set since the last look, 0 where that may as well be its ordinary drift."""
        before_ms, self._began_at_ms = self._began_at_ms, self._look()
        moved_ms = self._began_at_ms - before_ms
        before, self._boot_id = self._boot_id, self._clock.boot_id()
        return moved_ms if abs(moved_ms) >= _SET_MS and before == self._boot_id else 0

    def _look(self) -> int:
        """When this boot began, as the wall clock has it."""
        return self._clock.wall_ms() - self._clock.boot_ms()


def elapsed_s() -> float:
    """Give the seconds of a clock that only goes forward, and goes on while the machine sleeps where it has such."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def refuse_time_offset(procfs: ProcFs) -> None:
    """Refuse a process whose boot clock is shifted: its leases would mean something else to others (R5.2)."""
    try:
        lines = (procfs.root / "self/timens_offsets").read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise_want(error)
        return  # a kernel without time namespaces has no offsets
    for line in lines:
        name, *offsets = line.split()
        # Older kernels write the clock's number.
        if name in {"boottime", "7"} and any(int(offset) for offset in offsets):
            raise DatabaseUnreachable(
                "this process is in a time namespace that shifts the boot clock, which leases are kept by"
            )


def install_test_clock(connection: Connection, now_ms: int) -> None:
    """
    Make ``runfacts_now_ms()`` of a PostgreSQL test database answer from the one-row table ``runfacts_test_clock``.

    The caller commits. ``set_test_clock`` moves it. Never for a database that anybody relies on.
    """
    connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS runfacts_test_clock (now_ms bigint NOT NULL)")
    connection.exec_driver_sql("DELETE FROM runfacts_test_clock")
    connection.exec_driver_sql("INSERT INTO runfacts_test_clock VALUES (%(now_ms)s)", {"now_ms": now_ms})
    connection.exec_driver_sql("GRANT SELECT ON runfacts_test_clock TO PUBLIC")
    connection.exec_driver_sql(
        "CREATE OR REPLACE FUNCTION runfacts_now_ms() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE"
        " AS 'SELECT now_ms FROM runfacts_test_clock'"
    )


def set_test_clock(connection: Connection, now_ms: int) -> None:
    """Set the time that ``runfacts_now_ms()`` of a test database answers; the caller commits."""
    connection.exec_driver_sql("UPDATE runfacts_test_clock SET now_ms = %(now_ms)s", {"now_ms": now_ms})

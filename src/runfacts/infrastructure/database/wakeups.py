"""
Wake-ups: telling whoever follows a log that there is something new in it.

A wake-up is a hint and carries nothing; readers also look by themselves now and then, and at a gap soon, because a
rollback wakes nobody. Followers in the process that wrote are told directly. Those elsewhere are told on PostgreSQL by
NOTIFY, after the commit and in a statement of its own: inside, it would make all commits of the server take turns. A
process sends one at most every ``QUIET_S``; facts that are committed meanwhile are found because a follower keeps
looking for twice that time after each wake-up. Only in a caller's transaction it must be inside, since the ledger does
not see that commit (R4.5).

Each log has a channel of its own; that of the facts is ``FACTS``. There is no thread: a follower waits in its own, on
its own connection.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from sqlalchemy import Connection, TwoPhaseTransaction
from sqlalchemy.exc import SQLAlchemyError

from runfacts.domain.errors import DatabaseError
from runfacts.domain.feeds import Waiting
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE
from runfacts.infrastructure.database.errors import raise_translated
from runfacts.infrastructure.database.forks import ForkedLock
from runfacts.infrastructure.database.sessions import own_connection
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from runfacts.infrastructure.database.connections import Database

log: Final = logging.getLogger("runfacts")

QUIET_S: Final = 0.05
"""How long a process sends no further NOTIFY after one."""

FACTS: Final = "runfacts_facts"
"""The channel of the facts."""
CANCELLATIONS: Final = "runfacts_cancellations"
"""The channel of requests to stop (R9.4). Each is announced at once: nobody looks for it soon."""

# It writes nothing that must last: no reason to wait for the disk.
_NOTIFY: Final = "SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s, '')"
_NOTIFY_WITHIN: Final = Statement("notify", {POSTGRESQL: "SELECT pg_notify(:channel, '')"})

_SOON_S: Final = 0.005
_LATER_S: Final = 0.1
_SQLITE_SHARE: Final = 10


class Wakeups:
    """The wake-ups of one log. Safe to use from several threads."""

    def __init__(self, database: Database, channel: str) -> None:
        """Nobody listens yet; ``channel`` is a plain identifier of at most 63 bytes."""
        self._database = database
        self._channel = channel
        self._quiet_s = 0.0 if channel == CANCELLATIONS else QUIET_S
        self._listeners: WeakSet[Listener] = WeakSet()
        self._lock = ForkedLock()
        self._sent_s = -self._quiet_s

    def announce(self) -> None:
        """Say that facts were committed. Never fails: the facts are there, whoever hears of it."""
        self._wake()
        if self._database.dialect == POSTGRESQL and self._turn():
            self._notify()

    def announce_within(self, transaction: Transaction, caller: Connection | Session) -> None:
        """Say with a caller's commit that there are facts, where the database can."""
        connection = caller if isinstance(caller, Connection) else caller.connection()
        # PostgreSQL prepares no transaction that has notified anybody.
        if self._database.dialect == POSTGRESQL and not isinstance(connection.get_transaction(), TwoPhaseTransaction):
            transaction.rows(_NOTIFY_WITHIN, {"channel": self._channel})

    def listen(self) -> Listener:
        """Begin to listen: what is committed from now on wakes the listener, or is found by looking soon."""
        listener = Listener(self._database, self._channel)
        with self._lock:
            self._listeners.add(listener)
        return listener

    def close(self) -> None:
        """Stop every listener."""
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.stop()

    def _wake(self) -> None:
        if self._listeners:
            with self._lock:
                listeners = list(self._listeners)
            for listener in listeners:
                listener.wake()

    def _turn(self) -> bool:
        now_s = time.monotonic()
        with self._lock:
            if now_s - self._sent_s < self._quiet_s:
                return False
            self._sent_s = now_s
        return True

    def _notify(self) -> None:
        try:
            fairy = self._database.raw_connection()
        except (DatabaseError, SQLAlchemyError, self._database.driver_error) as error:
            log.debug("no wake-up was sent: %s", type(error).__name__)
            return
        driver: Any = fairy.driver_connection
        try:
            driver.autocommit = True
            driver.execute(_NOTIFY, {"channel": self._channel})
            driver.autocommit = False
        except self._database.driver_error as error:
            log.debug("no wake-up was sent: %s", type(error).__name__)
            fairy.invalidate(error)
        finally:
            fairy.close()


class Listener:
    """Waits for wake-ups, in the thread of whoever follows. ``stop`` and ``wake`` may be called from any thread."""

    def __init__(self, database: Database, channel: str) -> None:
        """Listen from now on."""
        self._database = database
        self._channel = channel
        self._inbox, self._outbox = socket.socketpair()
        for end in (self._inbox, self._outbox):
            end.settimeout(0)
        self._driver: Any = None
        self.stopped = False
        """Whether somebody has stopped it."""
        if database.dialect == POSTGRESQL:
            # What is wrong with the database, whoever reads it hears in better words.
            with suppress(DatabaseError):
                self._connect()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up or a stop, at most so long; whether there was one."""
        if self.stopped:
            return True
        if self._driver is None and self._database.dialect == POSTGRESQL:
            # Listening anew counts as a wake-up: who knows what was missed.
            with suppress(DatabaseError):
                self._connect()
                return True
        poll = select.poll()
        poll.register(self._inbox, select.POLLIN)
        if self._driver is not None:
            poll.register(self._driver.fileno(), select.POLLIN)
        woken = bool(poll.poll(max(0.0, timeout_s) * 1_000))
        if woken:
            self._drain()
        return woken

    def wake(self) -> None:
        """End a wait, or the next one."""
        # Full: it will wake up as it is. Closed: nobody waits.
        with suppress(OSError):
            self._outbox.send(b"!")

    def stop(self) -> None:
        """End this and every further wait."""
        self.stopped = True
        self.wake()

    def close(self) -> None:
        """Give everything back, from the thread that waits."""
        self.stopped = True
        self._disconnect()
        self._inbox.close()
        self._outbox.close()

    def _connect(self) -> None:
        driver = own_connection(self._database)
        try:
            driver.execute(f'LISTEN "{self._channel}"')
        except self._database.driver_error as error:
            driver.close()
            raise_translated(error)
        self._driver = driver

    def _disconnect(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(self._database.driver_error):
                driver.close()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while self._inbox.recv(4_096):
                pass
        if self._driver is None:
            return
        try:
            for _ in self._driver.notifies(timeout=0):
                pass
        except self._database.driver_error:
            self._disconnect()


class Pace:
    """How long a follower waits for a wake-up before it looks by itself."""

    def __init__(self, dialect: str, poll_ms: int) -> None:
        """Look at least every ``poll_ms``. Soon at first: a wake-up may have been sent before anybody listened."""
        self._net_s = poll_ms / 1_000
        if dialect == SQLITE:
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

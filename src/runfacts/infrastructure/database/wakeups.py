"""
Wake-ups: telling whoever follows the facts that there are new ones.

A wake-up is a hint and carries nothing; readers also look by themselves now and then, and at a gap soon, because a
rollback wakes nobody. Followers in the process that wrote are told directly. Those elsewhere are told on PostgreSQL by
NOTIFY, after the commit and in a statement of its own: inside, it would make all commits of the server take turns. A
process sends one at most every ``QUIET_S``; facts that are committed meanwhile are found because a follower keeps
looking for twice that time after each wake-up. Only in a caller's transaction it must be inside, since the ledger does
not see that commit (R4.5).

There is no thread: a follower waits in its own, on its own connection.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from contextlib import suppress
from threading import Lock
from typing import Any, Final
from weakref import WeakSet

from sqlalchemy import Connection, TwoPhaseTransaction
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from runfacts.domain.errors import DatabaseError
from runfacts.infrastructure.database.connections import Database, Transaction
from runfacts.infrastructure.database.dialects import POSTGRESQL
from runfacts.infrastructure.database.errors import raise_translated
from runfacts.infrastructure.database.sessions import own_connection
from runfacts.infrastructure.database.statements import Statement

log: Final = logging.getLogger("runfacts")

QUIET_S: Final = 0.05
"""How long a process sends no further NOTIFY after one."""

_CHANNEL: Final = "runfacts_facts"
# It writes nothing that must last: no reason to wait for the disk.
_NOTIFY: Final = f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{_CHANNEL}', '')"
_NOTIFY_WITHIN: Final = Statement("notify", {POSTGRESQL: f"SELECT pg_notify('{_CHANNEL}', '')"})


class Wakeups:
    """The wake-ups of one database. Safe to use from several threads."""

    def __init__(self, database: Database) -> None:
        """Nobody listens yet."""
        self._database = database
        self._listeners: WeakSet[Listener] = WeakSet()
        self._lock = Lock()
        self._sent_s = -QUIET_S

    def announce(self) -> None:
        """Say that facts were committed. Never fails: the facts are there, whoever hears of it."""
        self._wake()
        if self._database.dialect == POSTGRESQL and self._turn():
            self._notify()

    def announce_within(self, transaction: Transaction, caller: Connection | Session) -> None:
        """Say with a caller's commit that there are facts, where the database can."""
        connection = caller.connection() if isinstance(caller, Session) else caller
        # PostgreSQL prepares no transaction that has notified anybody.
        if self._database.dialect == POSTGRESQL and not isinstance(connection.get_transaction(), TwoPhaseTransaction):
            transaction.rows(_NOTIFY_WITHIN)

    def listen(self) -> Listener:
        """Begin to listen: what is committed from now on wakes the listener, or is found by looking soon."""
        listener = Listener(self._database)
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
            if now_s - self._sent_s < QUIET_S:
                return False
            self._sent_s = now_s
        return True

    def _notify(self) -> None:
        try:
            fairy = self._database.engine.raw_connection()
        except (SQLAlchemyError, self._database.driver_error) as error:
            log.debug("no wake-up was sent: %s", type(error).__name__)
            return
        driver: Any = fairy.driver_connection
        try:
            driver.autocommit = True
            driver.execute(_NOTIFY)
            driver.autocommit = False
        except self._database.driver_error as error:
            log.debug("no wake-up was sent: %s", type(error).__name__)
            fairy.invalidate(error)
        finally:
            fairy.close()


class Listener:
    """Waits for wake-ups, in the thread of whoever follows. ``stop`` and ``wake`` may be called from any thread."""

    def __init__(self, database: Database) -> None:
        """Listen from now on."""
        self._database = database
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
            driver.execute(f"LISTEN {_CHANNEL}")
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

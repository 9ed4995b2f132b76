"""
Connections: short transactions on the driver's own connection, taken from SQLAlchemy's pool.

``Database.transaction()`` writes: BEGIN IMMEDIATE on SQLite, READ COMMITTED on PostgreSQL; it commits when the block
ends and leaves nothing behind when the block fails. ``reading()`` sees what is committed, statement by statement, and
holds nothing in between. ``joined()`` puts our writes into a transaction that belongs to the caller, inside a
savepoint of our own (R4.5).

When the connection breaks while COMMIT is under way nobody knows what became of it: ``OutcomeUnknown`` says so, and the
ledger looks it up (R4.6).

Objects of this module are safe to use from several threads, a transaction from one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, PoolProxiedConnection, select

from runfacts.domain.errors import (
    DatabaseBusy,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseReadOnly,
    DatabaseUnreachable,
    OutcomeUnknown,
)
from runfacts.infrastructure.database.clocks import Clock
from runfacts.infrastructure.database.combined import CombinedTransaction
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, constant
from runfacts.infrastructure.database.errors import raise_translated
from runfacts.infrastructure.database.forks import part_at_forks
from runfacts.infrastructure.database.joining import join
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import ledger_meta
from runfacts.infrastructure.database.transactions import Reading, Row, Transaction
from runfacts.infrastructure.database.wakeups import Wakeups
from runfacts.infrastructure.steps import NO_STEPS, Steps

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

__all__ = ["Database", "Reading", "Row", "Transaction"]

_LEDGER_ID: Final = Statement(
    "ledger_id", select(ledger_meta.c.value).where(ledger_meta.c.key == constant("ledger_id"))
)
_POSTGRESQL_SNAPSHOT: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class Database:
    """One database and its pool of connections."""

    def __init__(self, engine: Engine, *, clock: Clock, steps: Steps = NO_STEPS, busy_timeout_ms: int = 5_000) -> None:
        """Use ``engine`` of ``engines.build_engine``."""
        self.engine = engine
        self.dialect: str = engine.dialect.name
        self.clock = clock
        self.steps = steps
        self.driver_error: type[Exception] = engine.dialect.loaded_dbapi.Error
        self.refusal: DatabaseError | None = None
        """Why this process must not write, where it must not (R5.2)."""
        self._busy_timeout_ms = busy_timeout_ms
        # SQLite has one writer. Threads of this process take turns here instead of polling its file lock, which is
        # not fair.
        self._turn = threading.Lock()
        self._ledger_id: str | None = None
        self._wakeups: dict[str, Wakeups] = {}
        self._closed = False
        part_at_forks(self)

    def ledger_id(self) -> str:
        """Return the ledger's own id, by which another connection is known to lead to the same one."""
        if self._ledger_id is None:
            with self.reading() as reading:
                row = reading.row(_LEDGER_ID)
            if row is None:
                raise DatabaseCorrupt("the ledger has no id")
            self._ledger_id = str(row[0])
        return self._ledger_id

    def wakeups(self, channel: str) -> Wakeups:
        """Give the wake-ups of a log: the same ones to everybody who uses this object."""
        return self._wakeups.get(channel) or self._wakeups.setdefault(channel, Wakeups(self, channel))

    def close(self) -> None:
        """Stop whoever listens, and close every connection that is not in use. Whoever goes on connects anew."""
        self._stop_listeners()
        self.engine.dispose()

    def close_for_good(self) -> None:
        """Close, and refuse whoever goes on (``DatabaseUnreachable``)."""
        self._stop_listeners()
        self._closed = True
        self.engine.dispose()

    def forked(self) -> list[object]:
        """Go on in a child with connections and locks of its own; return what must be left to the parent."""
        inherited = self.engine.pool
        self.engine.dispose(close=False)
        self._turn = threading.Lock()
        return [inherited]

    def raw_connection(self) -> PoolProxiedConnection:
        """Take a connection out of the pool; raises ``DatabaseError``."""
        if self._closed:
            raise DatabaseUnreachable("this ledger is closed")
        try:
            return self.engine.raw_connection()
        except Exception as error:  # noqa: BLE001 - raised again, in our words where there are any
            raise_translated(error)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Write: commit when the block ends, roll back when it raises. Raises ``LostRace`` and ``DatabaseError``."""
        self._refuse()
        if self.dialect == SQLITE:
            if not self._turn.acquire(timeout=self._busy_timeout_ms / 1_000):
                raise DatabaseBusy("another thread is writing to the ledger for longer than the busy timeout")
            try:
                with self._connection() as fairy:
                    yield from self._write(fairy)
            finally:
                self._turn.release()
        else:
            with self._connection() as fairy:
                yield from self._write(fairy)

    def command(self) -> AbstractContextManager[Transaction]:
        """Run one command: its reads, then one ``write``; raises as ``transaction`` does.

        Differs from ``transaction`` on PostgreSQL: there the writes are one statement that commits itself, and
        nothing may be written or read after it.
        """
        return self.transaction() if self.dialect == SQLITE else self._combined()

    @contextmanager
    def _combined(self) -> Iterator[Transaction]:
        self._refuse()
        with self._connection() as fairy:
            driver: Any = fairy.driver_connection
            driver.autocommit = True
            yield CombinedTransaction(driver, self)
            driver.autocommit = False

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """Read what is committed. Every statement sees its own moment, and nothing stays locked between two."""
        with self._connection() as fairy:
            driver: Any = fairy.driver_connection
            if self.dialect == POSTGRESQL:
                driver.autocommit = True
            yield Reading(driver.cursor(), self)
            if self.dialect == POSTGRESQL:
                driver.autocommit = False

    @contextmanager
    def snapshot(self) -> Iterator[Reading]:
        """Read one moment: every statement sees the same state, and no writer waits for it.

        SQLite stores any bytes as text. Here those that are no UTF-8 are read as unpaired surrogates, as Python names
        files, instead of failing: whoever looks for damage must be able to look at it.
        """
        with self._connection() as fairy:
            driver: Any = fairy.driver_connection
            cursor = driver.cursor()
            sqlite = self.dialect == SQLITE
            if sqlite:
                driver.text_factory = _any_text
            else:
                driver.autocommit = True
            try:
                _begin(cursor, "BEGIN" if sqlite else _POSTGRESQL_SNAPSHOT, self.driver_error)
                yield Reading(cursor, self)
                driver.rollback()
            finally:
                if sqlite:
                    driver.text_factory = str
            if not sqlite:
                driver.autocommit = False

    @contextmanager
    def joined(self, caller: Connection | Session) -> Iterator[Transaction]:
        """Write inside the caller's transaction (R4.5), which the caller commits; raises ``UnsuitableConnection``."""
        self._refuse()
        yield from join(self, caller)

    def _stop_listeners(self) -> None:
        for wakeups in list(self._wakeups.values()):
            wakeups.close()

    def _refuse(self) -> None:
        if self.refusal is not None:
            # A new one each time: an exception carries the traceback of whoever got it.
            raise type(self.refusal)(self.refusal.reason)

    @contextmanager
    def _connection(self) -> Iterator[PoolProxiedConnection]:
        pool = self.engine.pool
        fairy = self.raw_connection()
        try:
            yield fairy
        except BaseException as error:
            # A session keeps what it was made with: read-only for ever, although its database is so no more.
            if not self._restore(fairy.driver_connection) or isinstance(error, DatabaseReadOnly):
                fairy.invalidate(error if isinstance(error, Exception) else None)
            raise
        finally:
            fairy.close()
            if self._closed:
                # It went back into a pool that was closed while it was in use.
                pool.dispose()

    def _write(self, fairy: PoolProxiedConnection) -> Iterator[Transaction]:
        driver: Any = fairy.driver_connection
        cursor = driver.cursor()
        if self.dialect == SQLITE:
            _begin(cursor, "BEGIN IMMEDIATE", self.driver_error)
        transaction = Transaction(cursor, self)
        yield transaction
        if transaction.failure is not None:
            raise transaction.failure
        self.steps.reached("sql:before:commit")
        try:
            driver.commit()
        except self.driver_error as error:
            if self.dialect == POSTGRESQL and driver.closed:
                raise OutcomeUnknown("the connection broke while the commit was under way") from error
            raise_translated(error)
        self.steps.reached("sql:after:commit")

    def _restore(self, driver: Any) -> bool:  # noqa: ANN401 - either driver's connection
        """Bring a connection back to where the pool wants it; whether that was possible."""
        try:
            driver.rollback()
            if self.dialect == POSTGRESQL:
                driver.autocommit = False
        except self.driver_error:
            return False
        return True


def _begin(cursor: Any, how: str, driver_error: type[Exception]) -> None:  # noqa: ANN401 - either driver's cursor
    try:
        cursor.execute(how)
    except driver_error as error:
        raise_translated(error)


def _any_text(stored: bytes) -> str:
    return stored.decode("utf-8", "surrogateescape")

"""
Our writes in a transaction that belongs to the caller (R4.5).

The caller's transaction must be able to carry them: the same ledger, the isolation that our compare-and-set stands
on, a commit that waits for the disk, and on SQLite a transaction that can still become a writer. What cannot is
refused before anything is written.

Our part stands in a savepoint: a lost race or a refusal leaves the caller's own work as it was, and the transaction
usable.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection

from runfacts.domain.errors import DatabaseBusy, UnsuitableConnection
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.errors import is_stale_snapshot, raise_translated, translate
from runfacts.infrastructure.database.transactions import Transaction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from runfacts.infrastructure.database.connections import Database

_LEDGER_ID: Final = "SELECT value FROM ledger_meta WHERE key = 'ledger_id'"
_SYNCHRONOUS_FULL: Final = 2

# One round trip: what must hold, the ledger's id, and a commit that waits for the disk (for this transaction only).
_POSTGRESQL_CHECK: Final = """
SELECT current_setting('transaction_isolation'),
       current_setting('transaction_read_only'),
       set_config('synchronous_commit',
                  CASE WHEN current_setting('synchronous_commit') = 'remote_apply' THEN 'remote_apply' ELSE 'on' END,
                  true),
       (SELECT value FROM ledger_meta WHERE key = 'ledger_id')
"""


def join(database: Database, caller: Connection | Session) -> Iterator[Transaction]:
    """Yield a transaction inside the caller's; raises ``UnsuitableConnection``."""
    connection = caller if isinstance(caller, Connection) else caller.connection()
    if (connection.dialect.name, connection.dialect.driver) != (
        database.engine.dialect.name,
        database.engine.dialect.driver,
    ):
        raise UnsuitableConnection(
            f"the connection is for {connection.dialect.name} through {connection.dialect.driver}, the ledger is"
            f" {database.engine.dialect.name} through {database.engine.dialect.driver}"
        )
    if not connection.in_transaction():
        connection.begin()
    driver: Any = connection.connection.driver_connection
    cursor = _sqlite_cursor(driver) if database.dialect == SQLITE else _postgresql_cursor(driver)
    try:
        cursor.execute("SAVEPOINT runfacts")
    except database.driver_error as error:
        raise UnsuitableConnection(f"the connection cannot be used: {translate(error) or error}") from error
    transaction = Transaction(cursor, database)
    try:
        _check_ledger(database, cursor)
        yield transaction
    except BaseException:
        _undo(database, cursor)
        raise
    if transaction.failure is not None:
        _undo(database, cursor)
        raise transaction.failure
    try:
        cursor.execute("RELEASE SAVEPOINT runfacts")
    except database.driver_error as error:
        raise_translated(error)


def _undo(database: Database, cursor: Any) -> None:  # noqa: ANN401 - either driver's cursor
    try:
        cursor.execute("ROLLBACK TO SAVEPOINT runfacts")
        cursor.execute("RELEASE SAVEPOINT runfacts")
    except database.driver_error:
        # The connection or the whole transaction is gone, and our part with it; the first error says why.
        return


def _postgresql_cursor(driver: Any) -> Any:  # noqa: ANN401 - psycopg is optional
    from psycopg.rows import tuple_row

    if driver.autocommit:
        raise UnsuitableConnection("the connection is in autocommit: facts and state would not be written together")
    return driver.cursor(row_factory=tuple_row)


def _sqlite_cursor(driver: sqlite3.Connection) -> sqlite3.Cursor:
    """Return a cursor in a transaction that has the write lock."""
    cursor = driver.cursor()
    cursor.row_factory = None
    if not driver.in_transaction and (driver.isolation_level is None or getattr(driver, "autocommit", -1) is True):
        raise UnsuitableConnection("the connection is in autocommit: facts and state would not be written together")
    if cursor.execute("PRAGMA foreign_keys").fetchone() != (1,):
        raise UnsuitableConnection("foreign keys are off; set PRAGMA foreign_keys=ON when connecting")
    if cursor.execute("PRAGMA synchronous").fetchone()[0] < _SYNCHRONOUS_FULL:
        raise UnsuitableConnection("commits do not wait for the disk; leave PRAGMA synchronous at FULL")
    try:
        if not driver.in_transaction:
            cursor.execute("BEGIN IMMEDIATE")
        # Changes nothing, but takes the write lock, or shows that it cannot be had.
        cursor.execute("UPDATE ledger_meta SET value = value WHERE 0")
    except sqlite3.Error as error:
        if is_stale_snapshot(error):
            raise UnsuitableConnection(
                "the transaction has read what others have changed since and can no longer write; use BEGIN IMMEDIATE"
            ) from error
        translated = translate(error)
        if isinstance(translated, DatabaseBusy):
            raise translated from error
        raise UnsuitableConnection(f"the transaction cannot write: {translated or error}") from error
    return cursor


def _check_ledger(database: Database, cursor: Any) -> None:  # noqa: ANN401 - either driver's cursor
    """Refuse a transaction that cannot carry our writes; inside our savepoint, so that a refusal harms nothing."""
    try:
        if database.dialect == SQLITE:
            row = cursor.execute(_LEDGER_ID).fetchone()
            ledger_id = None if row is None else row[0]
        else:
            isolation, read_only, _, ledger_id = cursor.execute(_POSTGRESQL_CHECK).fetchone()
            if isolation != "read committed":
                raise UnsuitableConnection(f"the transaction is {isolation}; the ledger needs read committed")
            if read_only != "off":
                raise UnsuitableConnection("the transaction is read-only")
    except database.driver_error as error:
        raise UnsuitableConnection(f"no ledger can be read there: {translate(error) or error}") from error
    if ledger_id != database.ledger_id():
        raise UnsuitableConnection("the connection is to another ledger")

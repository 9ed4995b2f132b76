"""
From a URL to an engine, with every connection's settings in force (R4.4).

SQLite: WAL, ``synchronous=FULL``, foreign keys, a bounded busy wait, transactions begun by us and not by the driver.
The file is created for its owner alone. PostgreSQL through psycopg 3: READ COMMITTED, statement timeout 5 s, lock
timeout 1 s, idle-in-transaction timeout 10 s, commits that wait for the disk. All are set on the session, so that a
role's, a database's or a server's own defaults do not matter.

A pooled connection whose server has gone is noticed when it is taken out, without a round trip: its socket has become
readable.
"""

from __future__ import annotations

import errno
import os
import select
import sqlite3
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, InvalidatePoolError
from sqlalchemy.pool import ConnectionPoolEntry

from runfacts.domain.errors import DatabaseError, DatabaseFull, DatabaseReadOnly, DatabaseUnreachable, MalformedUrl
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.quiet import QuietPool

STATEMENT_TIMEOUT_MS: Final = 5_000
LOCK_TIMEOUT_MS: Final = 1_000
IDLE_TIMEOUT_MS: Final = 10_000
CONNECT_TIMEOUT_S: Final = 5
APPLICATION_NAME: Final = "runfacts"
SQLITE_MINIMUM: Final = (3, 37, 0)

READING: Final = "runfacts_reading"
"""Execution option of a SQLAlchemy connection: begin a transaction that only reads."""

# Threads that use one ledger share these; more of them wait for a connection, not for the server to refuse one.
_POOL_KEPT = 8
_POOL_MOST = 32

# No file has this identity.
_LOST: Final = (-1, -1)

_UNCREATABLE: Final[Mapping[int, type[DatabaseError]]] = MappingProxyType(
    {errno.EROFS: DatabaseReadOnly, errno.ENOSPC: DatabaseFull, errno.EDQUOT: DatabaseFull}
)

# What a session must have. The value of synchronous_commit is only raised: remote_apply is stronger than on.
_POSTGRESQL_SESSION = """
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('default_transaction_deferrable', 'off', false),
       set_config('statement_timeout', %(statement)s, false),
       set_config('lock_timeout', %(lock)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle)s, false),
       set_config('synchronous_commit',
                  CASE WHEN current_setting('synchronous_commit') = 'remote_apply' THEN 'remote_apply' ELSE 'on' END,
                  false),
       set_config('client_encoding', 'UTF8', false)
"""


def parse_url(url: str) -> URL:
    """Return what ``url`` names, a SQLite file or a PostgreSQL database; else ``MalformedUrl``, without a password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise MalformedUrl("it is not of the form sqlite:///path or postgresql://host/database") from None
    if parsed.drivername in {"sqlite", "sqlite+pysqlite"}:
        return _sqlite_url(parsed)
    if parsed.drivername in {"postgresql", "postgres", "postgresql+psycopg"}:
        return parsed.set(drivername="postgresql+psycopg")
    raise MalformedUrl(f"{parsed.drivername!r} is neither sqlite nor postgresql")


def _sqlite_url(parsed: URL) -> URL:
    path = parsed.database
    if parsed.host or parsed.username or parsed.password or parsed.port:
        raise MalformedUrl("a SQLite path follows three slashes (sqlite:///relative) or four (sqlite:////absolute)")
    if path in {None, "", ":memory:"}:
        raise MalformedUrl("a ledger in memory would be gone with the process; name a file")
    if path.startswith("file:") or parsed.query:
        raise MalformedUrl("a SQLite ledger is a plain path without options")
    if "\0" in path:
        raise MalformedUrl("the path holds a NUL character")
    return parsed.set(drivername="sqlite+pysqlite")


def sqlite_path(url: URL) -> Path:
    """Return the file of a SQLite URL, as an absolute path: a later change of directory must not move the ledger."""
    return Path(url.database or "").absolute()


def build_engine(url: URL, *, busy_timeout_ms: int, wal_limit_bytes: int) -> Engine:
    """Return an engine whose connections have all the settings; nothing is connected yet."""
    if url.get_backend_name() == SQLITE:
        return _sqlite_engine(url, busy_timeout_ms, wal_limit_bytes)
    return _postgresql_engine(url, busy_timeout_ms)


def create_sqlite_file(path: Path, *, create: bool, create_directory: bool) -> None:
    """Make sure that there is a file; a new one is its owner's alone, and the journal files take its mode."""
    # Not Path.exists(): it raises where a directory on the way may not be entered.
    if os.path.exists(path):  # noqa: PTH110
        if not path.is_file():
            raise DatabaseUnreachable(f"{path} is a directory or a device, not a file")
        if not create and not path.stat().st_size:
            raise DatabaseUnreachable(f"there is no ledger at {path}, only an empty file")
        return
    if not create:
        raise DatabaseUnreachable(f"there is no ledger at {path}")
    try:
        if create_directory:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Exclusively: to close a file that another thread has just opened as a database would drop that one's locks.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileNotFoundError:
        raise DatabaseUnreachable(f"the directory {path.parent} does not exist") from None
    except OSError as error:
        kind = _UNCREATABLE.get(error.errno or 0, DatabaseUnreachable)
        raise kind(f"{path} cannot be created: {error.strerror}") from None


def _sqlite_engine(url: URL, busy_timeout_ms: int, wal_limit_bytes: int) -> Engine:
    if sqlite3.sqlite_version_info < SQLITE_MINIMUM:
        raise DatabaseUnreachable(
            f"SQLite is {sqlite3.sqlite_version}, the ledger needs {'.'.join(map(str, SQLITE_MINIMUM))}"
        )
    path = sqlite_path(url)
    opened: list[tuple[int, int]] = []
    engine = create_engine(
        url.set(database=str(path)),
        connect_args={"timeout": busy_timeout_ms / 1_000, "check_same_thread": False, "isolation_level": None},
        pool_size=_POOL_KEPT,
        max_overflow=_POOL_MOST - _POOL_KEPT,
        pool_timeout=max(1.0, busy_timeout_ms / 1_000),
        pool_use_lifo=True,
        poolclass=QuietPool,
    )

    @event.listens_for(engine, "connect")
    def _settings(connection: sqlite3.Connection, _entry: ConnectionPoolEntry) -> None:
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={int(wal_limit_bytes)}")
        _use_wal(connection, busy_timeout_ms)
        if not opened:
            opened.append(_identity(path) or _LOST)

    def same_file(*_: object) -> None:
        # A connection goes on with the file that it opened, whatever lies there now: what it writes is lost. A new
        # connection would make an empty file.
        found = _identity(path)
        if opened and opened[0] != found:
            # For good: a new file may be given the number of the old one.
            opened[0] = _LOST
            what = (
                "is not there any more" if found is None else "was replaced since the ledger was opened; open it again"
            )
            raise DatabaseUnreachable(f"{path} {what}")

    event.listen(engine, "do_connect", same_file)
    event.listen(engine, "checkout", same_file)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # The driver would begin a transaction that reads first and may then find that it can no longer write.
        reading = connection.get_execution_options().get(READING, False)
        connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")

    return engine


def _identity(path: Path) -> tuple[int, int] | None:
    """Give what one file has and no other."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _use_wal(connection: sqlite3.Connection, busy_timeout_ms: int) -> None:
    """Turn on WAL, once in a file's life. SQLite does not wait for other openers here, so we do."""
    deadline = time.monotonic() + busy_timeout_ms / 1_000
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise DatabaseUnreachable("SQLite cannot use a write-ahead log there (a file system without shared memory)")
        return


def _postgresql_engine(url: URL, busy_timeout_ms: int) -> Engine:
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import make_conninfo
    except ImportError:
        raise DatabaseUnreachable("PostgreSQL needs a driver: install runfacts[postgres]") from None
    arguments: dict[str, Any] = {"application_name": APPLICATION_NAME, "connect_timeout": CONNECT_TIMEOUT_S}
    engine = create_engine(
        url,
        connect_args={name: value for name, value in arguments.items() if name not in url.query},
        pool_size=_POOL_KEPT,
        max_overflow=_POOL_MOST - _POOL_KEPT,
        pool_timeout=max(1.0, busy_timeout_ms / 1_000),
        pool_use_lifo=True,
    )
    try:
        make_conninfo(**dict.fromkeys(url.query, "1"))
    except ProgrammingError as error:
        raise MalformedUrl(str(error)) from None

    @event.listens_for(engine, "connect", insert=True)
    def _settings(connection: Any, _entry: ConnectionPoolEntry) -> None:  # noqa: ANN401 - psycopg is optional
        connection.autocommit = True
        connection.execute(
            _POSTGRESQL_SESSION,
            {"statement": str(STATEMENT_TIMEOUT_MS), "lock": str(LOCK_TIMEOUT_MS), "idle": str(IDLE_TIMEOUT_MS)},
        )
        connection.autocommit = False

    @event.listens_for(engine, "checkout")
    def _alive(connection: Any, _entry: ConnectionPoolEntry, _proxy: object) -> None:  # noqa: ANN401 - psycopg is optional
        if connection.closed or _has_news(connection.fileno()):
            _ask(connection)

    return engine


def _has_news(descriptor: int) -> bool:
    """Whether an idle connection's socket can be read: the server has said something unasked, most often good-bye."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLPRI)
    return bool(poll.poll(0))


def _ask(connection: Any) -> None:  # noqa: ANN401 - psycopg is optional
    import psycopg

    try:
        connection.autocommit = True
        connection.execute("SELECT 1")
        connection.autocommit = False
    except psycopg.Error as error:
        # The pool drops its other connections of that age, too, and connects anew.
        raise InvalidatePoolError from error

"""
Opening a database: the one order in which file, schema and machine are looked at.

SQLite: the file is made if it may be, refused if it lies on a network or belongs to another machine (for writing
only: reading does no harm), and its schema is brought up to date. PostgreSQL: the schema is only compared; ``runfacts
migrate`` changes it.
"""

from __future__ import annotations

from runfacts.domain.errors import InvalidValue
from runfacts.infrastructure.database import ownership, schema
from runfacts.infrastructure.database.clocks import Clock, SystemClock
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.engines import build_engine, create_sqlite_file, parse_url, sqlite_path
from runfacts.infrastructure.steps import NO_STEPS, Steps

BUSY_TIMEOUT_MS = 5_000
WAL_LIMIT_BYTES = 64 << 20


def open_database(
    url: str,
    *,
    clock: Clock | None = None,
    steps: Steps = NO_STEPS,
    machine_id: str | None = None,
    create: bool = True,
    create_directory: bool = False,
    busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    wal_limit_bytes: int = WAL_LIMIT_BYTES,
) -> Database:
    """
    Open the ledger at ``url``; raises ``MalformedUrl`` or a ``DatabaseError``.

    ``machine_id`` names this machine for a SQLite file (R5.2); without one the file is bound to none. ``create`` and
    ``create_directory`` allow making a SQLite file and the directory that it lies in.
    """
    _refuse_before_creating(url)
    database = connect(
        url,
        clock=clock,
        steps=steps,
        create=create,
        create_directory=create_directory,
        busy_timeout_ms=busy_timeout_ms,
        wal_limit_bytes=wal_limit_bytes,
    )
    try:
        if database.dialect == SQLITE:
            ownership.open_file(database, machine_id)
        else:
            schema.check(database)
    except BaseException:
        database.close()
        raise
    return database


def connect(
    url: str,
    *,
    clock: Clock | None = None,
    steps: Steps = NO_STEPS,
    create: bool = False,
    create_directory: bool = False,
    busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    wal_limit_bytes: int = WAL_LIMIT_BYTES,
) -> Database:
    """Return the database at ``url`` without looking at what is in it."""
    parsed = parse_url(url)
    clock = clock or SystemClock()
    if parsed.get_backend_name() == SQLITE:
        clock.boot_id()  # refused here rather than at the first claim (R5.2)
        create_sqlite_file(sqlite_path(parsed), create=create, create_directory=create_directory)
    engine = build_engine(parsed, busy_timeout_ms=busy_timeout_ms, wal_limit_bytes=wal_limit_bytes)
    return Database(engine, clock=clock, steps=steps, busy_timeout_ms=busy_timeout_ms)


def migrate(
    url: str,
    *,
    app_role: str | None = None,
    adopt: bool = False,
    machine_id: str | None = None,
    create_directory: bool = False,
) -> schema.MigrationReport:
    """
    Create or upgrade the ledger at ``url`` (`runfacts migrate`).

    ``app_role`` (PostgreSQL) is given what the product needs and no more. ``adopt`` (SQLite) makes this machine the
    owner of a file that belongs to another one or lies on a network file system; the operator knows that nobody else
    uses it any more.
    """
    sqlite = parse_url(url).get_backend_name() == SQLITE
    if app_role is not None and sqlite:
        raise InvalidValue("app role", "is for PostgreSQL; access to a SQLite ledger is access to its file")
    if adopt and not sqlite:
        raise InvalidValue("adopt", "is for SQLite; a ledger on a server belongs to no machine")
    if not adopt:
        _refuse_before_creating(url)
    database = connect(url, create=True, create_directory=create_directory)
    try:
        if database.dialect == SQLITE:
            return ownership.migrate_file(database, machine_id, adopt=adopt)
        return schema.upgrade(database, app_role=app_role)
    finally:
        database.close()


def compare(url: str) -> schema.MigrationReport:
    """Tell what ``migrate`` would have to do, changing nothing (`runfacts migrate --check`)."""
    database = connect(url)
    try:
        return schema.compare(database)
    finally:
        database.close()


def _refuse_before_creating(url: str) -> None:
    parsed = parse_url(url)
    if parsed.get_backend_name() == SQLITE:
        ownership.refuse_new_on_network(sqlite_path(parsed))

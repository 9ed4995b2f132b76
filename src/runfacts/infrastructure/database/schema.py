"""
The schema: which release the tables are of, and how they get to the present one.

Migrations are Alembic revisions in ``migrations/``; what they made last is noted in the table ``runfacts_schema``.
Each revision runs SQL that was frozen when it was released. ``create`` makes the same from the tables of today, at
once and without Alembic: that is what a new SQLite ledger gets, and a test compares the two catalogs.

A SQLite ledger brings itself up to date when it is opened. A PostgreSQL one is only ever changed by ``runfacts
migrate``, and a schema of a later release is refused on both before anything is written.
"""

from __future__ import annotations

import sqlite3
import uuid
from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import Any, Final

from sqlalchemy import Connection, inspect
from sqlalchemy.schema import CreateIndex, CreateTable

from runfacts.domain.errors import DatabaseCorrupt, SchemaTooNew, SchemaTooOld
from runfacts.infrastructure.database.all_tables import ledger_meta, metadata
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE
from runfacts.infrastructure.database.engines import READING
from runfacts.infrastructure.database.errors import translated
from runfacts.infrastructure.database.statements import read_sql

REVISIONS: Final = ("0001", "0002", "0003", "0004")
"""Every revision of this release, oldest first."""

HEAD: Final = REVISIONS[-1]

VERSION_TABLE: Final = "runfacts_schema"
LEDGER_ID: Final = "ledger_id"
"""The key in ``ledger_meta`` of the ledger's own id: by it two URLs are known to be one ledger."""

# Any number that nobody else is likely to use; it serialises migrations of one database.
_MIGRATION_LOCK: Final = 7_297_311_408_553_311


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration found and did."""

    revision: str | None
    """The revision before; ``None`` where there was no ledger."""
    head: str
    """The revision now."""
    applied: tuple[str, ...]
    """The revisions that were run, oldest first."""


def revision(connection: Connection) -> str | None:
    """Return the revision of the tables, or ``None`` where there is no ledger."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalars().all()  # noqa: S608 - ours
    if len(found) != 1:
        raise DatabaseCorrupt(f"{VERSION_TABLE} has {len(found)} rows instead of one")
    return str(found[0])


def refuse_unknown(found: str | None) -> None:
    """Refuse a schema of a later release (``SchemaTooNew``)."""
    if found is not None and found not in REVISIONS:
        raise SchemaTooNew(f"the ledger's schema is {found}, this release knows {HEAD}; use the release that made it")


def compare(database: Database) -> MigrationReport:
    """Tell the revision that is there and the one that this release needs (``SchemaTooNew``). Reads only."""
    with translated(), database.engine.connect().execution_options(**{READING: True}) as connection:
        found = revision(connection)
    refuse_unknown(found)
    return MigrationReport(found, HEAD, ())


def check(database: Database) -> None:
    """Refuse tables of another release: ``SchemaTooOld`` (or no ledger at all) and ``SchemaTooNew``."""
    found = compare(database).revision
    if found is None:
        raise SchemaTooOld("there is no ledger in this database yet; run `runfacts migrate`")
    if found != HEAD:
        raise SchemaTooOld(f"the ledger's schema is {found}, this release needs {HEAD}; run `runfacts migrate`")


def ensure(database: Database) -> MigrationReport:
    """Create or upgrade a SQLite ledger; two processes at once do it one after the other."""
    found = compare(database)
    return found if found.revision == HEAD else upgrade(database)


def upgrade(database: Database, *, app_role: str | None = None) -> MigrationReport:
    """Bring the tables to the present release in one transaction, and give ``app_role`` its privileges (R1.1)."""
    with translated(), database.engine.begin() as connection:
        if database.dialect == POSTGRESQL:
            _wait_for_turn(connection)
        found = revision(connection)
        refuse_unknown(found)
        if found is None:
            _refuse_strangers(connection)
        if found is None and database.dialect == SQLITE:
            create(connection)
        elif found != HEAD:
            run_migrations(connection)
        if found is None:
            connection.execute(ledger_meta.insert(), {"key": LEDGER_ID, "value": str(uuid.uuid4())})
        if app_role is not None:
            from runfacts.infrastructure.database.privileges import grant

            grant(connection, app_role)
    start = 0 if found is None else REVISIONS.index(found) + 1
    return MigrationReport(found, HEAD, REVISIONS[start:])


def create(connection: Connection) -> None:
    """Create everything at once, as of this release, in the caller's transaction."""
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table))
        # In the order of the migrations: of two indexes that would do, SQLite takes the one that was made last, and in
        # SQLAlchemy's set of them the order is another one in each process.
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            connection.execute(CreateIndex(index))
    dialect = connection.dialect.name
    if dialect == POSTGRESQL:
        run_script(connection, read_sql("now.postgresql.sql"))
        run_script(connection, read_sql("lost_race.postgresql.sql"))
    run_script(connection, read_sql(f"append_only.{dialect}.sql"))
    run_script(connection, read_sql(f"forget_commands.{dialect}.sql"))
    connection.exec_driver_sql(
        f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL,"
        f" CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))"
    )
    connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} (version_num) VALUES ('{HEAD}')")  # noqa: S608 - constants


def run_script(connection: Connection, script: str) -> None:
    """Run a file of several SQL statements in the transaction of ``connection``."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == POSTGRESQL:
        # Without parameters psycopg sends the whole text at once, and the server splits it.
        driver.cursor().execute(script)
        return
    for statement in split(script):
        # Not executescript(): it would commit first.
        driver.execute(statement)


def split(script: str) -> list[str]:
    """Return the statements of a SQLite script; a trigger's own statements stay together."""
    statements: list[str] = []
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending.strip())
            pending = ""
    if pending.strip():
        raise ValueError(pending)
    return statements


def _refuse_strangers(connection: Connection) -> None:
    """Refuse a database that already has tables of our names but no ledger."""
    strangers = sorted(set(metadata.tables) & set(inspect(connection).get_table_names()))
    if strangers:
        raise DatabaseCorrupt(f"the database has a table {strangers[0]} that is not of a ledger")


def _wait_for_turn(connection: Connection) -> None:
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    connection.exec_driver_sql("SET LOCAL lock_timeout = '60s'")
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")


def run_migrations(connection: Connection) -> None:
    """Run every revision that is missing, in the transaction of ``connection``."""
    # Alembic is only loaded where there is something to migrate.
    from alembic import command
    from alembic.config import Config

    config = Config()
    with as_file(files("runfacts.infrastructure.database") / "migrations") as folder:
        config.set_main_option("script_location", str(folder).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, HEAD)

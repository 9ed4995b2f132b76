"""Migrating gives the schema of a fresh start, once, whoever asks, and never touches a later one (R1, R4)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from runfacts.domain.errors import DatabaseCorrupt, SchemaTooNew, SchemaTooOld
from runfacts.infrastructure.database import schema
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.opening import connect, migrate, open_database
from runfacts.testing.postgres import PostgresServer

CATALOG = {
    "columns": """
        SELECT table_name, ordinal_position, column_name, data_type, is_nullable, column_default, collation_name,
               is_identity, identity_generation, identity_start, identity_increment, identity_cycle
        FROM information_schema.columns WHERE table_schema = 'public'""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, contype, condeferrable, condeferred, convalidated,
               pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "triggers": """
        SELECT tgrelid::regclass::text, tgname, tgenabled, pg_get_triggerdef(oid)
        FROM pg_trigger WHERE NOT tgisinternal""",
    "functions": """
        SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace""",
    "sequences": """
        SELECT seqrelid::regclass::text, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle FROM pg_sequence""",
    "version": "SELECT version_num FROM runfacts_schema",
}


def sqlite_catalog(path: Path) -> dict[str, object]:
    """Everything that a SQLite file knows about its schema; spaces in a definition mean nothing.

    The order of indexes means something: of two that would do, SQLite takes the one that was made last.
    """
    connection = sqlite3.connect(path)
    found: dict[str, object] = {
        name: (kind, table, " ".join((text or "").split()).replace("( ", "(").replace(" )", ")"))
        for kind, name, table, text in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")
    }
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for pragma in ("table_xinfo", "foreign_key_list", "index_list"):
            rows = connection.execute(f"PRAGMA {pragma}({table})").fetchall()
            found[f"{pragma} {table}"] = rows if pragma == "index_list" else sorted(row[1:] for row in rows)
    found["version"] = connection.execute("SELECT version_num FROM runfacts_schema").fetchall()
    connection.close()
    return found


def postgres_catalog(url: str) -> dict[str, object]:
    """Everything that a PostgreSQL database knows about our schema."""
    with psycopg.connect(url) as connection:
        return {name: sorted(connection.execute(query).fetchall(), key=repr) for name, query in CATALOG.items()}


def create_at_once(database: Database) -> None:
    with database.engine.begin() as connection:
        schema.create(connection)


def migrate_step_by_step(database: Database) -> None:
    with database.engine.begin() as connection:
        schema.run_migrations(connection)


def test_migrating_a_sqlite_file_gives_the_schema_of_a_fresh_one(tmp_path: Path) -> None:
    for name, make in (("fresh", create_at_once), ("migrated", migrate_step_by_step)):
        database = connect(f"sqlite:///{tmp_path / name}", create=True)
        make(database)
        database.close()
    fresh = sqlite_catalog(tmp_path / "fresh")
    assert len(fresh) > 40
    assert sqlite_catalog(tmp_path / "migrated") == fresh


def test_migrating_a_postgresql_database_gives_the_schema_of_a_fresh_one(postgres: PostgresServer) -> None:
    urls = [postgres.create_database() for _ in range(2)]
    for url, make in zip(urls, (create_at_once, migrate_step_by_step), strict=True):
        database = connect(url)
        make(database)
        database.close()
    fresh, migrated = (postgres_catalog(url) for url in urls)
    assert all(fresh.values())
    assert migrated == fresh
    assert fresh["sequences"] == [("facts_position_seq", 1, 1, 9_223_372_036_854_775_807, 1, 1, False)]
    for url in urls:
        postgres.drop_database(url)


def test_migrating_reports_what_it_did_and_the_second_time_does_nothing(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    url = postgres.create_database()
    for each in (f"sqlite:///{tmp_path / 'ledger.db'}", url):
        assert migrate(each) == schema.MigrationReport(None, "0004", ("0001", "0002", "0003", "0004"))
        assert migrate(each) == schema.MigrationReport("0004", "0004", ())
    postgres.drop_database(url)


def test_opening_a_sqlite_ledger_creates_it_and_a_postgresql_one_never(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert schema.ensure(database).applied == ()
    database.close()
    url = postgres.create_database()
    with pytest.raises(SchemaTooOld, match="runfacts migrate"):
        open_database(url)
    with psycopg.connect(url) as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchone() == (0,)
    postgres.drop_database(url)


def test_a_later_schema_is_refused_before_anything_is_written(database_url: str) -> None:
    migrate(database_url)
    database = connect(database_url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE runfacts_schema SET version_num = '9999'")
    for attempt in (lambda: open_database(database_url), lambda: migrate(database_url)):
        with pytest.raises(SchemaTooNew, match="9999"):
            attempt()
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT version_num FROM runfacts_schema").scalars().all() == ["9999"]
    database.close()


def test_tables_of_our_names_that_are_no_ledger_are_left_alone(tmp_path: Path, postgres: PostgresServer) -> None:
    url = postgres.create_database()
    for each in (f"sqlite:///{tmp_path / 'other.db'}", url):
        database = connect(each, create=True)
        with database.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE runs (mine integer)")
        with pytest.raises(DatabaseCorrupt, match="table runs"):
            migrate(each)
        with database.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM runs").scalar() == 0
        database.close()
    postgres.drop_database(url)


def test_a_migration_that_fails_leaves_nothing_behind(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.create_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE FUNCTION runfacts_now_ms() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        with pytest.raises(Exception, match="runfacts_now_ms"):
            migrate(url)
        assert connection.execute("SELECT to_regclass('facts'), to_regclass('runfacts_schema')").fetchone() == (
            None,
            None,
        )
    postgres.drop_database(url)
    monkeypatch.setattr(schema, "read_sql", lambda _: "CREATE TABLE facts (again integer);")
    with pytest.raises(Exception, match="facts already exists"):
        migrate(f"sqlite:///{tmp_path / 'ledger.db'}")
    file = sqlite3.connect(tmp_path / "ledger.db")
    assert file.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    file.close()


def race(url: str) -> list[str]:
    """Let two processes migrate at once; how many revisions each of them applied."""
    program = (
        "import sys; from runfacts.infrastructure.database.opening import migrate; print('ready', flush=True);"
        " sys.stdin.readline(); print(len(migrate(sys.argv[1]).applied))"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    return sorted(racer.communicate(timeout=60)[0].strip() for racer in racers)


def test_processes_that_migrate_a_file_at_once_do_it_one_after_the_other(tmp_path: Path) -> None:
    assert race(f"sqlite:///{tmp_path / 'ledger.db'}") == ["0", "4"]


def test_processes_that_migrate_a_database_at_once_do_it_one_after_the_other(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    assert race(url) == ["0", "4"]
    postgres.drop_database(url)

"""What only one of the databases could do to a fact, and what the product's own role may not (R1.1)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from runfacts.domain.errors import DatabaseReadOnly, InvalidValue
from runfacts.infrastructure.database.clocks import set_test_clock
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.defences import defences
from runfacts.infrastructure.database.opening import migrate, open_database
from runfacts.infrastructure.database.statements import Statement
from runfacts.testing.postgres import PostgresServer

RUN = "01890000-0000-7000-8000-000000000001"
COLUMNS = (
    "run_id, sequence, type, schema_version, project, actor_type, recorded_at_ms, payload, aggregate_id,"
    " aggregate_version, hash"
)


def values(sequence: int) -> str:
    return f"'{RUN}', {sequence}, 'run.created', 1, 'p', 'user', 1, '{{}}', '{RUN}', {sequence}, '{'d' * 64}'"


@pytest.fixture
def ledger_file(tmp_path: Path) -> Path:
    """A SQLite ledger with two facts."""
    path = tmp_path / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        for sequence in (1, 2):
            connection.execute(f"INSERT INTO facts ({COLUMNS}) VALUES ({values(sequence)})")
    connection.close()
    return path


@pytest.mark.parametrize(
    "statement",
    [
        f"REPLACE INTO facts ({COLUMNS}) VALUES ({values(2)})",
        f"INSERT OR REPLACE INTO facts (position, {COLUMNS}) VALUES (2, {values(3)})",
        f"REPLACE INTO facts (position, {COLUMNS}) VALUES (1, {values(7)})",
    ],
)
def test_replace_removes_no_fact_from_a_file_that_any_program_opened(ledger_file: Path, statement: str) -> None:
    connection = sqlite3.connect(ledger_file)
    before = connection.execute("SELECT * FROM facts").fetchall()
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE constraint failed: facts"):
        connection.execute(statement)
    assert connection.execute("SELECT * FROM facts").fetchall() == before
    connection.close()


@pytest.mark.parametrize("position", [4, 1_000, 9_223_372_036_854_775_807])
def test_a_leap_of_positions_is_refused(ledger_file: Path, position: int) -> None:
    connection = sqlite3.connect(ledger_file)
    with pytest.raises(sqlite3.IntegrityError, match="positions are dense"):
        connection.execute(f"INSERT INTO facts (position, {COLUMNS}) VALUES ({position}, {values(3)})")
    connection.close()


@pytest.fixture
def app_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a PostgreSQL ledger for a role that has what ``migrate --app-role`` gives; its name needs quotes."""
    owner_url = postgres.create_database()
    role = f'app "{uuid4().hex[:8]}"'
    with psycopg.connect(owner_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(role)))
        migrate(owner_url, app_role=role)
        yield make_url(owner_url).set(username=role).render_as_string(hide_password=False)
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))
    postgres.drop_database(owner_url)


def attempt(database: Database, statement: str) -> None:
    with database.transaction() as transaction:
        transaction.run(Statement("attempt", {database.dialect: statement}))


def test_the_products_role_reads_and_appends_facts_and_nothing_else(app_url: str) -> None:
    database = open_database(app_url)
    attempt(database, f"INSERT INTO facts ({COLUMNS}) VALUES ({values(1)})")
    for statement in (
        "UPDATE facts SET payload = '[]'",
        "DELETE FROM facts",
        "TRUNCATE facts",
        "ALTER TABLE facts DISABLE TRIGGER facts_refuse_change",
        "DROP TABLE facts",
        "DELETE FROM runs",
        "TRUNCATE runs",
        "DELETE FROM attempts",
        "DELETE FROM executions",
        "DELETE FROM cancellation_dispatches",
        "TRUNCATE cancellation_dispatches",
        "DELETE FROM recovery_claims",
        "TRUNCATE recovery_claims",
        "DELETE FROM workers",
        "UPDATE commands SET cwd = '/'",
        "TRUNCATE commands",
        "UPDATE ledger_meta SET value = 'x'",
        "UPDATE runfacts_schema SET version_num = 'x'",
        "SELECT nextval('facts_position_seq')",
        "SELECT setval('facts_position_seq', 1)",
    ):
        with pytest.raises((DatabaseReadOnly, psycopg.errors.InsufficientPrivilege)):
            attempt(database, statement)
    for table in ("runs", "attempts", "executions", "cancellation_dispatches", "recovery_claims"):
        attempt(database, f"UPDATE {table} SET run_id = run_id")
    attempt(database, "UPDATE workers SET worker_id = worker_id")
    with database.reading() as reading:
        assert reading.rows(Statement("positions", {"postgresql": "SELECT position FROM facts"})) == [(1,)]
        assert reading.now_ms() > 0
    weak = [defence for defence in defences(database) if not defence.ok]
    assert [defence.name for defence in weak] == ["durability"]  # the test server does not wait for the disk
    database.close()


def test_even_the_owner_of_the_tables_is_refused(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"INSERT INTO facts ({COLUMNS}) VALUES ({values(1)})")
        connection.execute("SET session_replication_role = replica")
        for statement in ("UPDATE facts SET payload = '[]'", "DELETE FROM facts", "TRUNCATE facts"):
            with pytest.raises(psycopg.errors.RestrictViolation, match="facts are append-only"):
                connection.execute(statement)
        assert connection.execute("SELECT count(*) FROM facts").fetchone() == (1,)
    postgres.drop_database(url)


def test_an_app_role_must_exist_and_be_no_superuser(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    with pytest.raises(InvalidValue, match="does not exist"):
        migrate(url, app_role="nobody at all")
    with pytest.raises(InvalidValue, match="superuser"):
        migrate(url, app_role="postgres")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass('facts')").fetchone() == (None,)
    postgres.drop_database(url)


def test_the_defences_show_what_is_missing(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    migrate(url)
    database = open_database(url)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE facts DISABLE TRIGGER facts_refuse_truncate")
        connection.exec_driver_sql("ALTER TABLE facts ALTER COLUMN position SET CACHE 20")
        connection.exec_driver_sql("CREATE TABLE runfacts_test_clock (now_ms bigint)")
        connection.exec_driver_sql("INSERT INTO runfacts_test_clock VALUES (0)")
        connection.exec_driver_sql(
            "CREATE OR REPLACE FUNCTION runfacts_now_ms() RETURNS bigint LANGUAGE sql STABLE"
            " AS 'SELECT now_ms FROM runfacts_test_clock'"
        )
        set_test_clock(connection, 1)
    weak = {defence.name: defence.detail for defence in defences(database) if not defence.ok}
    assert weak == {
        "durability": "weakened by fsync, full_page_writes",
        "append_only": "missing or disabled triggers: facts_refuse_truncate",
        "positions": "positions must be GENERATED ALWAYS AS IDENTITY, CACHE 1, NO CYCLE, INCREMENT 1",
        "privileges": "this role may UPDATE, DELETE, TRUNCATE",
        "time": "runfacts_now_ms() was replaced",
    }
    database.close()
    postgres.drop_database(url)


def test_a_sqlite_ledger_has_all_defences_from_the_start(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert [(defence.name, defence.ok) for defence in defences(database)] == [
        ("journal", True),
        ("durability", True),
        ("foreign_keys", True),
        ("append_only", True),
        ("file_mode", True),
    ]
    (tmp_path / "ledger.db").chmod(0o644)
    attempt(database, "DROP TRIGGER facts_refuse_gap")
    assert {defence.name: defence.detail for defence in defences(database) if not defence.ok} == {
        "append_only": "missing or disabled triggers: facts_refuse_gap",
        "file_mode": "the file's mode is 0644; others need no access",
    }
    database.close()

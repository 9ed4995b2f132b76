"""The settings of R4.4 are in force on every connection, whatever server, role or file would have by themselves."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from runfacts import Actor, Ledger, Settings
from runfacts.domain.errors import DatabaseBusy, DatabaseReadOnly, DatabaseUnreachable, InvalidSetting
from runfacts.infrastructure.database.engines import create_sqlite_file
from runfacts.infrastructure.database.opening import connect, migrate, open_database
from runfacts.infrastructure.database.statements import Statement
from runfacts.testing.postgres import PostgresServer

SETTINGS = (
    "default_transaction_isolation",
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "synchronous_commit",
    "application_name",
)
SHOWN = Statement(
    "shown",
    {"postgresql": "SELECT " + ", ".join(f"current_setting('{name}')" for name in SETTINGS)},
)


def test_single_settings_beside_settings_made_before_are_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="fact_page is given beside settings"):
        Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", settings=Settings(), fact_page=3)
    assert list(tmp_path.iterdir()) == []


def test_a_connection_made_while_the_database_was_read_only_is_not_used_when_it_is_so_no_more(
    postgres: PostgresServer,
) -> None:
    url = postgres.create_database()
    migrate(url)
    actor = Actor.user("ana")
    with Ledger.open(url) as ledger, psycopg.connect(url, autocommit=True) as connection:
        run_id = ledger.create(actor=actor, task="t").run.run_id
        setting = f"ALTER DATABASE {connection.info.dbname} {{}}default_transaction_read_only{{}}"
        connection.execute(setting.format("SET ", " = on").encode())
        # Whoever was connected before would go on; this is a server that was restarted so.
        ledger.database.close()
        with pytest.raises(DatabaseReadOnly):
            ledger.queue(run_id, actor=actor)
        connection.execute(setting.format("RESET ", "").encode())
        ledger.queue(run_id, actor=actor)
        assert ledger.run(run_id).status == "queued"


def test_a_postgresql_connection_has_our_settings_and_not_its_databases(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    migrate(url)
    with psycopg.connect(url, autocommit=True) as connection:
        for setting, value in (
            ("default_transaction_isolation", "'repeatable read'"),
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            ("idle_in_transaction_session_timeout", "0"),
            ("synchronous_commit", "off"),
        ):
            name = connection.info.dbname
            connection.execute(f"ALTER DATABASE {name} SET {setting} = {value}".encode())
    database = open_database(url)
    with database.reading() as reading:
        assert reading.row(SHOWN) == ("read committed", "5s", "1s", "10s", "on", "runfacts")
    with database.transaction() as transaction:
        assert transaction.row(SHOWN) == ("read committed", "5s", "1s", "10s", "on", "runfacts")
        level = Statement("level", {"postgresql": "SHOW transaction_isolation"})
        assert transaction.row(level) == ("read committed",)
    with database.engine.connect() as core:
        assert core.exec_driver_sql("SHOW lock_timeout").scalar() == "1s"
    database.close()
    postgres.drop_database(url)


def test_a_commit_that_waits_for_the_standby_is_left_as_it_is(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    migrate(url)
    database = connect(url + "&options=-csynchronous_commit%3Dremote_apply&application_name=mine")
    with database.reading() as reading:
        assert reading.row(SHOWN) == ("read committed", "5s", "1s", "10s", "remote_apply", "mine")
    database.close()
    postgres.drop_database(url)


def test_a_sqlite_connection_has_our_settings(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}", busy_timeout_ms=1_234, wal_limit_bytes=1 << 20)
    wanted = {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 1_234,
        "journal_size_limit": 1 << 20,
    }
    with database.transaction() as one, database.reading() as other:
        for connection in (one, other):
            found = {name: connection.row(Statement(name, {"sqlite": f"PRAGMA {name}"})) for name in wanted}
            assert found == {name: (value,) for name, value in wanted.items()}
    database.close()


def test_a_sqlite_ledger_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        database = open_database(f"sqlite:///{tmp_path / 'new' / 'ledger.db'}", create_directory=True)
        with database.reading() as reading:
            reading.row(Statement("one", {"sqlite": "SELECT count(*) FROM runs"}))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    files = sorted((tmp_path / "new").iterdir())
    assert [file.name for file in files] == ["ledger.db", "ledger.db-shm", "ledger.db-wal"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    database.close()


def test_a_relative_path_stays_where_it_was_when_the_ledger_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = open_database("sqlite:///ledger.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    database.engine.dispose()
    with database.reading() as reading:
        assert reading.row(Statement("one", {"sqlite": "SELECT count(*) FROM runs"})) == (0,)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    database.close()


def test_many_connections_turn_on_the_write_ahead_log_at_once(tmp_path: Path) -> None:
    program = (
        "import sys; from runfacts.infrastructure.database.opening import open_database; print('ready', flush=True);"
        " sys.stdin.readline(); open_database(sys.argv[1]).close(); print('opened')"
    )
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", program, f"sqlite:///{tmp_path / 'ledger.db'}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    assert [racer.communicate(timeout=60)[0].strip() for racer in racers] == ["opened"] * 3


def test_a_ledger_that_is_not_to_be_created_is_not(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnreachable, match="there is no ledger"):
        open_database(f"sqlite:///{tmp_path / 'ledger.db'}", create=False)
    with pytest.raises(DatabaseUnreachable, match="does not exist"):
        open_database(f"sqlite:///{tmp_path / 'no' / 'ledger.db'}")
    with pytest.raises(DatabaseUnreachable, match="is a directory or a device"):
        open_database(f"sqlite:///{tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_no_ledger_where_none_is_to_be_created(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(DatabaseUnreachable, match="only an empty file"):
        open_database(f"sqlite:///{path}", create=False)
    assert path.stat().st_size == 0
    open_database(f"sqlite:///{path}").close()
    open_database(f"sqlite:///{path}", create=False).close()


def test_a_sqlite_ledger_loads_neither_the_postgresql_driver_nor_alembic(tmp_path: Path) -> None:
    program = (
        "import sys; from runfacts.infrastructure.database.opening import open_database;"
        f" open_database('sqlite:///{tmp_path / 'ledger.db'}').close();"
        " print([name for name in ('psycopg', 'psycopg_binary', 'alembic', 'mako') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_a_missing_driver_is_said_in_one_line(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from runfacts.infrastructure.database.opening import open_database\n"
        "try: open_database('postgresql://localhost/x')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout.strip() == "DatabaseUnreachable PostgreSQL needs a driver: install runfacts[postgres]"


def test_a_file_that_another_program_made_without_a_write_ahead_log_gets_one(tmp_path: Path) -> None:
    file = sqlite3.connect(tmp_path / "ledger.db")
    file.execute("CREATE TABLE theirs (x)")
    file.close()
    database = open_database(f"sqlite:///{tmp_path / 'ledger.db'}")
    with database.reading() as reading:
        assert reading.row(Statement("journal_mode", {"sqlite": "PRAGMA journal_mode"})) == ("wal",)
    database.close()


def test_switching_to_the_write_ahead_log_waits_no_longer_than_the_busy_timeout(tmp_path: Path) -> None:
    holder = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    holder.execute("CREATE TABLE theirs (x)")
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DatabaseBusy):
        open_database(f"sqlite:///{tmp_path / 'ledger.db'}", busy_timeout_ms=50)
    holder.close()


def test_a_file_that_another_thread_made_meanwhile_keeps_its_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.4: a process that closes any descriptor of a file loses all of its locks on it."""
    path = tmp_path / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        assert ledger.runs().items == ()
        before = locks_on(path)
        assert before
        monkeypatch.setattr("os.path.exists", lambda _: False)
        create_sqlite_file(path, create=True, create_directory=False)
        assert locks_on(path) == before


def locks_on(path: Path) -> list[str]:
    """What this process has locked of the file, as the kernel tells it."""
    file = f":{path.stat().st_ino} "
    return [line.split(":", 1)[1] for line in Path("/proc/locks").read_text().splitlines() if file in line]

"""What databases say, in our words: busy, full, read-only, corrupt, unreachable, lost races (R4.3 to R4.6)."""

from __future__ import annotations

import ctypes
import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import bindparam, create_engine, insert, update

from runfacts import Ledger, Recorded
from runfacts.domain.errors import (
    DatabaseBusy,
    DatabaseCorrupt,
    DatabaseFull,
    DatabaseReadOnly,
    DatabaseUnreachable,
    OutcomeUnknown,
    UnsuitableConnection,
)
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.engines import parse_url
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.opening import migrate, open_database
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import ledger_meta
from runfacts.testing.postgres import PostgresServer
from stages import ANA, created

DEADLINE_S = 30
PUT = Statement("put", insert(ledger_meta).values(key=bindparam("key"), value=bindparam("value")))
SET = Statement(
    "set", update(ledger_meta).where(ledger_meta.c.key == bindparam("which")).values(value=bindparam("value"))
)
COUNT = Statement("count", dict.fromkeys(("sqlite", "postgresql"), "SELECT count(*) FROM ledger_meta"))


def put(database: Database, key: str, value: str = "x") -> None:
    with database.transaction() as transaction:
        transaction.run(PUT, {"key": key, "value": value})


def count(database: Database) -> int:
    with database.reading() as reading:
        row = reading.row(COUNT)
    assert row is not None
    return int(row[0])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A SQLite ledger."""
    path = tmp_path / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def sqlite_ledger(file: Path) -> Iterator[Database]:
    """An open SQLite ledger that waits 50 ms for a lock."""
    database = open_database(f"sqlite:///{file}", busy_timeout_ms=50)
    yield database
    database.close()


@pytest.fixture
def ledger(postgres: PostgresServer) -> Iterator[Database]:
    """An open PostgreSQL ledger."""
    url = postgres.create_database()
    migrate(url)
    database = open_database(url)
    yield database
    database.close()
    postgres.drop_database(url)


def url_of(database: Database) -> str:
    return database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)


def test_a_sqlite_writer_waits_its_busy_timeout_and_then_says_so(file: Path, sqlite_ledger: Database) -> None:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseBusy, match="another process"):
        put(sqlite_ledger, "a")
    assert count(sqlite_ledger) == 1
    other.execute("ROLLBACK")
    put(sqlite_ledger, "a")
    other.close()


def test_threads_of_one_process_wait_for_each_other_as_long(sqlite_ledger: Database) -> None:
    answers: list[BaseException] = []

    def write() -> None:
        try:
            put(sqlite_ledger, "a")
        except DatabaseBusy as error:
            answers.append(error)

    with sqlite_ledger.transaction():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
    assert [str(answer) for answer in answers] == [
        "another thread is writing to the ledger for longer than the busy timeout"
    ]


def test_a_transaction_that_read_before_others_wrote_is_unsuitable(file: Path, sqlite_ledger: Database) -> None:
    engine = create_engine(f"sqlite:///{file}", connect_args={"isolation_level": "DEFERRED"})
    with engine.connect() as caller:
        caller.exec_driver_sql("PRAGMA foreign_keys=ON")
        caller.exec_driver_sql("BEGIN")
        caller.exec_driver_sql("SELECT count(*) FROM ledger_meta").all()
        put(sqlite_ledger, "a")
        with pytest.raises(UnsuitableConnection, match="BEGIN IMMEDIATE"), sqlite_ledger.joined(caller):
            pytest.fail("the connection was taken")
    engine.dispose()


def test_a_file_that_was_removed_is_not_made_anew_by_a_ledger_that_is_open(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(f"sqlite:///{path}") as ledger:
        created(ledger)
        kept = path.read_bytes()
        for suffix in ("", "-wal", "-shm"):
            path.with_name(f"ledger.db{suffix}").unlink()
        for _ in range(2):
            with pytest.raises(DatabaseUnreachable, match="not there any more"):
                created(ledger)
        assert list(tmp_path.iterdir()) == []
        path.write_bytes(kept)
        with pytest.raises(DatabaseUnreachable, match="open it again"):
            created(ledger)


def test_a_file_that_was_replaced_or_removed_is_not_written_unseen(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(url) as ledger:
        run_id = created(ledger)
        with sqlite3.connect(tmp_path / "ledger.db") as copying:
            copying.execute("VACUUM INTO ?", [str(tmp_path / "backup.db")])
        later = created(ledger)
        for suffix in ("", "-wal", "-shm"):
            (tmp_path / f"ledger.db{suffix}").unlink()
        with pytest.raises(DatabaseUnreachable, match="not there any more"):
            ledger.run(run_id)
        (tmp_path / "backup.db").rename(tmp_path / "ledger.db")
        calls: list[Callable[[], object]] = [lambda: ledger.run(later), lambda: ledger.queue(run_id, actor=ANA)]
        for call in calls:
            with pytest.raises(DatabaseUnreachable, match="was replaced since the ledger was opened; open it again"):
                call()
        with Ledger.open(url) as again:
            assert [item.run_id for item in again.runs().items] == [run_id]
            assert isinstance(again.queue(run_id, actor=ANA), Recorded)


@pytest.mark.parametrize(
    ("pragma", "said"),
    [
        ("foreign_keys=OFF", "foreign keys"),
        ("synchronous=NORMAL", "wait for the disk"),
        ("query_only=ON", "cannot write"),
    ],
)
def test_a_sqlite_connection_with_weaker_settings_is_unsuitable(
    file: Path, sqlite_ledger: Database, pragma: str, said: str
) -> None:
    engine = create_engine(f"sqlite:///{file}")
    with engine.connect() as caller:
        driver: Any = caller.connection.driver_connection
        driver.execute("PRAGMA foreign_keys=ON")
        driver.execute(f"PRAGMA {pragma}")
        with pytest.raises(UnsuitableConnection, match=said), sqlite_ledger.joined(caller):
            pytest.fail("the connection was taken")
    engine.dispose()


def test_a_joined_transaction_waits_for_another_writer_and_then_says_so(file: Path, sqlite_ledger: Database) -> None:
    assert sqlite_ledger.ledger_id()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 0.05})
    with engine.connect() as caller:
        driver: Any = caller.connection.driver_connection
        driver.execute("PRAGMA foreign_keys=ON")
        with pytest.raises(DatabaseBusy), sqlite_ledger.joined(caller):
            pytest.fail("the lock was had twice")
    other.close()
    engine.dispose()


def test_a_full_disk_is_said_and_leaves_the_ledger_as_it_was(sqlite_ledger: Database) -> None:
    driver: Any
    with sqlite_ledger.engine.connect() as connection:
        driver = connection.connection.driver_connection
        (pages,) = driver.execute("PRAGMA page_count").fetchone()
        driver.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(DatabaseFull), sqlite_ledger.transaction() as transaction:
        transaction.run_many(PUT, [{"key": f"{number}", "value": "x" * 256} for number in range(1_000)])
    assert count(sqlite_ledger) == 1
    driver.execute("PRAGMA max_page_count=1000000")
    put(sqlite_ledger, "a")


@pytest.mark.parametrize("content", [b"this is no database" * 100, b"SQLite format 3\0" + b"\xff" * 5_000])
def test_a_file_that_is_no_database_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(DatabaseCorrupt):
        open_database(f"sqlite:///{path}")
    assert path.read_bytes() == content


def test_a_place_where_nothing_can_be_created_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = {
        errno.EROFS: DatabaseReadOnly,
        errno.EACCES: DatabaseUnreachable,
        errno.ENOSPC: DatabaseFull,
        errno.EDQUOT: DatabaseFull,
    }
    really_open = os.open
    for code, expected in codes.items():

        def refuse(path: str | Path, flags: int, *more: int, code: int = code) -> int:
            if flags & os.O_CREAT:
                raise OSError(code, os.strerror(code))
            return really_open(path, flags, *more)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", refuse)
            with pytest.raises(expected, match=os.strerror(code)):
                open_database(f"sqlite:///{tmp_path / 'ledger.db'}")


def test_a_lock_that_is_not_granted_is_busy(ledger: Database) -> None:
    put(ledger, "a")
    with psycopg.connect(url_of(ledger)) as other:
        other.execute("UPDATE ledger_meta SET value = 'theirs' WHERE key = 'a'")
        with pytest.raises(DatabaseBusy, match="lock timeout"), ledger.transaction() as transaction:
            transaction.run(SET, {"which": "a", "value": "ours"})
        other.rollback()
    put(ledger, "b")


def test_a_statement_that_takes_too_long_is_busy(ledger: Database) -> None:
    shorter = Statement("shorter", {"postgresql": "SET LOCAL statement_timeout = '50ms'"})
    sleep = Statement("sleep", {"postgresql": "SELECT pg_sleep(30)"})

    def wait() -> None:
        with ledger.transaction() as transaction:
            transaction.run(shorter)
            transaction.rows(sleep)

    with pytest.raises(DatabaseBusy, match="statement timeout"):
        wait()
    put(ledger, "a")


def waiting(connection: psycopg.Connection) -> bool:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    return row is not None and row[0] > 0


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_deadlock_is_a_lost_race(ledger: Database) -> None:
    put(ledger, "a")
    put(ledger, "b")
    faster = Statement("faster", {"postgresql": "SET LOCAL deadlock_timeout = '10ms'"})
    answers: list[str] = []

    def lose() -> None:
        try:
            with ledger.transaction() as transaction:
                transaction.run(faster)
                transaction.run(SET, {"which": "b", "value": "ours"})
                ready.set()
                go.wait(DEADLINE_S)
                transaction.run(SET, {"which": "a", "value": "ours"})
        except LostRace as error:
            answers.append(error.constraint)

    ready, go = threading.Event(), threading.Event()
    thread = threading.Thread(target=lose)
    with (
        psycopg.connect(url_of(ledger)) as other,
        psycopg.connect(url_of(ledger), autocommit=True) as watcher,
    ):
        other.execute("UPDATE ledger_meta SET value = 'theirs' WHERE key = 'a'")
        thread.start()
        assert ready.wait(DEADLINE_S)
        # The other side never looks for a deadlock in time, so it is ours that is found and ended.
        other.execute("SET LOCAL deadlock_timeout = '1h'")
        crossing = threading.Thread(
            target=other.execute, args=("UPDATE ledger_meta SET value = 'theirs' WHERE key = 'b'",)
        )
        crossing.start()
        assert eventually(lambda: waiting(watcher))
        go.set()
        thread.join(DEADLINE_S)
        crossing.join(DEADLINE_S)
    assert answers == ["deadlock"]


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_of_another_isolation_is_unsuitable(ledger: Database, isolation: str) -> None:
    engine = create_engine(parse_url(url_of(ledger)), isolation_level=isolation)
    with (
        engine.connect() as caller,
        pytest.raises(UnsuitableConnection, match=isolation.lower()),
        ledger.joined(caller),
    ):
        pytest.fail("the connection was taken")
    engine.dispose()


def test_a_refused_connection_keeps_its_own_work(ledger: Database, postgres: PostgresServer) -> None:
    other_url = postgres.create_database()
    engine = create_engine(parse_url(other_url))
    with engine.connect() as caller:
        caller.exec_driver_sql("CREATE TABLE mine (x int)")
        with pytest.raises(UnsuitableConnection, match="no ledger"), ledger.joined(caller):
            pytest.fail("the connection was taken")
        caller.exec_driver_sql("INSERT INTO mine VALUES (1)")
        caller.commit()
        assert caller.exec_driver_sql("SELECT x FROM mine").scalar() == 1
    engine.dispose()
    postgres.drop_database(other_url)


def test_a_transaction_that_has_failed_is_unsuitable(ledger: Database) -> None:
    engine = create_engine(parse_url(url_of(ledger)))
    with engine.connect() as caller:
        driver: Any = caller.connection.driver_connection
        with pytest.raises(psycopg.errors.UndefinedTable):
            driver.execute("SELECT * FROM nowhere")
        with pytest.raises(UnsuitableConnection), ledger.joined(caller):
            pytest.fail("the connection was taken")
    engine.dispose()


def test_a_commit_of_the_callers_waits_for_the_disk_all_the_same(ledger: Database) -> None:
    engine = create_engine(parse_url(url_of(ledger)))
    with engine.connect() as caller:
        caller.exec_driver_sql("SET synchronous_commit = off")
        with ledger.joined(caller):
            pass
        assert caller.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        caller.commit()
        assert caller.exec_driver_sql("SHOW synchronous_commit").scalar() == "off"
    engine.dispose()


def test_a_read_only_transaction_is_unsuitable(ledger: Database) -> None:
    engine = create_engine(parse_url(url_of(ledger)))
    with (
        engine.connect().execution_options(postgresql_readonly=True) as caller,
        pytest.raises(UnsuitableConnection, match="read-only"),
        ledger.joined(caller),
    ):
        pytest.fail("the connection was taken")
    engine.dispose()


def test_a_read_only_database_is_said_to_be_one(ledger: Database) -> None:
    read_only = Statement("read_only", {"postgresql": "SET LOCAL transaction_read_only = on"})

    def write() -> None:
        with ledger.transaction() as transaction:
            transaction.run(read_only)
            transaction.run(PUT, {"key": "a", "value": "x"})

    with pytest.raises(DatabaseReadOnly):
        write()


def test_an_unreachable_server_is_said_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnreachable) as caught:
        open_database(f"postgresql://ana:sesame@/ledger?host={tmp_path}")
    assert "sesame" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_database_that_does_not_exist_is_unreachable(postgres: PostgresServer) -> None:
    with pytest.raises(DatabaseUnreachable, match="does not exist"):
        open_database(postgres.url("nowhere"))


def end_all(database: Database) -> None:
    with psycopg.connect(url_of(database), autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def test_connections_whose_server_went_away_are_replaced_unseen(ledger: Database) -> None:
    with ledger.reading(), ledger.reading():
        pass
    end_all(ledger)
    put(ledger, "a")
    assert count(ledger) == 2
    end_all(ledger)
    assert count(ledger) == 2


def test_a_server_that_is_down_is_unreachable_and_one_that_is_back_is_used_again() -> None:
    with PostgresServer.start(18) as server:
        url = server.create_database()
        migrate(url)
        database = open_database(url)
        put(database, "a")
        server.stop_immediately()
        for _ in range(2):
            with pytest.raises(DatabaseUnreachable):
                put(database, "b")
        server.restart()
        put(database, "b")
        assert count(database) == 3
        database.close()


def test_more_threads_than_connections_wait_and_are_then_told(sqlite_ledger: Database) -> None:
    with ExitStack() as held:
        for _ in range(32):
            held.enter_context(sqlite_ledger.reading())
        with pytest.raises(DatabaseBusy, match="every connection"):
            count(sqlite_ledger)
    assert count(sqlite_ledger) == 1


class Ending:
    """Ends every connection at one step."""

    def __init__(self, database: Database, step: str) -> None:
        self.database = database
        self.step = step

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        if name == self.step:
            end_all(self.database)


def test_a_connection_that_breaks_before_the_commit_recorded_nothing(ledger: Database) -> None:
    ledger.steps = Ending(ledger, "sql:before:put")
    with pytest.raises(DatabaseUnreachable):
        put(ledger, "a")
    assert count(ledger) == 1


def test_a_connection_that_breaks_under_the_commit_leaves_the_outcome_open(ledger: Database) -> None:
    ledger.steps = Ending(ledger, "sql:before:commit")
    with pytest.raises(OutcomeUnknown):
        put(ledger, "a")
    assert count(ledger) == 1


def test_a_transaction_left_idle_too_long_is_ended_by_the_server(ledger: Database) -> None:
    sooner = Statement("sooner", {"postgresql": "SET LOCAL idle_in_transaction_session_timeout = '10ms'"})

    def dawdle() -> None:
        with psycopg.connect(url_of(ledger), autocommit=True) as watcher, ledger.transaction() as transaction:
            transaction.run(sooner)
            assert eventually(
                lambda: (
                    watcher.execute(
                        "SELECT 1 FROM pg_stat_activity"
                        " WHERE datname = current_database() AND application_name = 'runfacts'"
                    ).fetchone()
                    is None
                )
            )
            transaction.run(PUT, {"key": "a", "value": "x"})

    with pytest.raises((DatabaseBusy, DatabaseUnreachable)):
        dawdle()
    assert count(ledger) == 1


def test_a_killed_writer_leaves_no_lock_and_no_half_of_its_work(file: Path) -> None:
    program = (
        "import os, sys\n"
        "from runfacts.infrastructure.database.opening import open_database\n"
        "from runfacts.infrastructure.database.statements import Statement\n"
        "with open_database(sys.argv[1]).transaction() as transaction:\n"
        "    transaction.run(Statement('x', {'sqlite': \"INSERT INTO ledger_meta VALUES ('a', 'x')\"}))\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, f"sqlite:///{file}"], check=False)
    assert killed.returncode == -9
    database = open_database(f"sqlite:///{file}", busy_timeout_ms=50)
    assert count(database) == 1
    put(database, "a")
    database.close()


@pytest.fixture
def as_nobody() -> Iterator[Callable[[], None]]:
    """Make this thread act on files as an ordinary user: root may read and write everything."""
    libc = ctypes.CDLL(None, use_errno=True)
    yield lambda: libc.setfsuid(65_534) if os.geteuid() == 0 else None
    libc.setfsuid(os.geteuid())


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter and write to; pytest's own are closed."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_a_file_without_permission_to_write_can_be_read(open_folder: Path, as_nobody: Callable[[], None]) -> None:
    path = open_folder / "ledger.db"
    open_database(f"sqlite:///{path}").close()
    path.chmod(0o444)
    as_nobody()
    database = open_database(f"sqlite:///{path}")
    assert count(database) == 1
    with pytest.raises(DatabaseReadOnly):
        put(database, "a")
    assert count(database) == 1
    database.close()


def test_a_file_without_any_permission_is_unreachable(open_folder: Path, as_nobody: Callable[[], None]) -> None:
    (open_folder / "closed").mkdir()
    for path in (open_folder / "ledger.db", open_folder / "closed" / "ledger.db"):
        open_database(f"sqlite:///{path}").close()
    (open_folder / "ledger.db").chmod(0)
    (open_folder / "closed").chmod(0)
    as_nobody()
    for path in (open_folder / "ledger.db", open_folder / "closed" / "ledger.db"):
        with pytest.raises(DatabaseUnreachable):
            open_database(f"sqlite:///{path}")


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path):
        with pytest.raises(DatabaseUnreachable, match="not a file"):
            open_database(f"sqlite:///{path}")
    with pytest.raises(DatabaseUnreachable):
        open_database(f"sqlite:///{tmp_path / ('x' * 300)}")

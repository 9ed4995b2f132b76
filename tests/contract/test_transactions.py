"""Transactions, reads and the caller's own transaction mean the same on every database (R4.1, R4.4, R4.5, R4.6)."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, bindparam, create_engine, event, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from runfacts.domain.errors import DatabaseBusy, UnsuitableConnection
from runfacts.infrastructure.database.connections import Database, Transaction
from runfacts.infrastructure.database.dialects import one_of
from runfacts.infrastructure.database.engines import parse_url
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.database.schema import LEDGER_ID
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import ledger_meta

PUT = Statement("put", insert(ledger_meta).values(key=bindparam("key"), value=bindparam("value")))
KEYS = Statement("keys", select(ledger_meta.c.key).where(ledger_meta.c.key != LEDGER_ID).order_by(ledger_meta.c.key))
BROKEN = Statement("broken", {"sqlite": "SELECT nothing", "postgresql": "SELECT nothing"})


class Recording:
    """Notes every named step, and fails at one of them."""

    def __init__(self, fail_at: str | None = None) -> None:
        self.names: list[str] = []
        self.fail_at = fail_at

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        self.names.append(name)
        if name == self.fail_at:
            raise ZeroDivisionError(name)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A ledger."""
    database = open_database(database_url)
    yield database
    database.close()


def put(database: Database, *keys: str) -> None:
    with database.transaction() as transaction:
        for key in keys:
            transaction.run(PUT, {"key": key, "value": "x"})


def keys(database: Database) -> list[str]:
    with database.reading() as reading:
        return [key for (key,) in reading.rows(KEYS)]


def callers_engine(url: str) -> Engine:
    """An engine as an application would make it."""
    engine = create_engine(parse_url(url), connect_args={"timeout": 0.2} if url.startswith("sqlite") else {})
    if url.startswith("sqlite"):

        @event.listens_for(engine, "connect")
        def _foreign_keys(connection: sqlite3.Connection, _record: object) -> None:
            connection.execute("PRAGMA foreign_keys=ON")

    return engine


@pytest.fixture
def caller(database: Database, database_url: str) -> Iterator[Connection]:
    """A connection of the application that uses the ledger."""
    assert keys(database) == []
    engine = callers_engine(database_url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_a_transaction_commits_when_its_block_ends(database: Database) -> None:
    put(database, "a", "b")
    assert keys(database) == ["a", "b"]


def test_rows_come_back_as_plain_tuples(database: Database) -> None:
    put(database, "a")
    with database.transaction() as transaction:
        assert transaction.row(KEYS) == ("a",)
        assert transaction.rows(KEYS) == [("a",)]
        nothing = Statement("nothing", select(ledger_meta.c.key).where(ledger_meta.c.key == bindparam("key")))
        assert transaction.row(nothing, {"key": "b"}) is None
        assert transaction.run_many(PUT, [{"key": key, "value": "x"} for key in "cde"]) == 3
        assert transaction.run_many(PUT, []) == 0
        gone = Statement("gone", ledger_meta.delete().where(ledger_meta.c.key.in_(["c", "d", "z"])))
        assert transaction.run(gone) == 2
    assert keys(database) == ["a", "e"]


@pytest.mark.parametrize(
    ("wanted", "found"), [(["a", "c"], ["a", "c"]), ((), []), (["'; DROP TABLE runs --", "b"], ["b"])]
)
def test_a_list_is_one_parameter(database: Database, wanted: list[str], found: list[str]) -> None:
    put(database, "a", "b", "c")
    listed = Statement(
        "listed", select(ledger_meta.c.key).where(one_of(ledger_meta.c.key, "wanted")).order_by(ledger_meta.c.key)
    )
    with database.reading() as reading:
        assert [key for (key,) in reading.rows(listed, {"wanted": wanted})] == found


@pytest.mark.parametrize("step", ["sql:before:put", "sql:after:put", "sql:before:commit"])
def test_a_failure_at_any_step_before_the_commit_leaves_nothing(database: Database, step: str) -> None:
    database.steps = Recording(step)
    with pytest.raises(ZeroDivisionError):
        put(database, "a")
    database.steps = Recording()
    assert keys(database) == []
    put(database, "a")
    assert keys(database) == ["a"]


def test_a_failure_after_the_commit_changes_nothing(database: Database) -> None:
    database.steps = Recording("sql:after:commit")
    with pytest.raises(ZeroDivisionError):
        put(database, "a")
    database.steps = Recording()
    assert keys(database) == ["a"]


def test_the_steps_of_a_transaction_come_in_order(database: Database) -> None:
    steps = database.steps = Recording()
    put(database, "a")
    assert steps.names == ["sql:before:put", "sql:after:put", "sql:before:commit", "sql:after:commit"]


def test_a_unique_violation_is_a_lost_race(database: Database) -> None:
    put(database, "a")
    with pytest.raises(LostRace) as caught:
        put(database, "b", "a")
    assert caught.value.constraint == "pk_ledger_meta"
    assert keys(database) == ["a"]


def test_a_statement_that_failed_ends_its_transaction_even_when_nobody_listens(database: Database) -> None:
    put(database, "a")

    def swallow() -> None:
        with database.transaction() as transaction:
            transaction.run(PUT, {"key": "b", "value": "x"})
            with pytest.raises(LostRace):
                transaction.run(PUT, {"key": "a", "value": "x"})
            with pytest.raises(LostRace):
                transaction.run(PUT, {"key": "c", "value": "x"})

    with pytest.raises(LostRace):
        swallow()
    assert keys(database) == ["a"]


def test_a_mistake_in_a_statement_goes_up_as_it_is(database: Database) -> None:
    with pytest.raises(database.driver_error), database.reading() as reading:
        reading.rows(BROKEN)
    put(database, "a")
    assert keys(database) == ["a"]


def test_a_reading_sees_what_is_committed_meanwhile(database: Database) -> None:
    with database.reading() as reading:
        assert reading.rows(KEYS) == []
        put(database, "a")
        assert reading.rows(KEYS) == [("a",)]


def test_threads_share_one_database(database: Database) -> None:
    errors: list[BaseException] = []

    def write(thread: int) -> None:
        try:
            for number in range(5):
                put(database, f"{thread}-{number}")
                keys(database)
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(keys(database)) == 60


def test_writes_in_a_callers_transaction_are_its_own(database: Database, caller: Connection) -> None:
    with caller.begin(), database.joined(caller) as transaction:
        transaction.run(PUT, {"key": "a", "value": "x"})
    assert keys(database) == ["a"]
    with database.joined(caller) as transaction:
        transaction.run(PUT, {"key": "b", "value": "x"})
    assert keys(database) == ["a"]
    caller.rollback()
    assert keys(database) == ["a"]
    with database.joined(caller) as transaction:
        transaction.run(PUT, {"key": "c", "value": "x"})
    caller.commit()
    assert keys(database) == ["a", "c"]


def test_a_session_will_do(database: Database, database_url: str) -> None:
    engine = callers_engine(database_url)
    with Session(engine) as session, session.begin(), database.joined(session) as transaction:
        transaction.run(PUT, {"key": "a", "value": "x"})
    engine.dispose()
    assert keys(database) == ["a"]


def test_a_lost_race_leaves_the_callers_own_work_alone(database: Database, caller: Connection) -> None:
    put(database, "a")
    with caller.begin():
        caller.execute(ledger_meta.insert(), {"key": "mine", "value": "x"})

        def lose() -> None:
            with database.joined(caller) as transaction:
                transaction.run(PUT, {"key": "b", "value": "x"})
                transaction.run(PUT, {"key": "a", "value": "x"})

        with pytest.raises(LostRace):
            lose()
        caller.execute(ledger_meta.insert(), {"key": "mine too", "value": "x"})
    assert keys(database) == ["a", "mine", "mine too"]


def test_a_joined_transaction_takes_no_step_of_a_commit(database: Database, caller: Connection) -> None:
    steps = database.steps = Recording()
    with caller.begin(), database.joined(caller) as transaction:
        transaction.run(PUT, {"key": "a", "value": "x"})
    assert [name for name in steps.names if "ledger_id" not in name] == ["sql:before:put", "sql:after:put"]


def refused(database: Database, connection: Connection) -> str:
    def join(_: Transaction) -> None:
        pytest.fail("the connection was taken")

    with pytest.raises(UnsuitableConnection) as caught, database.joined(connection) as transaction:
        join(transaction)
    return str(caught.value)


def test_a_connection_in_autocommit_is_refused(database: Database, database_url: str) -> None:
    engine = callers_engine(database_url).execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        assert "autocommit" in refused(database, connection)
    engine.dispose()


def test_a_connection_to_another_ledger_is_refused(database: Database, caller: Connection) -> None:
    caller.execute(ledger_meta.update().where(ledger_meta.c.key == LEDGER_ID).values(value="another"))
    assert database.ledger_id() != "another"
    assert "another ledger" in refused(database, caller)


def test_a_connection_to_the_other_kind_of_database_is_refused(database: Database) -> None:
    url = "postgresql+psycopg://localhost/x" if database.dialect == "sqlite" else "sqlite:////nowhere/x.db"

    class Never:
        dialect = create_engine(url).dialect

        def connection(self) -> Never:
            return self

    assert "the connection is for" in refused(database, Never())  # type: ignore[arg-type]  # only its dialect is looked at


def test_a_database_that_must_not_be_written_can_be_read(database: Database, caller: Connection) -> None:
    put(database, "a")
    database.refusal = DatabaseBusy("not now")
    blocks: list[Callable[[], Any]] = [database.transaction, lambda: database.joined(caller)]
    for block in blocks:
        with pytest.raises(DatabaseBusy, match="not now"), block():
            pytest.fail("a write was begun")
    assert keys(database) == ["a"]


def test_the_time_of_a_transaction_is_the_databases_or_the_clocks(database: Database) -> None:
    with database.transaction() as transaction:
        now = transaction.now_ms()
    # The test databases of PostgreSQL stand at the first moment of 2026 until somebody moves them.
    expected = time.time() * 1_000 if database.dialect == "sqlite" else 1_767_225_600_000
    assert abs(now - expected) < 60_000

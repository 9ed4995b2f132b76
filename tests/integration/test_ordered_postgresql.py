"""
Reading in order on PostgreSQL, where transactions commit in any order (R3.9, R4.5).

What a transaction leaves open is made by writing through a connection of the caller, which the test commits, rolls
back, prepares or loses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from followers import eventually, following
from runfacts import (
    Checkpoint,
    CheckpointLost,
    DatabaseUnreachable,
    FeedPage,
    Ledger,
    ReaderRefused,
    UnsuitableConnection,
)
from runfacts.infrastructure.database import wakeups
from runfacts.infrastructure.database.engines import parse_url
from runfacts.infrastructure.database.opening import migrate
from runfacts.infrastructure.database.wakeups import FACTS
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.postgres import PostgresServer, database_name
from runfacts.testing.steps import CallAt
from stages import ANA, created


@pytest.fixture
def url(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh database on each server."""
    url = postgres.create_database(request.getfixturevalue(f"postgres_{postgres.version}_template"))
    yield url
    postgres.drop_database(url)


@pytest.fixture
def ledgers(url: str) -> Iterator[ThrowAwayLedgers]:
    """Opens ledgers on it."""
    with ThrowAwayLedgers(url) as ledgers:
        yield ledgers


@pytest.fixture
def ledger(ledgers: ThrowAwayLedgers) -> Ledger:
    """One ledger."""
    return ledgers()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The engine of an application that writes in transactions of its own."""
    engine = create_engine(parse_url(url))
    yield engine
    engine.dispose()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that this test may stop."""
    with PostgresServer.start(18) as server:
        yield server


@contextmanager
def opened(url: str) -> Iterator[Ledger]:
    with Ledger.open(url) as ledger:
        yield ledger


def write(ledger: Ledger, connection: Connection) -> None:
    """Record one fact in the caller's transaction."""
    ledger.create(actor=ANA, task="report", connection=connection)


def seen(page: FeedPage) -> tuple[tuple[int | None, ...], int | None]:
    """Give the positions of a page, and the one that it waits for."""
    return tuple(fact.position for fact in page.facts), None if page.waiting is None else page.waiting.position


def sessions(url: str, what: str) -> list[int]:
    """Give the processes of other sessions whose last statement begins like this."""
    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND starts_with(query, %s)",
            (what,),
        ).fetchall()
    return [pid for (pid,) in rows]


def terminate(url: str, pids: list[int]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for pid in pids:
            connection.execute("SELECT pg_terminate_backend(%s, 30000)", (pid,))


def test_a_lower_position_that_is_open_holds_the_reader_until_its_commit(ledger: Ledger, engine: Engine) -> None:
    with engine.connect() as slow:
        write(ledger, slow)
        created(ledger)
        page = ledger.feed()
        assert seen(page) == ((), 1)
        assert page.waiting is not None
        assert page.waiting.holders == 1
        assert ledger.feed_health().waiting is not None
        slow.commit()
        assert seen(ledger.feed()) == ((1, 2), None)
        assert ledger.feed_health().waiting is None


def test_a_position_that_is_rolled_back_never_comes(ledger: Ledger, engine: Engine) -> None:
    with engine.connect() as slow:
        write(ledger, slow)
        created(ledger)
        assert seen(ledger.feed()) == ((), 1)
        slow.rollback()
    assert seen(ledger.feed()) == ((2,), None)


def test_what_lies_before_the_gap_is_delivered_at_once(ledger: Ledger, engine: Engine) -> None:
    created(ledger)
    with engine.connect() as slow:
        write(ledger, slow)
        created(ledger)
        page = ledger.feed()
        assert seen(page) == ((1,), 2)
        assert seen(ledger.feed(page.checkpoint)) == ((), 2)
        slow.commit()
    assert seen(ledger.feed(page.checkpoint)) == ((2, 3), None)


def test_only_transactions_from_before_the_gap_are_waited_for(ledger: Ledger, engine: Engine) -> None:
    with engine.connect() as early, engine.connect() as late:
        write(ledger, early)
        created(ledger)
        assert seen(ledger.feed()) == ((), 1)
        write(ledger, late)
        created(ledger)
        early.rollback()
        page = ledger.feed()
        assert seen(page) == ((2,), 3)
        late.commit()
    assert seen(ledger.feed(page.checkpoint)) == ((3, 4), None)


def test_readers_at_different_gaps_do_not_hold_each_other_up(ledger: Ledger, engine: Engine) -> None:
    created(ledger)
    start = ledger.feed().checkpoint
    with engine.connect() as early, engine.connect() as late:
        write(ledger, early)
        created(ledger)
        assert seen(ledger.feed(start)) == ((), 2)
        write(ledger, late)
        created(ledger)
        third = Checkpoint.of(ledger.facts(limit=2).items[1])
        assert third.position == 3
        for _ in range(3):
            assert seen(ledger.feed(third)) == ((), 4)
            assert seen(ledger.feed(start)) == ((), 2)
        late.rollback()
        assert seen(ledger.feed(third)) == ((), 4)
        early.commit()
        assert seen(ledger.feed(third)) == ((5,), None)
        assert seen(ledger.feed(start)) == ((2, 3, 5), None)


@pytest.mark.parametrize("statement", ["select_facts_from", "select_newest_facts", "select_writers"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_opens_while_the_reader_looks_is_not_skipped(
    ledgers: ThrowAwayLedgers, engine: Engine, moment: str, statement: str
) -> None:
    writer = ledgers()
    with engine.connect() as slow:
        write(writer, slow)
        slow.rollback()
        created(writer)

        def overtake() -> None:
            write(writer, slow)
            created(writer)

        step = CallAt(f"sql:{moment}:{statement}", overtake)
        reader = ledgers(steps=step)
        page = reader.feed()
        assert step.count >= 1
        # Whoever began before the list was made is waited for, even if only a higher position can be theirs.
        assert seen(page) in {((), 1), ((2,), 3)}
        slow.commit()
    rest = reader.feed(page.checkpoint)
    assert (*seen(page)[0], *seen(rest)[0]) == (2, 3, 4)
    assert rest.waiting is None


def test_a_session_that_goes_on_to_its_next_transaction_is_not_waited_for(ledger: Ledger, engine: Engine) -> None:
    with engine.connect() as busy:
        write(ledger, busy)
        created(ledger)
        assert seen(ledger.feed()) == ((), 1)
        busy.rollback()
        write(ledger, busy)
        assert seen(ledger.feed()) == ((2,), None)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE runs SET task = 'other'", "SELECT count(*) FROM facts", "INSERT INTO ledger_meta VALUES ('a', 'b')"],
)
def test_a_transaction_that_writes_no_facts_holds_up_nobody(ledger: Ledger, engine: Engine, statement: str) -> None:
    created(ledger)
    with engine.connect() as idle, engine.connect() as slow:
        idle.exec_driver_sql(statement)
        write(ledger, slow)
        slow.rollback()
        created(ledger)
        assert seen(ledger.feed()) == ((1, 3), None)


def test_a_position_rolled_back_to_a_savepoint_holds_up_nobody(ledger: Ledger, engine: Engine) -> None:
    with engine.connect() as slow:
        slow.exec_driver_sql("SELECT 1")
        savepoint = slow.begin_nested()
        write(ledger, slow)
        savepoint.rollback()
        created(ledger)
        assert seen(ledger.feed()) == ((2,), None)
        kept = slow.begin_nested()
        write(ledger, slow)
        kept.commit()
        created(ledger)
        page = ledger.feed()
        assert seen(page) == ((2,), 3)
        slow.commit()
    assert seen(ledger.feed(page.checkpoint)) == ((3, 4), None)


def test_a_prepared_transaction_is_waited_for(ledger: Ledger, engine: Engine) -> None:
    with engine.connect() as slow:
        transaction = slow.begin_twophase("one")
        write(ledger, slow)
        created(ledger)
        assert seen(ledger.feed()) == ((), 1)
        transaction.prepare()
        assert seen(ledger.feed()) == ((), 1)
        slow.invalidate()
        slow.close()
    assert seen(ledger.feed()) == ((), 1)
    with engine.connect() as other:
        other.connection.driver_connection.autocommit = True  # type: ignore[union-attr]  # psycopg's
        other.exec_driver_sql("COMMIT PREPARED 'one'")
        other.connection.driver_connection.autocommit = False  # type: ignore[union-attr]  # psycopg's
    assert seen(ledger.feed()) == ((1, 2), None)


def test_a_transaction_prepared_before_anybody_looked_is_waited_for(ledger: Ledger, engine: Engine) -> None:
    with engine.connect() as slow:
        transaction = slow.begin_twophase("two")
        write(ledger, slow)
        transaction.prepare()
        created(ledger)
        assert seen(ledger.feed()) == ((), 1)
        transaction.rollback()
    assert seen(ledger.feed()) == ((2,), None)


def test_a_prepared_transaction_is_waited_for_across_a_restart_of_the_server(server: PostgresServer) -> None:
    url = server.create_database()
    migrate(url)
    engine = create_engine(parse_url(url))
    with opened(url) as ledger:
        with engine.connect() as slow:
            transaction = slow.begin_twophase("three")
            write(ledger, slow)
            created(ledger)
            assert seen(ledger.feed()) == ((), 1)
            transaction.prepare()
            slow.invalidate()
        engine.dispose()
        server.stop()
        server.restart()
        assert seen(ledger.feed()) == ((), 1)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("COMMIT PREPARED 'three'")
        assert seen(ledger.feed()) == ((1, 2), None)


def test_a_reader_whose_connection_broke_begins_anew_and_skips_nothing(
    ledger: Ledger, engine: Engine, url: str
) -> None:
    with engine.connect() as slow:
        write(ledger, slow)
        created(ledger)
        assert seen(ledger.feed()) == ((), 1)
        readers = sessions(url, "SELECT DISTINCT virtualtransaction")
        assert len(readers) == 1
        terminate(url, readers)
        assert seen(ledger.feed()) == ((), 1)
        slow.commit()
    assert seen(ledger.feed()) == ((1, 2), None)


def test_the_products_own_role_reads_in_order(postgres: PostgresServer, url: str) -> None:
    role = f"reader_of_{database_name(url)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
    try:
        migrate(url, app_role=role)
        as_role = url.replace("postgresql://postgres@", f"postgresql://{role}@")
        assert as_role != url
        engine = create_engine(parse_url(as_role))
        with opened(as_role) as ledger, engine.connect() as slow:
            write(ledger, slow)
            created(ledger)
            assert seen(ledger.feed()) == ((), 1)
            slow.rollback()
            assert seen(ledger.feed()) == ((2,), None)
        engine.dispose()
    finally:
        postgres.drop_database(url)
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP ROLE {role}")


def test_a_standby_is_refused(server: PostgresServer) -> None:
    url = server.create_database()
    migrate(url)
    with opened(url) as ledger:
        created(ledger)
    server.stop()
    (data,) = Path(url.partition("host=")[2]).glob("data")
    (data / "standby.signal").touch()
    server.restart()
    with opened(url) as standby:
        assert standby.runs().items
        with pytest.raises(ReaderRefused) as caught:
            standby.feed()
        assert caught.value.premise == "primary"
        with pytest.raises(ReaderRefused), standby.follow() as iterator:
            next(iterator)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_another_isolation_is_refused(ledger: Ledger, isolation: str) -> None:
    @event.listens_for(ledger.database.engine, "connect")
    def _other(connection: Any, _entry: object) -> None:  # noqa: ANN401 - psycopg's
        connection.autocommit = True
        connection.execute(f"SET default_transaction_isolation = '{isolation}'")
        connection.autocommit = False

    ledger.database.engine.dispose()
    with pytest.raises(ReaderRefused) as caught:
        ledger.feed()
    assert caught.value.premise == "isolation"
    assert isolation in str(caught.value)


def test_a_callers_repeatable_read_transaction_is_refused(ledger: Ledger, engine: Engine) -> None:
    with (
        engine.connect().execution_options(isolation_level="REPEATABLE READ") as caller,
        pytest.raises(UnsuitableConnection),
    ):
        write(ledger, caller)


@pytest.mark.parametrize("change", ["CACHE 20", "CYCLE", "INCREMENT 2"])
def test_positions_that_are_not_given_out_one_by_one_are_refused(ledger: Ledger, url: str, change: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER SEQUENCE facts_position_seq {change}")
    with pytest.raises(ReaderRefused) as caught:
        ledger.feed()
    assert caught.value.premise == "positions"


def test_a_refused_reader_reads_once_the_premise_holds(ledger: Ledger, url: str) -> None:
    created(ledger)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SEQUENCE facts_position_seq CACHE 20")
        with pytest.raises(ReaderRefused):
            ledger.feed()
        connection.execute("ALTER SEQUENCE facts_position_seq CACHE 1")
    assert seen(ledger.feed()) == ((1,), None)


def test_a_restored_older_database_is_known_by_the_checkpoint(postgres: PostgresServer, url: str) -> None:
    with opened(url) as ledger:
        created(ledger)
        early = ledger.feed().checkpoint
    backup = postgres.create_database(template=database_name(url))
    with opened(url) as ledger:
        created(ledger)
        late = ledger.feed().checkpoint
    assert late is not None
    assert early is not None
    with opened(backup) as restored:
        with pytest.raises(CheckpointLost) as caught:
            restored.feed(late)
        assert (caught.value.position, caught.value.found) == (2, None)
        created(restored)
        with pytest.raises(CheckpointLost) as caught:
            restored.feed(late)
        assert caught.value.position == 2
        assert caught.value.found not in {None, late.hash}
        assert seen(restored.feed(early)) == ((2,), None)
    postgres.drop_database(backup)


def test_a_commit_wakes_a_listener_of_another_process_and_a_rollback_does_not(
    ledgers: ThrowAwayLedgers, engine: Engine
) -> None:
    writer, reader = ledgers(), ledgers()
    listener = reader.database.wakeups(FACTS).listen()
    created(writer)
    assert listener.wait(30)
    with engine.connect() as caller:
        write(writer, caller)
        assert not listener.wait(0)
        caller.commit()
        assert listener.wait(30)
        write(writer, caller)
        caller.rollback()
    assert not listener.wait(0)
    listener.close()


def test_a_listener_whose_connection_broke_listens_again(ledgers: ThrowAwayLedgers, url: str) -> None:
    writer, reader = ledgers(), ledgers()
    listener = reader.database.wakeups(FACTS).listen()
    terminate(url, sessions(url, "LISTEN"))
    assert listener.wait(30)  # it has heard of its own end
    assert listener.wait(30)  # and listens anew
    created(writer)
    assert listener.wait(30)
    listener.close()


def test_a_wake_up_that_cannot_be_sent_does_not_fail_the_command(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "_NOTIFY", "SELECT nothing")
    created(ledger)
    assert seen(ledger.feed()) == ((1,), None)


def test_a_busy_process_sends_few_wake_ups(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    sent: list[float] = []
    monkeypatch.setattr("runfacts.infrastructure.database.wakeups.time.monotonic", lambda: now_s)
    monkeypatch.setattr(ledger.database.wakeups(FACTS), "_notify", lambda: sent.append(now_s))
    for _ in range(5):
        created(ledger)
    assert sent == [100.0]
    now_s += 2 * wakeups.QUIET_S
    created(ledger)
    assert len(sent) == 2


def test_a_follower_at_a_gap_goes_on_after_a_rollback_which_wakes_nobody(
    ledgers: ThrowAwayLedgers, engine: Engine
) -> None:
    ledger = ledgers(feed_poll_ms=60_000)
    with engine.connect() as slow:
        write(ledger, slow)
        with following(ledger) as follower:
            created(ledger)
            eventually(lambda: follower.following.waiting is not None, "the follower waits at the gap")
            assert follower.facts == []
            slow.rollback()
            follower.await_facts(1)
            assert follower.facts[0].position == 2


def test_a_follower_says_that_the_server_is_gone_and_goes_on_when_it_is_back(server: PostgresServer) -> None:
    url = server.create_database()
    migrate(url)
    with opened(url) as ledger:
        created(ledger)
        with ledger.follow() as iterator:
            assert next(iterator).position == 1
            server.stop()
            with pytest.raises(DatabaseUnreachable):
                next(iterator)
            server.restart()
            created(ledger)
            second = next(iterator)
            assert [fact.position for fact in ledger.feed(iterator.checkpoint).facts] == []
            assert second.sequence == 1

"""Commands in a transaction of the caller: committed and rolled back with it, or refused (R4.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.orm import Session

from runfacts import (
    AlreadyCreated,
    Claimed,
    Created,
    Finished,
    IllegalTransition,
    Ledger,
    Outcome,
    Recorded,
    Repeated,
    RunNotFound,
    RunStatus,
    RunVersionConflict,
    Started,
    TokenRefused,
    UnsuitableConnection,
)
from runfacts.infrastructure.database.engines import parse_url
from runfacts.testing.ledgers import contents_of
from stages import ANA, WORKER, claimed, created, one_writer, queued, types, unchanged

WHOLE_LIFE = [
    "run.created",
    "run.queued",
    "run.dispatching",
    "attempt.claimed",
    "attempt.starting",
    "attempt.running",
    "run.running",
    "run.waiting_approval",
    "run.running",
    "attempt.succeeded",
    "run.succeeded",
]


@pytest.fixture
def engine(ledger: Ledger, database_url: str) -> Iterator[Engine]:
    """An engine as an application would make it, with a table of its own."""
    assert ledger.runs().items == ()
    engine = create_engine(parse_url(database_url))
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _foreign_keys(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's connection
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute("PRAGMA busy_timeout=0")

    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (name TEXT)"))
    yield engine
    engine.dispose()


@pytest.fixture
def caller(engine: Engine) -> Iterator[Connection]:
    """A connection of the application."""
    with engine.connect() as connection:
        yield connection


def orders(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.execute(text("SELECT name FROM orders")).scalars())


def live(ledger: Ledger, caller: Connection | Session) -> str:
    """Let a Run live its whole life in the caller's transaction; its id."""
    made = ledger.create(actor=ANA, task="report", idempotency_key="k", connection=caller)
    assert isinstance(made, Created)
    run_id = made.run.run_id
    assert isinstance(ledger.create(actor=ANA, task="report", idempotency_key="k", connection=caller), AlreadyCreated)
    assert isinstance(ledger.queue(run_id, actor=ANA, dedupe_key="q", connection=caller), Recorded)
    assert isinstance(ledger.queue(run_id, actor=ANA, dedupe_key="q", connection=caller), Repeated)
    claim = ledger.claim(run_id, actor=WORKER, executor_type="batch", connection=caller)
    assert isinstance(claim, Claimed)
    assert isinstance(ledger.start(claim.claim, actor=WORKER, connection=caller), Started)
    assert isinstance(ledger.running(claim.claim, actor=WORKER, connection=caller), Recorded)
    assert isinstance(ledger.wait_for_approval(claim.claim, actor=WORKER, connection=caller), Recorded)
    assert isinstance(ledger.go_on(claim.claim, actor=WORKER, connection=caller), Recorded)
    assert isinstance(ledger.finish(claim.claim, Outcome.succeeded(), actor=WORKER, connection=caller), Finished)
    return run_id


def test_a_whole_life_is_committed_with_the_callers_own_work(ledger: Ledger, engine: Engine) -> None:
    with engine.begin() as caller:
        caller.execute(text("INSERT INTO orders VALUES ('mine')"))
        run_id = live(ledger, caller)
    assert types(ledger, run_id) == WHOLE_LIFE
    assert orders(engine) == ["mine"]
    assert ledger.verify().clean


def test_a_whole_life_is_rolled_back_with_the_callers_own_work(ledger: Ledger, caller: Connection) -> None:
    with unchanged(ledger):
        caller.execute(text("INSERT INTO orders VALUES ('mine')"))
        run_id = live(ledger, caller)
        caller.rollback()
    assert orders(caller.engine) == []
    with pytest.raises(RunNotFound):
        ledger.queue(run_id, actor=ANA)
    assert isinstance(ledger.create(actor=ANA, task="report", idempotency_key="k"), Created)


def test_a_session_will_do(ledger: Ledger, engine: Engine) -> None:
    with unchanged(ledger), Session(engine) as session:
        live(ledger, session)
        session.rollback()
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders VALUES ('mine')"))
        run_id = live(ledger, session)
    assert types(ledger, run_id) == WHOLE_LIFE
    assert orders(engine) == ["mine"]


def test_nobody_sees_what_the_caller_has_not_committed(ledger: Ledger, caller: Connection) -> None:
    run_id = created(ledger)
    ledger.queue(run_id, actor=ANA, connection=caller)
    assert ledger.run(run_id).status == RunStatus.CREATED
    caller.commit()
    assert ledger.run(run_id).status == RunStatus.QUEUED


def test_facts_that_the_caller_rolled_back_are_forgotten(ledger: Ledger, caller: Connection) -> None:
    run_id = created(ledger)
    ledger.queue(run_id, actor=ANA, connection=caller)
    caller.rollback()
    answer = ledger.queue(run_id, actor=WORKER)
    assert isinstance(answer, Recorded)
    assert (answer.version, ledger.history(run_id)[-1].actor) == (2, WORKER)
    assert ledger.verify().clean


def test_a_refusal_leaves_the_callers_transaction_usable(ledger: Ledger, engine: Engine) -> None:
    run_id = queued(ledger)
    claim = claimed(ledger)
    with engine.begin() as caller:
        caller.execute(text("INSERT INTO orders VALUES ('one')"))
        with pytest.raises(RunVersionConflict):
            ledger.claim(run_id, actor=WORKER, executor_type="batch", expected_version=1, connection=caller)
        with pytest.raises(IllegalTransition):
            ledger.finish(claim, Outcome.succeeded(), actor=WORKER, connection=caller)
        caller.execute(text("INSERT INTO orders VALUES ('two')"))
        answer = ledger.claim(run_id, actor=WORKER, executor_type="batch", connection=caller)
        assert isinstance(answer, Claimed)
    assert orders(engine) == ["one", "two"]
    with pytest.raises(TokenRefused):
        ledger.start(claim.__class__(run_id, answer.claim.attempt_id, 1, "x", "y"), actor=WORKER)
    assert isinstance(ledger.start(answer.claim, actor=WORKER), Started)


def refused(ledger: Ledger, connection: Connection) -> str:
    before = contents_of(ledger)
    with pytest.raises(UnsuitableConnection) as caught:
        ledger.create(actor=ANA, task="report", connection=connection)
    connection.rollback()
    assert contents_of(ledger) == before
    return str(caught.value)


def test_a_connection_in_autocommit_is_refused(ledger: Ledger, engine: Engine) -> None:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        assert "autocommit" in refused(ledger, connection)


def test_another_isolation_level_or_a_transaction_that_cannot_write_is_refused(ledger: Ledger, engine: Engine) -> None:
    if one_writer(ledger):
        # A snapshot that others have overtaken can no longer become a writer.
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN")
            connection.execute(text("SELECT count(*) FROM orders")).scalar()
            created(ledger)
            assert "can no longer write" in refused(ledger, connection)
        return
    for level in ("REPEATABLE READ", "SERIALIZABLE"):
        with engine.execution_options(isolation_level=level).connect() as connection:
            assert level.lower() in refused(ledger, connection)
    with engine.connect() as connection:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        assert "read-only" in refused(ledger, connection)


def test_a_connection_to_another_database_is_refused(ledger: Ledger) -> None:
    other = create_engine("sqlite://")
    with other.connect() as connection:
        message = refused(ledger, connection)
    other.dispose()
    assert message.startswith("foreign keys are off" if one_writer(ledger) else "the connection is for sqlite")

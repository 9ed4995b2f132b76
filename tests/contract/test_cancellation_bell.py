"""A committed cancellation request rings, here and on PostgreSQL everywhere; nothing else does (R9.4, R4.5)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine

from deliveries import asked_to_stop, brought_to
from runfacts import Ledger, Outcome
from runfacts.infrastructure.database.engines import parse_url
from runfacts.infrastructure.database.wakeups import Listener
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, one_writer, queued

DEADLINE_S = 30


@pytest.fixture
def bell(ledger: Ledger) -> Iterator[Listener]:
    """The bell of the ledger under test."""
    made = ledger.cancellation_bell()
    yield made
    made.close()


def test_a_request_rings(ledger: Ledger, bell: Listener) -> None:
    claim = brought_to(ledger, "running")
    assert not bell.wait(0)
    ledger.request_cancellation(claim.run_id, actor=ANA)
    assert bell.wait(DEADLINE_S)


def test_every_request_rings_however_soon_it_follows(ledger_factory: ThrowAwayLedgers) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    bell = (ledger if one_writer(ledger) else other).cancellation_bell()
    for claim in [brought_to(ledger, "running") for _ in range(5)]:
        ledger.request_cancellation(claim.run_id, actor=ANA)
        assert bell.wait(DEADLINE_S)
        while bell.wait(0):
            pass
    bell.close()


def test_other_users_of_the_database_hear_it_where_it_can_tell_them(ledger_factory: ThrowAwayLedgers) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    bell = other.cancellation_bell()
    asked_to_stop(ledger)
    # A SQLite file tells nobody; there the others look (R9.4).
    assert bell.wait(0.05 if one_writer(ledger) else DEADLINE_S) is not one_writer(ledger)
    bell.close()


def test_nothing_rings_where_there_is_nothing_to_deliver(ledger: Ledger) -> None:
    ended, asked, waiting = brought_to(ledger, "running"), asked_to_stop(ledger), queued(ledger)
    ledger.finish(ended, Outcome.succeeded(exit_code=0), actor=WORKER)
    bell = ledger.cancellation_bell()
    for run_id in (ended.run_id, asked.run_id, waiting):
        ledger.request_cancellation(run_id, actor=ANA)
    assert not bell.wait(0)
    bell.close()


def test_in_a_callers_transaction_its_commit_rings(ledger: Ledger, bell: Listener, database_url: str) -> None:
    claim = brought_to(ledger, "running")
    engine = create_engine(parse_url(database_url))
    with engine.connect() as connection:
        if one_writer(ledger):
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")
            connection.commit()
        with connection.begin():
            ledger.request_cancellation(claim.run_id, actor=ANA, connection=connection)
            assert not bell.wait(0)
    assert bell.wait(0.05 if one_writer(ledger) else DEADLINE_S) is not one_writer(ledger)
    engine.dispose()


def test_a_bell_that_is_waited_at_after_its_connection_broke_rings_and_listens_again(
    ledger: Ledger, bell: Listener
) -> None:
    claim, other = brought_to(ledger, "running"), brought_to(ledger, "running")
    if not one_writer(ledger):
        with ledger.database.engine.connect() as connection:
            connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE query LIKE 'LISTEN %%cancellations%%' AND datname = current_database()"
            )
        # What was missed meanwhile nobody knows, so the break itself rings.
        assert bell.wait(DEADLINE_S)
        assert bell.wait(DEADLINE_S)
    ledger.request_cancellation(claim.run_id, actor=ANA)
    assert bell.wait(DEADLINE_S)
    ledger.request_cancellation(other.run_id, actor=ANA)
    assert bell.wait(DEADLINE_S)


def test_a_stopped_bell_is_waited_at_no_longer(ledger: Ledger, bell: Listener) -> None:
    ledger.close()
    assert bell.stopped
    assert bell.wait(DEADLINE_S)

"""
Which rows a command of PostgreSQL really has while it waits for one: those before it, and none behind it (R4.4).

All its writes are one statement there, so that the order is the server's to keep, also where a row is found by an
insert. That every command writes its rows in the one order, on every database, is ``contract/test_lock_order.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from deliveries import asked_to_stop, held_by
from racing import somebody_waits
from runfacts import Finished, Outcome
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import DispatchSettled
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.postgres import PostgresServer
from stages import WORKER
from waiting import until

ORDERS = {
    "finish": ("cancellation_dispatches", "recovery_claims", "executions", "runs", "attempts"),
    "settle": ("cancellation_dispatches", "recovery_claims", "runs"),
}


@pytest.fixture
def url(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh database on each server."""
    url = postgres.create_database(request.getfixturevalue(f"postgres_{postgres.version}_template"))
    yield url
    postgres.drop_database(url)


def locked(url: str, table: str, run_id: str) -> bool:
    """Whether somebody holds the row of that Run."""
    statement = sql.SQL("SELECT 1 FROM {} WHERE run_id = %s FOR NO KEY UPDATE NOWAIT").format(sql.Identifier(table))
    with psycopg.connect(url) as connection:
        try:
            connection.execute(statement, [run_id])
        except psycopg.errors.LockNotAvailable:
            return True
    return False


@pytest.mark.parametrize(("command", "held"), [(name, table) for name, order in ORDERS.items() for table in order])
def test_the_rows_of_a_command_are_locked_in_order(url: str, command: str, held: str) -> None:
    order = ORDERS[command]
    with ThrowAwayLedgers(url) as ledgers, psycopg.connect(url) as somebody, ThreadPoolExecutor(1) as pool:
        ledger = ledgers(stop_report_grace_ms=1_000)
        asked = asked_to_stop(ledger)
        term = held_by(ledger, asked)
        statement = sql.SQL("SELECT 1 FROM {} WHERE run_id = %s FOR UPDATE").format(sql.Identifier(held))
        somebody.execute(statement, [asked.run_id])
        commands: dict[str, Callable[[], object]] = {
            "finish": lambda: ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER),
            "settle": lambda: ledger.settle_dispatch(term, DispatchResult.TERMINATION_REQUESTED),
        }
        answer = pool.submit(commands[command])
        until(lambda: somebody_waits(url))
        at = order.index(held)
        assert [table for table in order if table != held and locked(url, table, asked.run_id)] == list(order[:at])
        somebody.rollback()
        assert isinstance(answer.result(timeout=30), Finished | DispatchSettled)
        assert ledger.verify().clean

"""
A command locks its rows in the one order, also where one of them is found by an insert (R4.4, PostgreSQL only).

Somebody else holds one of the rows. The command then waits for it: it has every row that comes before, and none of
those that come after.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import sql

from deliveries import asked_to_stop, held_by
from racing import somebody_waits
from runfacts import Finished, Outcome
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import DispatchSettled
from runfacts.infrastructure.database.clocks import install_test_clock
from runfacts.infrastructure.database.opening import connect, migrate
from runfacts.testing.clock import EPOCH_MS
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.postgres import PostgresServer
from stages import WORKER
from waiting import until

ORDERS = {
    "finish": ("cancellation_dispatches", "recovery_claims", "executions", "runs", "attempts"),
    "settle": ("cancellation_dispatches", "recovery_claims", "runs"),
}


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
def test_the_rows_of_a_command_are_locked_in_order(postgres: PostgresServer, command: str, held: str) -> None:
    order = ORDERS[command]
    url = postgres.create_database()
    migrate(url)
    database = connect(url)
    with database.engine.begin() as connection:
        install_test_clock(connection, EPOCH_MS)
    database.close()
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
    postgres.drop_database(url)

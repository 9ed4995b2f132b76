"""
Which rows a command of PostgreSQL really has while it waits for one: those before it, and none behind it (R4.4).

All its writes are one statement there, so that the order is the server's to keep.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import sql

from deliveries import asked_to_stop
from racing import somebody_waits
from runfacts import Finished, Outcome
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.postgres import PostgresServer
from stages import WORKER
from waiting import until

ORDER = ("cancellation_dispatches", "executions", "runs", "attempts")
LOCK = sql.SQL("SELECT 1 FROM {} WHERE run_id = %s FOR NO KEY UPDATE NOWAIT")


@pytest.fixture
def url(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh database on each server."""
    url = postgres.create_database(request.getfixturevalue(f"postgres_{postgres.version}_template"))
    yield url
    postgres.drop_database(url)


def is_free(connection: psycopg.Connection[Any], table: str, run_id: str) -> bool:
    """Whether nobody holds the Run's row of a table."""
    try:
        connection.execute(LOCK.format(sql.Identifier(table)), [run_id])
    except psycopg.errors.LockNotAvailable:
        return False
    return True


@pytest.mark.parametrize("waited_for", ORDER)
def test_the_end_of_a_cancelled_run_takes_its_rows_one_after_the_other(url: str, waited_for: str) -> None:
    with (
        ThrowAwayLedgers(url) as ledgers,
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(url) as holder,
        psycopg.connect(url, autocommit=True) as looking,
    ):
        ledger = ledgers()
        asked = asked_to_stop(ledger)
        holder.execute(LOCK.format(sql.Identifier(waited_for)), [asked.run_id])
        future = pool.submit(ledger.finish, asked.claim, Outcome.cancelled(), actor=WORKER)
        until(lambda: somebody_waits(url))
        free = [table for table in ORDER if is_free(looking, table, asked.run_id)]
        holder.rollback()
        assert free == list(ORDER[ORDER.index(waited_for) + 1 :])
        assert isinstance(future.result(timeout=30), Finished)
        assert ledger.verify().clean

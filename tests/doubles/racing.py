"""Two or many at once on one database, the second one seen waiting before the first goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

import psycopg
import pytest
from sqlalchemy import Connection

from runfacts import DatabaseBusy, Ledger
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import PauseAt, listening
from stages import one_writer
from waiting import until

First = TypeVar("First")
Second = TypeVar("Second")
WAITING = (
    "SELECT count(*) FROM pg_stat_activity AS waiting JOIN pg_locks AS lock ON lock.pid = waiting.pid"
    " WHERE waiting.datname = current_database() AND waiting.wait_event_type = 'Lock' AND NOT lock.granted"
)


def somebody_waits(url: str) -> bool:
    """Whether the server shows a session of this database that waits for a lock."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(WAITING).fetchone()
    return row is not None and row[0] > 0


def race(
    ledgers: ThrowAwayLedgers,
    first: Callable[[Ledger, Connection], First],
    second: Callable[[Ledger], Second],
    *,
    commit: bool = True,
) -> tuple[First, Second | BaseException]:
    """Let the second come while the first is about to commit, or to roll back; what they answer, or the error."""
    one, two = ledgers(), ledgers(busy_timeout_ms=0)
    with one.database.engine.connect() as caller, ThreadPoolExecutor(1) as pool:
        answer = first(one, caller)
        end = caller.commit if commit else caller.rollback
        if one_writer(one):
            with pytest.raises(DatabaseBusy):
                second(two)
            end()
            future = pool.submit(second, two)
        else:
            future = pool.submit(second, two)
            until(lambda: somebody_waits(ledgers.url))
            end()
        error = future.exception(timeout=30)
        assert one.verify().clean
        return answer, future.result() if error is None else error


def overtake(
    ledgers: ThrowAwayLedgers,
    slow: Callable[[Ledger], First],
    fast: Callable[[Ledger], Second],
    step: str = "sql:before:commit",
) -> tuple[First, Second]:
    """Let ``fast`` come while ``slow`` is about to commit: it overtakes on PostgreSQL, and on SQLite it cannot."""
    one, two = ledgers(), ledgers(busy_timeout_ms=0)
    pause = PauseAt(step)
    with listening(one, pause), ThreadPoolExecutor(1) as pool:
        future = pool.submit(slow, one)
        pause.wait()
        if one_writer(one):
            with pytest.raises(DatabaseBusy):
                fast(two)
            pause.resume()
            first = future.result(timeout=30)
            second = fast(two)
        else:
            second = fast(two)
            pause.resume()
            first = future.result(timeout=30)
    assert two.verify().clean
    return first, second


def crowd(many: list[Ledger], act: Callable[[Ledger], First]) -> list[First]:
    """Let a thread for each ledger do the same at once; their answers."""
    barrier = Barrier(len(many))

    def one(ledger: Ledger) -> First:
        barrier.wait(30)
        return act(ledger)

    with ThreadPoolExecutor(len(many)) as pool:
        return list(pool.map(one, many, timeout=60))

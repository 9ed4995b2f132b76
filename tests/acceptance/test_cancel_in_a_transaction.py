"""
A request to stop in a caller's transaction: rolled back it never was, committed it wakes a supervisor (R4.5, R9.4).

The supervisor is another process. On PostgreSQL it looks by itself once an hour, so what wakes it is the commit's own
NOTIFY; a SQLite file tells nobody, there it looks every quarter of a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, create_engine, event

from deliveries import asked_to_stop, brought_to
from runfacts import Ledger, RunStatus
from runfacts.domain.cancellation.terms import CancelRequested
from runfacts.infrastructure.database.engines import parse_url
from runfacts.infrastructure.database.wakeups import CANCELLATIONS, FACTS
from runfacts.testing.ledgers import contents_of
from stages import ANA, created, one_writer, unchanged

PROGRAM = Path(__file__).parent / "processes" / "supervisor_program.py"
DOUBLES = Path(__file__).parents[1] / "doubles"
ONE_HOUR_MS = 3_600_000
SHORTEST_MS = 250


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    """A ledger by the clocks that the supervisor has, too."""
    with Ledger.open(database_url, busy_timeout_ms=60_000) as opened:
        yield opened


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine as an application would make it."""
    engine = create_engine(parse_url(database_url))
    if engine.dialect.name == "sqlite":

        @event.listens_for(engine, "connect")
        def _settings(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's connection
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute("PRAGMA busy_timeout=60000")

    yield engine
    engine.dispose()


@contextmanager
def supervisor(url: str, interval_ms: int) -> Iterator[IO[str]]:
    """A supervisor in a process of its own; what it says, after its first cycle."""
    path = os.pathsep.join([str(DOUBLES), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, PROGRAM, url, str(interval_ms)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            assert json.loads(process.stdout.readline()) == []
            yield process.stdout
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


def rolled_back(ledger: Ledger, caller: Connection, run_id: str) -> None:
    """Ask a Run to stop, together with work of the caller's, and take all of it back."""
    answer = ledger.request_cancellation(run_id, actor=ANA, connection=caller)
    assert isinstance(answer, CancelRequested)
    assert ledger.request_cancellation(run_id, actor=ANA, connection=caller) != answer
    caller.rollback()


def test_a_commit_wakes_a_supervisor_and_a_rollback_does_not(ledger: Ledger, engine: Engine, database_url: str) -> None:
    spared, stopped = brought_to(ledger, "running").run_id, brought_to(ledger, "running").run_id
    interval_ms = SHORTEST_MS if one_writer(ledger) else ONE_HOUR_MS
    with supervisor(database_url, interval_ms) as said, engine.connect() as caller:
        rolled_back(ledger, caller, spared)
        with caller.begin():
            ledger.request_cancellation(stopped, actor=ANA, connection=caller)
        cycles = [json.loads(said.readline())]
        while one_writer(ledger) and not cycles[-1]:
            cycles.append(json.loads(said.readline()))
        # On PostgreSQL its second cycle is the one that the commit woke it for.
        assert cycles[-1] == [stopped]
        assert not any(cycles[:-1])
    assert ledger.run(spared).cancellation is None
    cancellation = ledger.run(stopped).cancellation
    assert cancellation is not None
    assert cancellation.dispatch is not None
    assert cancellation.dispatch.dispatch_count == 1
    assert ledger.verify().clean


@pytest.mark.parametrize("status", ["created", "claimed", "running"])
def test_a_rollback_leaves_no_row_and_no_fact(ledger: Ledger, engine: Engine, status: str) -> None:
    run_id = created(ledger) if status == "created" else brought_to(ledger, status).run_id
    before = ledger.run(run_id)
    with unchanged(ledger), engine.connect() as caller:
        rolled_back(ledger, caller, run_id)
    assert ledger.run(run_id) == before
    assert ledger.unproven().items == ()
    # Nothing remembers it: asked again, it is the first time, and a Run that has nothing to stop ends.
    answer = ledger.request_cancellation(run_id, actor=ANA)
    assert isinstance(answer, CancelRequested)
    ended = ledger.run(run_id).status is RunStatus.CANCELLED
    assert ended is (status == "created")
    assert [fact.type for fact in ledger.history(run_id)].count("run.cancel_requested") == 1
    assert len(contents_of(ledger)["cancellation_dispatches"]) == (0 if ended else 1)
    assert ledger.verify().clean


def test_a_savepoint_that_is_rolled_back_takes_only_its_own_request(ledger: Ledger, engine: Engine) -> None:
    spared, stopped = brought_to(ledger, "running").run_id, brought_to(ledger, "running").run_id
    with engine.begin() as caller:
        with caller.begin_nested() as savepoint:
            ledger.request_cancellation(spared, actor=ANA, connection=caller)
            savepoint.rollback()
        ledger.request_cancellation(stopped, actor=ANA, connection=caller)
    assert [item.run_id for item in ledger.unproven().items] == [stopped]
    assert ledger.verify().clean


def test_a_rollback_tells_no_listener_of_the_server(ledger: Ledger, engine: Engine, database_url: str) -> None:
    if one_writer(ledger):
        # A file has no listeners: what a process hears of it, it says itself.
        bell = ledger.cancellation_bell()
        with engine.connect() as caller:
            rolled_back(ledger, caller, brought_to(ledger, "running").run_id)
        assert not bell.wait(0)
        asked_to_stop(ledger)
        assert bell.wait(0)
        bell.close()
        return
    running = brought_to(ledger, "running").run_id
    with psycopg.connect(database_url, autocommit=True) as listener, engine.connect() as caller:
        for channel in (CANCELLATIONS, FACTS):
            listener.execute(f"LISTEN {channel}".encode())
        rolled_back(ledger, caller, running)
        listener.execute("SELECT pg_notify(%s, 'the end')", [CANCELLATIONS])
        heard = next(listener.notifies(timeout=60))
    # Notifications come in the order of commits.
    assert (heard.channel, heard.payload) == (CANCELLATIONS, "the end")

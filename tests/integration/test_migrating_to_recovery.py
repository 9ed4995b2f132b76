"""
A ledger of the release before recovery, with Runs in every state that matters, is brought to this one (R1.2, R12).

The Runs are made by commands in a new ledger, and their rows are put into an empty one of revision 0002 as that
release would have left them: without the columns and tables that came since, and with ``recover_at_ms`` at the end of
the lease of every active Attempt. Times are of a clock that stands at ``EPOCH_MS`` = T.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from deliveries import Asked, asked_to_stop, brought_to, settled_with
from runfacts import AttemptClaim, Ledger, Outcome, RetryPolicy, RunStatus
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import AttemptClaimed, AttemptLost, RunCreated, RunDispatching, RunLost, RunQueued
from runfacts.infrastructure.database import schema
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.opening import connect, migrate
from runfacts.infrastructure.database.tables import metadata
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import contents_of
from runfacts.testing.postgres import PostgresServer
from stages import ANA, WORKER, finished, queued

T = EPOCH_MS
# Parents first.
OLD_TABLES = ("runs", "executions", "attempts", "cancellation_dispatches", "facts")


@pytest.fixture(params=["sqlite", "postgresql-16", "postgresql-18"])
def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty ledger of revision 0002 of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'old.db'}"
        made_by_0002(url, request)
        yield url
        return
    server: PostgresServer = request.getfixturevalue(request.param.replace("postgresql-", "postgres_"))
    url = server.create_database()
    made_by_0002(url, request)
    yield url
    server.drop_database(url)


def made_by_0002(url: str, request: pytest.FixtureRequest) -> None:
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    database = connect(url, create=True)
    with monkeypatch.context() as earlier, database.engine.begin() as connection:
        earlier.setattr(schema, "HEAD", "0002")
        schema.run_migrations(connection)
    database.close()


def copy(ledger: Ledger, connection: Connection) -> None:
    """Put every row of ``ledger`` into one of revision 0002."""
    contents = contents_of(ledger)
    other = connection.dialect.name != "sqlite"
    for name in OLD_TABLES:
        columns = metadata.tables[name].columns.keys()
        for row in contents[name]:
            values = dict(zip(columns, row, strict=True))
            if name == "executions":
                closed = values.pop("closed_at_ms")
                del values["seen_at_ms"]
                values["recover_at_ms"] = None if closed is not None else values["lease_expires_at_ms"]
            if name == "facts":
                del values["position"]
            if other and name in {"executions", "cancellation_dispatches"}:
                values |= {"lease_boot_id": None, "lease_expires_boot_ms": None}
            marks = ", ".join(f":{column}" for column in values)
            connection.execute(text(f"INSERT INTO {name} ({', '.join(values)}) VALUES ({marks})"), values)


def rows(database: Database, statement: str) -> list[dict[str, Any]]:
    with database.engine.connect() as connection:
        return [dict(row) for row in connection.execute(text(statement)).mappings()]


def waiting(purpose: str, claim: AttemptClaim, scope: str, *, due_at_ms: int, since_ms: int) -> dict[str, Any]:
    """A row that waits to be claimed."""
    return {
        "purpose": purpose,
        "kind": "run",
        "item_id": claim.run_id,
        "run_id": claim.run_id,
        "attempt_id": claim.attempt_id,
        "executor_type": "batch",
        "scope": scope,
        "state": "available",
        "version": 0,
        "owner": None,
        "token_digest": None,
        "claim_expires_at_ms": None,
        "claim_boot_id": None,
        "claim_expires_boot_ms": None,
        "next_claim_at_ms": None,
        "due_at_ms": due_at_ms,
        "delays": 0,
        "failures": 0,
        "reason": None,
        "seen": None,
        "created_at_ms": since_ms,
        "updated_at_ms": since_ms,
    }


def test_a_ledger_from_before_recovery_is_brought_to_it(old_url: str, tmp_path: Path) -> None:
    clock = ManualClock()
    twice = RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=1_000)
    with Ledger.open(f"sqlite:///{tmp_path / 'new.db'}", clock=clock) as ledger:
        open_run = brought_to(ledger, "running")
        ended = finished(ledger)
        retried = finished(ledger, Outcome.failed(exit_code=1), policy=twice)
        lost = given_in(
            ledger,
            RunCreated(task="report", policy=RetryPolicy()),
            RunQueued(),
            RunDispatching(number=1),
            AttemptClaimed(number=1, executor_type="batch"),
            AttemptLost(evidence=Evidence.PRE_START),
            RunLost(evidence=Evidence.PRE_START),
        )
        waits = queued(ledger)
        long_leased = brought_to(ledger, "running")
        ledger.renew(long_leased, lease_ms=600_000)
        clock.advance(2_000)
        asked = asked_to_stop(ledger)
        stopped = asked_to_stop(ledger)
        ledger.finish(stopped.claim, Outcome.cancelled(signal=15), actor=WORKER)
        ledger.request_cancellation(long_leased.run_id, actor=ANA)
        view = ledger.run(long_leased.run_id)
        assert view.cancellation is not None
        settled_with(
            ledger, Asked(long_leased, view.cancellation.requested_at_ms), DispatchResult.TERMINATION_REQUESTED
        )
        old = connect(old_url)
        with old.engine.begin() as connection:
            copy(ledger, connection)
        old.close()

    assert migrate(old_url) == schema.MigrationReport("0002", "0004", ("0003", "0004"))

    database = connect(old_url)
    found = {
        row["attempt_id"]: (row["recover_at_ms"], row["seen_at_ms"], row["closed_at_ms"])
        for row in rows(database, "SELECT * FROM executions")
    }
    assert found == {
        # Nothing says when it was seen last: the end of its lease is surely later.
        open_run.attempt_id: (T + 30_000, T + 30_000, None),
        ended.attempt_id: (None, T + 30_000, T),
        retried.attempt_id: (None, T + 30_000, T),
        lost.claim.attempt_id: (None, T + 30_000, T),
        long_leased.attempt_id: (None, T + 600_000, None),
        asked.attempt_id: (None, T + 32_000, None),
        stopped.attempt_id: (None, T + 32_000, T + 2_000),
    }
    by_run = sorted(rows(database, "SELECT * FROM recovery_claims"), key=lambda row: str(row["run_id"]))
    expected = [
        waiting("retry", retried, "", due_at_ms=T + 1_000, since_ms=T),
        waiting("retry", lost.claim, "", due_at_ms=T, since_ms=T),
        waiting("stop", asked.claim, "here", due_at_ms=T + 32_000, since_ms=T + 2_000),
        # Delivered at T + 2,000; its host has 30,000 ms to report, which end sooner than its lease.
        waiting("stop", long_leased, "here", due_at_ms=T + 32_000, since_ms=T + 2_000),
    ]
    assert by_run == sorted(expected, key=lambda row: str(row["run_id"]))
    database.close()

    with Ledger.open(old_url, clock=clock if old_url.startswith("sqlite") else None) as ledger:
        assert ledger.verify().clean
        assert ledger.run(waits).status is RunStatus.QUEUED
        ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
        assert ledger.run(asked.run_id).status is RunStatus.CANCELLED
        assert ledger.verify().clean

"""A supervisor that has nothing to do costs a ledger nothing (R9.1, R9.3)."""

from __future__ import annotations

import pytest

from deliveries import asked_to_stop, brought_to, held_by, settled_with
from runfacts import Ledger
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.infrastructure.database.engines import sqlite_path
from runfacts.infrastructure.supervision import Duty, Supervision
from runfacts.testing.ledgers import sqlite_ledgers
from runfacts.testing.steps import RecordedSteps, listening
from stages import ANA, finished, one_writer, unchanged
from stoppers import Stopper

CYCLES = 10


@pytest.fixture
def busy(ledger: Ledger) -> Ledger:
    """A ledger with Runs of all kinds, of which none is to be delivered to now."""
    brought_to(ledger, "running", timeout_ms=60_000)
    finished(ledger)
    held_by(ledger, asked_to_stop(ledger))
    settled_with(ledger, asked_to_stop(ledger), DispatchResult.TERMINATION_REQUESTED)
    settled_with(ledger, asked_to_stop(ledger), DispatchResult.IDENTITY_MISMATCH)
    settled_with(ledger, asked_to_stop(ledger), DispatchResult.DISPATCH_ERROR)
    ledger.start(asked_to_stop(ledger, "claimed").claim, actor=ANA)
    return ledger


def statements_of(ledger: Ledger, worker: Supervision) -> list[str]:
    """Give the statements of idle cycles."""
    recorded = RecordedSteps()
    with unchanged(ledger), listening(ledger, recorded):
        for _ in range(CYCLES):
            assert all(counts["seen"] == 0 for counts in worker.cycle().counters.values())
    return [name.removeprefix("sql:before:") for name in recorded.names if name.startswith("sql:before:")]


def test_cancellation_is_one_query_in_each_idle_cycle(busy: Ledger) -> None:
    worker = busy.supervise(controllers=[Stopper()], local=False, duties=[Duty.CANCELLATION])
    # PostgreSQL is asked for its time first (R5.1).
    clock = [] if one_writer(busy) else ["now"]
    assert statements_of(busy, worker) == [*clock, "select_due_dispatches"] * CYCLES


OWN_CLAIMS = ["select_due_claims", "select_claims_ahead"]
IDLE = [
    "select_open_executions",
    "select_passed_deadlines",
    "select_due_dispatches",
    # What a sweep looks at.
    "select_claims_under_way",
    "select_manual_claims",
    # Recovery: Attempts, their rows of Runs, Runs without an Attempt, what was never queued, other scopes.
    "select_due_attempts",
    "select_attempts_ahead",
    *OWN_CLAIMS,
    "select_ownerless_runs",
    "select_stuck_runs",
    "select_unserved_attempts",
    # Confirmations, then retries, with a scope and without one.
    *OWN_CLAIMS,
    "select_unserved_claims",
    *OWN_CLAIMS,
    *OWN_CLAIMS,
    "select_unserved_claims",
    # What all projections lack.
    "select_projection_progress",
]


def test_each_range_is_one_query_in_each_idle_cycle(busy: Ledger) -> None:
    # This machine's own scope, which none of these Runs is of.
    worker = busy.supervise()
    worker.cycle()
    # The sweep looks once at what the claims are about that are under way.
    aside = {"now", "ledger_id", "select_targets_of_runs"}
    assert [name for name in statements_of(busy, worker) if name not in aside] == IDLE * CYCLES


def test_an_idle_supervisor_writes_nothing_to_a_sqlite_file() -> None:
    with sqlite_ledgers() as ledgers:
        ledger = ledgers()
        settled_with(ledger, asked_to_stop(ledger), DispatchResult.TERMINATION_REQUESTED)
        worker = ledger.supervise(controllers=[Stopper()])
        worker.cycle()
        path = sqlite_path(ledger.database.engine.url)
        files = {name: path.with_name(name) for name in (path.name, f"{path.name}-wal")}

        def found() -> tuple[dict[str, tuple[int, bytes]], int]:
            fairy = ledger.database.engine.raw_connection()
            try:
                changed: int = fairy.driver_connection.total_changes  # type: ignore[union-attr] # it is connected
            finally:
                fairy.close()
            return {name: (file.stat().st_mtime_ns, file.read_bytes()) for name, file in files.items()}, changed

        before = found()
        assert before[1] > 0
        assert len(before[0][f"{path.name}-wal"][1]) > 0
        for _ in range(CYCLES):
            worker.cycle()
        assert found() == before

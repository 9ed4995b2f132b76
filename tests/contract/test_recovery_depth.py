"""The queues of recovery as gauges tell them, on every database (R7.7, R11.1, R13.1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import text, update

from deliveries import OPERATOR, asked_to_stop, brought_to
from left_rows import left_to_operators, put_row
from measured import Measured
from runfacts import Ledger, Outcome, RetryPolicy
from runfacts.domain.measures import RECOVERY_QUEUE_DEPTH, RECOVERY_QUEUE_OLDEST_AGE, Measure
from runfacts.domain.recovery.claims import ClaimState, Purpose
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.tables import executions
from runfacts.infrastructure.stores.recovery_depth import (
    COUNT_CANDIDATES,
    COUNT_DUE_ATTEMPTS,
    COUNT_LEFT_TO_OPERATORS,
    DEPTH_COUNTED_MAX,
)
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import WORKER, created

LEASE_MS = 30_000
RETRIED = RetryPolicy(max_attempts=2, retry_on_failure=True)


@pytest.fixture
def measured() -> Iterator[Measured]:
    """Measures in memory."""
    measured = Measured()
    yield measured
    measured.close()


@pytest.fixture
def ledger(ledger_factory: ThrowAwayLedgers, measured: Measured) -> Ledger:
    """A ledger that measures."""
    return ledger_factory(measures=measured.measures)


def told(measured: Measured, gauge: Measure) -> dict[tuple[str, str], int]:
    """Give what a gauge says, without its zeros, by purpose and state."""
    values = {(point.attributes["purpose"], point.attributes["state"]): point.value for point in measured.points(gauge)}
    assert not values or len(values) == 12
    return {place: value for place, value in values.items() if value}


def test_a_clean_ledger_has_nothing_in_its_queues(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    brought_to(ledger, "running")
    asked_to_stop(ledger)
    retried = brought_to(ledger, "running", policy=RETRIED)
    ledger.finish(retried, Outcome.failed(exit_code=1), actor=WORKER)
    created(ledger)
    manual_clock.advance(999)
    # Leases that hold, stops that their hosts see to and retries whose time has not come are no candidates.
    assert told(measured, RECOVERY_QUEUE_DEPTH) == {}


def test_what_nobody_has_come_for_is_due_since_its_time(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(100)
    brought_to(ledger, "running")
    asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS + 5)
    assert told(measured, RECOVERY_QUEUE_DEPTH) == {("recovery", "due"): 2, ("stop", "due"): 1}
    assert told(measured, RECOVERY_QUEUE_OLDEST_AGE) == {("recovery", "due"): 105, ("stop", "due"): 5}


def test_rows_are_told_by_purpose_and_by_where_they_stand(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    held, backing_off, left = (brought_to(ledger, "running") for _ in range(3))
    stopping, stuck = asked_to_stop(ledger).claim, asked_to_stop(ledger).claim
    retried = brought_to(ledger, "running", policy=RETRIED)
    ledger.finish(retried, Outcome.failed(exit_code=1), actor=WORKER, group_left=True)
    manual_clock.advance(LEASE_MS)
    put_row(ledger, Purpose.RECOVERY, ClaimState.CLAIMED, held.run_id, held.attempt_id)
    put_row(ledger, Purpose.RECOVERY, ClaimState.RETRY, backing_off.run_id, backing_off.attempt_id)
    left_to_operators(ledger, left)
    put_row(ledger, Purpose.STOP, ClaimState.RETRY, stopping.run_id, stopping.attempt_id)
    left_to_operators(ledger, stuck, Purpose.STOP)
    put_row(ledger, Purpose.RETRY, ClaimState.CLAIMED, retried.run_id, retried.attempt_id)
    manual_clock.advance(7)
    seven = {
        ("recovery", "claimed"): 7,
        ("recovery", "backing_off"): 7,
        ("recovery", "manual"): 7,
        ("stop", "backing_off"): 7,
        ("stop", "manual"): 7,
        ("retry", "claimed"): 7,
    }
    assert told(measured, RECOVERY_QUEUE_DEPTH) == dict.fromkeys(seven, 1)
    assert told(measured, RECOVERY_QUEUE_OLDEST_AGE) == seven
    # A wait that is over, and a term that has expired, are due again; an Attempt is counted once.
    manual_clock.advance(LEASE_MS)
    assert told(measured, RECOVERY_QUEUE_DEPTH) == {
        ("recovery", "due"): 2,
        ("recovery", "manual"): 1,
        ("stop", "due"): 1,
        ("stop", "manual"): 1,
        ("retry", "due"): 1,
    }


def test_an_execution_that_was_left_open_behind_an_ended_attempt_is_in_no_queue(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    with ledger.database.engine.begin() as connection:
        connection.execute(update(executions).values(recover_at_ms=1, closed_at_ms=None))
    manual_clock.advance(LEASE_MS)
    assert told(measured, RECOVERY_QUEUE_DEPTH) == {}


def test_a_manual_row_whose_run_has_ended_is_left_over_and_in_no_queue(ledger: Ledger, measured: Measured) -> None:
    stopping = asked_to_stop(ledger).claim
    left_to_operators(ledger, stopping, Purpose.STOP)
    assert told(measured, RECOVERY_QUEUE_DEPTH) == {("stop", "manual"): 1}
    version = ledger.run(stopping.run_id).version
    ledger.confirm_stopped(stopping.run_id, actor=OPERATOR, because="the machine is scrap", version=version)
    assert told(measured, RECOVERY_QUEUE_DEPTH) == {}


def test_each_of_its_queries_reads_an_index_of_what_is_open(ledger: Ledger) -> None:
    counted = {"now_ms": 1, "limit": DEPTH_COUNTED_MAX}
    for statement, index, asked in (
        (COUNT_DUE_ATTEMPTS, "ix_executions_recovery", counted),
        (COUNT_CANDIDATES, "ix_recovery_claims_due", counted | {"purpose": Purpose.STOP.value}),
        (COUNT_LEFT_TO_OPERATORS, "ix_recovery_claims_manual", {"limit": DEPTH_COUNTED_MAX}),
    ):
        compiled = statement.compiled(ledger.database.dialect)
        explain = "EXPLAIN QUERY PLAN " if ledger.database.dialect == SQLITE else "EXPLAIN "
        with ledger.database.engine.begin() as connection:
            if ledger.database.dialect != SQLITE:
                # An empty table is read whole whatever indexes it has.
                connection.execute(text("SET LOCAL enable_seqscan = off"))
                connection.execute(text("SET LOCAL enable_sort = off"))
            cursor = connection.connection.cursor()
            cursor.execute(explain + compiled.text, compiled.bind(asked))
            plan = "\n".join(str(row[-1]) for row in cursor.fetchall())
        assert index in plan, plan

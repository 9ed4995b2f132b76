"""What recovery counts and times, on every database (R7.7, R11.3, R11.7)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deliveries import SCOPE, brought_to
from evidence_doubles import Hanging, Saying
from measured import Measured
from runfacts import Evidence, Ledger, Purpose, RecoveryApplied, RecoveryFenced
from runfacts.domain.measures import (
    CYCLE_COUNTS,
    EVIDENCE_ANSWERS,
    EVIDENCE_DURATION,
    RECOVERY_WINDOW,
    REFUSALS,
)
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import EXECUTOR
from stoppers import Stopper

LEASE_MS = 30_000
SERVED = frozenset({(EXECUTOR, SCOPE)})


@pytest.fixture
def measured() -> Iterator[Measured]:
    """Measures in memory."""
    measured = Measured()
    yield measured
    measured.close()


@pytest.fixture
def ledger(ledger_factory: ThrowAwayLedgers, measured: Measured) -> Ledger:
    """A ledger that measures, and waits for no provider for long."""
    return ledger_factory(measures=measured.measures, evidence_timeout_ms=50)


def counted(measured: Measured, *parts: str) -> dict[tuple[str, str], int]:
    """Give what these parts of the cycles counted."""
    return {
        (point.attributes["part"], point.attributes["counter"]): point.value
        for point in measured.points(CYCLE_COUNTS)
        if point.attributes["part"] in parts
    }


def test_a_cycle_tells_claims_verdicts_and_what_was_found(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    provider = Saying(Evidence.not_running())
    ledger.supervise(controllers=[Stopper()], providers=[provider], local=False).cycle()
    assert counted(measured, "recovery", "retry") == {
        ("recovery", "seen"): 1,
        ("recovery", "claimed"): 1,
        ("recovery", "found_not_running"): 1,
        ("recovery", "lost"): 1,
        ("retry", "seen"): 1,
        ("retry", "claimed"): 1,
        ("retry", "moved_on"): 1,
    }
    assert measured.counts(EVIDENCE_ANSWERS) == {"not_running": 1}
    assert measured.sum_and_count(EVIDENCE_DURATION)[1] == 1
    assert measured.points(RECOVERY_WINDOW) == []


def test_a_provider_that_hangs_is_told_in_every_cycle_until_it_ends(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    hanging = Hanging()
    worker = ledger.supervise(controllers=[Stopper()], providers=[hanging], local=False)
    try:
        assert worker.cycle()["recovery"]["hanging"] == 1
        assert worker.cycle()["recovery"]["hanging"] == 1
        assert counted(measured, "recovery")["recovery", "hanging"] == 2
        assert measured.counts(EVIDENCE_ANSWERS) == {"provider_unavailable": 1}
    finally:
        hanging.let_go.set()


def test_a_late_write_is_counted_as_refused_and_the_window_of_a_crash_is_timed(
    ledger: Ledger, measured: Measured, manual_clock: ManualClock
) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    (claim,) = ledger.claim_recoveries(Purpose.RECOVERY, owner="worker-1", served=SERVED)
    snapshot = ledger.recovery_snapshot(claim)
    assert snapshot is not None
    assert isinstance(ledger.apply_lost(claim, snapshot, EvidenceKind.NOT_RUNNING, EXECUTOR), RecoveryApplied)
    # Here the worker dies, and its term expires.
    manual_clock.advance(LEASE_MS)
    assert isinstance(ledger.apply_lost(claim, snapshot, EvidenceKind.NOT_RUNNING, EXECUTOR), RecoveryFenced)
    assert measured.counts(REFUSALS) == {"recovery_term": 1}
    worker = ledger.supervise(controllers=[Stopper()], local=False)
    assert worker.cycle()["recovery"]["swept"] == 1
    assert measured.sum_and_count(RECOVERY_WINDOW) == (LEASE_MS, 1)
    assert "swept" in {counter for _, counter in counted(measured, "recovery")}

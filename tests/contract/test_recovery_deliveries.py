"""What recovery ends is no longer delivered, nor is its stop confirmed (R7.6, R12.2)."""

from __future__ import annotations

from deliveries import asked_to_stop, due_runs, stored
from recoveries import LEASE_MS, applied, only, seen
from runfacts import Ledger
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import Purpose
from runfacts.testing.clock import ManualClock


def test_a_stop_that_is_proven_takes_its_delivery_out_of_the_queue(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(LEASE_MS)
    assert due_runs(ledger) == [asked.run_id]
    claim = only(ledger, Purpose.STOP)
    applied(ledger.apply_stopped(claim, seen(ledger, claim), Evidence.NOT_RUNNING, "batch"))
    assert stored(ledger, asked, "due_at_ms") == (None,)
    assert due_runs(ledger) == []

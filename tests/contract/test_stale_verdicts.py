"""A verdict that an operator must give is given on what was seen, or not at all (R11.2, R11.6, R11.10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deliveries import brought_to
from recoveries import LEASE_MS, only, row_of_claim, seen, settled
from runfacts import AttemptClaim, Ledger, Outcome
from runfacts.domain.recovery.claims import ClaimState, ManualReason, RecoveryStale
from runfacts.testing.clock import ManualClock
from stages import ANA, WORKER, types, unchanged

UNPROVEN = ManualReason.IDENTITY_UNVERIFIABLE


def confirmed(ledger: Ledger, claim: AttemptClaim) -> None:
    ledger.running(claim, actor=WORKER, handle="late-1", pid=4711)


def finished(ledger: Ledger, claim: AttemptClaim) -> None:
    confirmed(ledger, claim)
    ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER)


def asked_to_stop(ledger: Ledger, claim: AttemptClaim) -> None:
    ledger.request_cancellation(claim.run_id, actor=ANA)


@pytest.mark.parametrize("happens", [confirmed, finished, asked_to_stop])
def test_what_changed_while_somebody_looked_is_not_an_operators(
    ledger: Ledger, manual_clock: ManualClock, happens: Callable[[Ledger, AttemptClaim], None]
) -> None:
    attempt = brought_to(ledger, "starting")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    happens(ledger, attempt)
    with unchanged(ledger):
        answer = ledger.settle_recovery(claim, manual=UNPROVEN, snapshot=snapshot)
    assert answer == RecoveryStale(claim.key)
    # The term goes on, for its holder to say that somebody shall look again.
    assert row_of_claim(ledger, claim)["state"] == "claimed"
    assert settled(ledger, claim, retry_in_ms=5_000).state is ClaimState.RETRY
    assert "run.recovery_manual" not in types(ledger, attempt.run_id)
    assert ledger.manual().items == ()
    assert ledger.verify().clean


def test_what_is_as_it_was_seen_is_an_operators(ledger: Ledger, manual_clock: ManualClock) -> None:
    attempt = brought_to(ledger, "starting")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    manual_clock.advance(1_000)
    assert settled(ledger, claim, manual=UNPROVEN, snapshot=snapshot).state is ClaimState.MANUAL
    assert types(ledger, attempt.run_id)[-1] == "run.recovery_manual"

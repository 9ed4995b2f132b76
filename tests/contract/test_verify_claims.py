"""``verify`` names claims that are left over, and those missing where nobody would look again (R11.1, R12, R14.2)."""

from __future__ import annotations

from typing import Any

import pytest

from claim_rows import change_row, claimed_until
from deliveries import asked_to_stop
from runfacts import ExecutionOwner, Ledger, Outcome, RetryPolicy
from runfacts.testing.clock import EPOCH_MS
from stages import ANA, WORKER, finished, running
from tampering import change, owner_of

RETRIED = RetryPolicy(max_attempts=2, retry_on_failure=True)
OPEN = "a row that somebody will look at"


def found(ledger: Ledger) -> list[tuple[str, str, str, str | None, str | None]]:
    return [
        (item.run_id, item.kind, item.field, item.recorded, item.recomputed) for item in ledger.verify().differences
    ]


@pytest.mark.parametrize("state", ["available", "retry", "manual"])
def test_a_stop_row_of_an_ended_run_is_left_over(ledger: Ledger, state: str) -> None:
    asked = asked_to_stop(ledger)
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    columns: dict[str, dict[str, Any]] = {
        "available": {"due_at_ms": EPOCH_MS},
        "retry": {"due_at_ms": EPOCH_MS, "next_claim_at_ms": EPOCH_MS},
        "manual": {"reason": "unexpected", "seen": "s"},
    }
    change_row(ledger, "stop", asked.run_id, state=state, **columns[state])
    assert found(ledger) == [(asked.run_id, "claim", "stop", state, "resolved")]


def test_what_somebody_holds_is_their_matter(ledger: Ledger) -> None:
    # Between what a holder records and its settle the Run has ended and the row is held (R11.7).
    asked = asked_to_stop(ledger)
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    change_row(ledger, "stop", asked.run_id, **claimed_until(ledger, EPOCH_MS + 30_000))
    assert ledger.verify().clean


def test_a_stop_that_nobody_would_confirm_is_named(ledger: Ledger, database_url: str) -> None:
    resolved, missing = asked_to_stop(ledger), asked_to_stop(ledger)
    change_row(ledger, "stop", resolved.run_id, state="resolved")
    with owner_of(database_url) as owner:
        owner.run("DELETE FROM recovery_claims WHERE run_id = ?", [missing.run_id])
    assert sorted(found(ledger)) == sorted(
        [
            (resolved.run_id, "claim", "stop", "resolved", OPEN),
            (missing.run_id, "claim", "stop", None, OPEN),
        ]
    )


def test_a_retry_that_nobody_would_queue_and_one_too_many_are_named(ledger: Ledger) -> None:
    waits = finished(ledger, Outcome.failed(exit_code=1), policy=RETRIED)
    change_row(ledger, "retry", waits.run_id, state="resolved")
    assert found(ledger) == [(waits.run_id, "claim", "retry", "resolved", OPEN)]
    ledger.request_cancellation(waits.run_id, actor=ANA)
    assert ledger.verify().clean
    change_row(ledger, "retry", waits.run_id, state="available", due_at_ms=EPOCH_MS)
    assert found(ledger) == [(waits.run_id, "claim", "retry", "available", "resolved")]


def test_an_active_attempt_whose_execution_is_closed_is_named(ledger: Ledger, database_url: str) -> None:
    claim = running(ledger)
    with owner_of(database_url) as owner:
        change(owner, "executions", {"attempt_id": claim.attempt_id}, "closed_at_ms", EPOCH_MS + 5)
    assert found(ledger) == [(claim.run_id, "execution", "closed_at_ms", str(EPOCH_MS + 5), None)]


def test_an_ended_attempt_whose_execution_is_open_is_named(ledger: Ledger, database_url: str) -> None:
    claim = finished(ledger)
    with owner_of(database_url) as owner:
        change(owner, "executions", {"attempt_id": claim.attempt_id}, "closed_at_ms", None)
    assert found(ledger) == [(claim.run_id, "execution", "closed_at_ms", None, str(EPOCH_MS))]


def test_an_execution_that_recovery_would_look_at_beside_a_cancellation_is_named(
    ledger: Ledger, database_url: str
) -> None:
    asked = asked_to_stop(ledger)
    with owner_of(database_url) as owner:
        change(owner, "executions", {"attempt_id": asked.attempt_id}, "recover_at_ms", EPOCH_MS)
    assert found(ledger) == [(asked.run_id, "execution", "recover_at_ms", str(EPOCH_MS), None)]


def test_a_run_of_another_system_has_no_claims(ledger: Ledger) -> None:
    ledger.create(actor=ANA, task="theirs", execution_owner=ExecutionOwner.LEGACY)
    assert ledger.verify().clean

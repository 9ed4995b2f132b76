"""
A lease may be renewed unless recovery holds the Attempt right now, and a renewal ends recovery (R10.3, R11.2, R12.1).

``claimed`` means that a worker holds the row of purpose recovery; it has moved ``recover_at_ms`` with it (R1.2).
"""

from __future__ import annotations

from typing import Any

import pytest

from claim_rows import BOOT, change_row, claimed_until, put_recovery, rows_of
from runfacts import AttemptClaim, AttemptStatus, IntentKind, Ledger, Refusal, RenewalRefused, Renewed, RunStatus
from runfacts.infrastructure.database.tables import executions
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import CallAt, RecordedSteps, listening
from stages import ANA, one_writer, row_of, running, unchanged

RECOVERING = RenewalRefused(RunStatus.RUNNING, AttemptStatus.RUNNING, Refusal.RECOVERING)


def recover_at(ledger: Ledger, at_ms: int | None) -> None:
    """Move when recovery looks next, as a claim or a verdict does."""
    with ledger.database.engine.begin() as connection:
        connection.execute(executions.update().values(recover_at_ms=at_ms))


def held(ledger: Ledger, claim: AttemptClaim, expires_at_ms: int) -> None:
    """Let a worker hold the recovery of an Attempt."""
    put_recovery(ledger, claim.run_id, claim.attempt_id, **claimed_until(ledger, expires_at_ms))
    recover_at(ledger, expires_at_ms)


def test_the_claim_the_handle_and_each_renewal_are_the_last_sight(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = running(ledger)
    assert row_of(ledger, "executions")["seen_at_ms"] == EPOCH_MS
    manual_clock.advance(7_000)
    ledger.renew(claim)
    row = row_of(ledger, "executions")
    assert (row["seen_at_ms"], row["recover_at_ms"], row["closed_at_ms"]) == (EPOCH_MS + 7_000, EPOCH_MS + 37_000, None)
    assert ledger.execution(claim.attempt_id).seen_at_ms == EPOCH_MS + 7_000


def test_a_renewal_is_refused_while_recovery_holds_the_attempt(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = running(ledger)
    manual_clock.advance(40_000)
    held(ledger, claim, EPOCH_MS + 70_000)
    manual_clock.advance(29_999)
    with unchanged(ledger):
        assert ledger.renew(claim) == RECOVERING
    manual_clock.advance(1)
    # Its term is over: now == expiry is expired (R5.3).
    assert ledger.renew(claim) == Renewed(EPOCH_MS + 100_000, AttemptStatus.RUNNING, None)
    row = rows_of(ledger, claim.attempt_id)["recovery"]
    assert (row["state"], row["version"], row["owner"], row["due_at_ms"]) == ("resolved", 4, None, None)
    assert row_of(ledger, "executions")["recover_at_ms"] == EPOCH_MS + 100_000
    assert ledger.verify().clean


def test_a_term_of_another_boot_holds_nothing_where_the_boot_clock_decides(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = running(ledger)
    manual_clock.advance(40_000)
    held(ledger, claim, EPOCH_MS + 70_000)
    if one_writer(ledger):
        columns = claimed_until(ledger, EPOCH_MS + 70_000) | {"claim_boot_id": BOOT}
        change_row(ledger, "recovery", claim.attempt_id, **columns)
    expected = Renewed(EPOCH_MS + 70_000, AttemptStatus.RUNNING, None) if one_writer(ledger) else RECOVERING
    assert ledger.renew(claim) == expected


@pytest.mark.parametrize(
    "columns",
    [
        {"state": "available", "due_at_ms": EPOCH_MS + 40_000},
        {"state": "retry", "due_at_ms": EPOCH_MS + 90_000, "next_claim_at_ms": EPOCH_MS + 90_000, "delays": 3},
        {"state": "manual", "reason": "scope_unserved", "seen": "s"},
    ],
)
def test_a_renewal_takes_the_attempt_out_of_recovery(
    ledger: Ledger, manual_clock: ManualClock, columns: dict[str, Any]
) -> None:
    claim = running(ledger)
    manual_clock.advance(40_000)
    put_recovery(ledger, claim.run_id, claim.attempt_id, **columns)
    recover_at(ledger, columns.get("due_at_ms"))
    assert ledger.renew(claim) == Renewed(EPOCH_MS + 70_000, AttemptStatus.RUNNING, None)
    row = rows_of(ledger, claim.attempt_id)["recovery"]
    assert (row["state"], row["version"], row["reason"], row["seen"]) == ("resolved", 4, None, None)
    assert (row["next_claim_at_ms"], row["due_at_ms"]) == (None, None)
    assert row_of(ledger, "executions")["recover_at_ms"] == EPOCH_MS + 70_000


def test_a_resolved_row_is_left_alone(ledger: Ledger) -> None:
    claim = running(ledger)
    put_recovery(ledger, claim.run_id, claim.attempt_id, state="resolved")
    before = rows_of(ledger, claim.attempt_id)
    assert isinstance(ledger.renew(claim), Renewed)
    assert rows_of(ledger, claim.attempt_id) == before


def test_the_usual_renewal_is_one_read_and_one_write(ledger: Ledger) -> None:
    claim = running(ledger)
    recorded = RecordedSteps()
    with listening(ledger, recorded):
        ledger.renew(claim)
    statements = [name.removeprefix("sql:before:") for name in recorded.names if name.startswith("sql:before:")]
    # On PostgreSQL the time that decides is the database's.
    assert [name for name in statements if name != "now"] == ["select_holding", "renew_execution", "commit"]


def test_a_renewal_that_is_overtaken_by_a_claim_is_refused(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    slow, fast = ledger_factory(), ledger_factory()
    claim = running(slow)
    manual_clock.advance(40_000)
    if one_writer(slow):
        # Nobody can overtake there: who reads to write has the file for itself.
        held(fast, claim, EPOCH_MS + 70_000)
        assert slow.renew(claim) == RECOVERING
        return
    overtaking = CallAt("sql:before:renew_execution", lambda: held(fast, claim, EPOCH_MS + 70_000))
    with listening(slow, overtaking):
        assert slow.renew(claim) == RECOVERING
    assert row_of(slow, "executions")["recover_at_ms"] == EPOCH_MS + 70_000
    assert rows_of(slow, claim.attempt_id)["recovery"]["state"] == "claimed"


def test_a_renewal_that_is_overtaken_by_a_second_term_is_refused(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    slow, fast = ledger_factory(), ledger_factory()
    claim = running(slow)
    manual_clock.advance(40_000)
    put_recovery(slow, claim.run_id, claim.attempt_id, state="available", due_at_ms=EPOCH_MS + 30_000)
    later = claimed_until(fast, EPOCH_MS + 70_000) | {"version": 4}
    if one_writer(slow):
        change_row(fast, "recovery", claim.attempt_id, **later)
        assert slow.renew(claim) == RECOVERING
        return
    overtaking = CallAt("sql:before:resolve_recovery", lambda: change_row(fast, "recovery", claim.attempt_id, **later))
    with listening(slow, overtaking):
        assert slow.renew(claim) == RECOVERING
    assert rows_of(slow, claim.attempt_id)["recovery"]["state"] == "claimed"


def test_a_renewal_that_is_overtaken_by_a_request_says_so_and_leaves_recovery_out(
    ledger_factory: ThrowAwayLedgers,
) -> None:
    slow, fast = ledger_factory(), ledger_factory()
    claim = running(slow)
    overtaking = CallAt("sql:before:renew_execution", lambda: fast.request_cancellation(claim.run_id, actor=ANA))
    if one_writer(slow):
        fast.request_cancellation(claim.run_id, actor=ANA)
        answer = slow.renew(claim)
    else:
        with listening(slow, overtaking):
            answer = slow.renew(claim)
    assert answer == Renewed(EPOCH_MS + 30_000, AttemptStatus.RUNNING, IntentKind.USER)
    assert row_of(slow, "executions")["recover_at_ms"] is None
    assert slow.verify().clean

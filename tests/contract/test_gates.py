"""
The gates of durable cancellation that a store can show by itself, by name: G2 to G7, G9 and G10.

G1 (one owner calls the controller) and G8 (no signal on a mismatch) need real workers and real processes: they are
with the acceptance tests of workers. R3.6, R7.1 to R7.5, R9.1, R9.2, R15.
"""

from __future__ import annotations

import logging
import re

import pytest

from deliveries import (
    LEASE_MS,
    ONE,
    TWO,
    asked_to_stop,
    due_runs,
    held_by,
    refused_as,
    settled_with,
    stored,
)
from failing_database import failing
from runfacts import Ledger, Outcome
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import DispatchFenced
from runfacts.domain.errors import InvalidSetting
from runfacts.domain.limits import Settings
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of
from stages import WORKER, unchanged

REQUESTED = DispatchResult.TERMINATION_REQUESTED


def test_g2_no_take_over_before_the_expiry_and_with_a_new_term_after_it(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    first = held_by(ledger, asked, ONE)
    manual_clock.advance(LEASE_MS - 1)
    with unchanged(ledger):
        assert refused_as(ledger, asked, TWO) is ClaimAnswer.LEASED
    manual_clock.advance(1)
    second = held_by(ledger, asked, TWO)
    assert second.version == first.version + 1
    assert second.token != first.token


def test_g3_the_old_owner_token_and_version_change_nothing(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    first = held_by(ledger, asked, ONE)
    manual_clock.advance(LEASE_MS)
    held_by(ledger, asked, TWO)
    with unchanged(ledger):
        assert ledger.settle_dispatch(first, REQUESTED) == DispatchFenced(asked.run_id)


def test_g4_a_fact_that_cannot_be_appended_takes_dispatch_and_run_back(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    injected = pytest.raises(ledger.database.driver_error, match="injected")
    with unchanged(ledger), failing(ledger, "facts", "INSERT", "run.cancel_dispatched"), injected:
        ledger.settle_dispatch(held, REQUESTED)
    assert stored(ledger, asked, "status", "version") == ("leased", 1)


def test_g5_waiting_is_neither_found_nor_claimed_before_its_time(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, DispatchResult.DISPATCH_ERROR)
    manual_clock.advance(999)
    with unchanged(ledger):
        assert due_runs(ledger) == []
        assert refused_as(ledger, asked) is ClaimAnswer.NOT_DUE
    manual_clock.advance(1)
    assert due_runs(ledger) == [asked.run_id]
    assert held_by(ledger, asked).dispatch_count == 2


@pytest.mark.parametrize("end", ["terminal", "dispatched", "blocked"])
def test_g6_what_is_done_is_never_found_nor_claimed_again(ledger: Ledger, manual_clock: ManualClock, end: str) -> None:
    asked = asked_to_stop(ledger)
    if end == "terminal":
        ledger.finish(asked.claim, Outcome.succeeded(), actor=WORKER)
    else:
        settled_with(ledger, asked, REQUESTED if end == "dispatched" else DispatchResult.IDENTITY_MISMATCH)
    manual_clock.advance(86_400_000)
    with unchanged(ledger):
        assert due_runs(ledger) == []
        assert refused_as(ledger, asked, TWO) in {
            ClaimAnswer.NOT_ELIGIBLE,
            ClaimAnswer.DISPATCHED,
            ClaimAnswer.BLOCKED,
        }


@pytest.mark.parametrize("result", ["controller_missing", "handle_missing", "dispatch_error"])
def test_g7_what_fails_for_a_time_waits_longer_and_longer_over_restarts(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock, result: str
) -> None:
    asked = asked_to_stop(ledger_factory())
    waits = []
    for _ in range(3):
        ledger = ledger_factory()
        due_at_ms = settled_with(ledger, asked, DispatchResult(result)).next_attempt_at_ms
        ledger.close()
        assert due_at_ms is not None
        waits.append(due_at_ms - manual_clock.database_ms())
        manual_clock.advance(waits[-1] - 1)
        assert refused_as(ledger_factory(), asked) is ClaimAnswer.NOT_DUE
        manual_clock.advance(1)
    assert waits == [1_000, 2_000, 4_000]


@pytest.mark.parametrize(
    "setting",
    [
        {"cancel_page": 65},
        {"cancel_page": 0},
        {"cancel_pages": 65},
        {"cancel_lease_ms": 300_001},
        {"backoff_max_ms": 86_400_001},
        {"backoff_exponent_cap": 31},
        {"dispatch_limit": 1_001},
    ],
    ids=str,
)
def test_g9_pages_cycles_and_waits_have_hard_bounds(setting: dict[str, int]) -> None:
    with pytest.raises(InvalidSetting):
        Settings.from_sources(setting)


def test_g10_no_fact_and_no_log_line_has_a_handle_a_number_or_a_token(
    ledger: Ledger, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        asked = asked_to_stop(ledger)
        first = held_by(ledger, asked, ONE)
        manual_clock.advance(LEASE_MS)
        second = held_by(ledger, asked, TWO)
        ledger.settle_dispatch(first, REQUESTED)
        ledger.settle_dispatch(second, DispatchResult.IDENTITY_MISMATCH)
    written = [fact.payload_text for fact in ledger.history(asked.run_id)]
    for text in (*written, *caplog.messages):
        for secret in ("handle-1", "4711", "rft_", first.token, second.token):
            assert secret not in re.sub(r"[0-9a-f-]{36}", "", text)
    # Nor does any row but the execution's have the handle; no row at all has a token.
    for table, rows in contents_of(ledger).items():
        assert not [row for row in rows if "rft_" in str(row)]
        assert table == "executions" or not [row for row in rows if "handle-1" in str(row)]

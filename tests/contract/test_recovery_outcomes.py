"""
What became of a commit whose connection broke is looked up, also where there is no fact to look for (R4.3, R4.6).

The commit is real; what is injected is that nobody heard of it, or that it never came.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deliveries import asked_to_stop, brought_to
from recoveries import (
    LEASE_MS,
    RETRIED,
    TWO,
    applied,
    only,
    page,
    row_of_claim,
    seen,
    settled,
    states,
)
from runfacts import Ledger, OutcomeUnknown
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import ClaimState, ManualReason, Purpose, RecoveryFenced, RecoverySettled
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import AllSteps, CallAt, FailAt, listening
from stages import types, unchanged

UNHEARD = OutcomeUnknown("the connection broke while the commit was under way")
when = pytest.mark.parametrize("step", ["sql:before:commit", "sql:after:commit"])


@when
def test_a_page_whose_answer_was_lost_is_ones_own(ledger: Ledger, manual_clock: ManualClock, step: str) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    with listening(ledger, FailAt(step, UNHEARD)):
        claim = only(ledger)
    assert (row_of_claim(ledger, claim)["version"], claim.version) == (1, 1)
    assert settled(ledger, claim).state is ClaimState.RESOLVED


@when
@pytest.mark.parametrize(
    ("how", "state"),
    [({}, "resolved"), ({"retry_in_ms": 5_000}, "retry"), ({"manual": ManualReason.UNEXPECTED}, "manual")],
    ids=["resolved", "retry", "manual"],
)
def test_a_settle_whose_answer_was_lost_is_settled_once(
    ledger: Ledger, manual_clock: ManualClock, how: dict[str, object], state: str, step: str
) -> None:
    attempt = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    with listening(ledger, FailAt(step, UNHEARD)):
        answer = ledger.settle_recovery(claim, **how)  # type: ignore[arg-type]  # one of three ways
    assert isinstance(answer, RecoverySettled)
    assert (answer.state, answer.version) == (ClaimState(state), 2)
    row = row_of_claim(ledger, claim)
    assert (row["state"], row["version"], row["next_claim_at_ms"]) == (state, 2, answer.next_claim_at_ms)
    assert types(ledger, attempt.run_id).count("run.recovery_manual") == (state == "manual")
    with unchanged(ledger):
        assert ledger.settle_recovery(claim) == RecoveryFenced(claim.key)


@when
def test_what_was_given_back_unheard_is_counted(ledger: Ledger, manual_clock: ManualClock, step: str) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    with listening(ledger, FailAt(step, UNHEARD)):
        assert ledger.give_back((claim,)) == 1
    assert states(ledger) == ["available"]


def lost(ledger: Ledger, clock: ManualClock) -> tuple[str, Callable[[], object]]:
    """Prepare a loss."""
    brought_to(ledger, "running")
    clock.advance(LEASE_MS)
    claim = only(ledger)
    snapshot = seen(ledger, claim)
    return claim.run_id, lambda: ledger.apply_lost(claim, snapshot, Evidence.NOT_RUNNING, "batch")


def stopped(ledger: Ledger, clock: ManualClock) -> tuple[str, Callable[[], object]]:
    """Prepare a confirmed stop."""
    asked_to_stop(ledger)
    clock.advance(LEASE_MS)
    claim = only(ledger, Purpose.STOP)
    snapshot = seen(ledger, claim)
    return claim.run_id, lambda: ledger.apply_stopped(claim, snapshot, Evidence.NOT_RUNNING, "batch")


def retried(ledger: Ledger, clock: ManualClock) -> tuple[str, Callable[[], object]]:
    """Prepare the decision on a lost Run."""
    brought_to(ledger, "running", policy=RETRIED)
    clock.advance(LEASE_MS)
    first = only(ledger)
    applied(ledger.apply_lost(first, seen(ledger, first), Evidence.NOT_RUNNING, "batch"))
    settled(ledger, first)
    claim = only(ledger, Purpose.RETRY)
    snapshot = seen(ledger, claim)
    return claim.run_id, lambda: ledger.apply_retry(claim, snapshot)


@when
@pytest.mark.parametrize("prepare", [lost, stopped, retried])
def test_a_mutation_whose_answer_was_lost_is_recorded_once(
    ledger: Ledger,
    manual_clock: ManualClock,
    prepare: Callable[[Ledger, ManualClock], tuple[str, Callable[[], object]]],
    step: str,
) -> None:
    run_id, act = prepare(ledger, manual_clock)
    before = types(ledger, run_id)
    with listening(ledger, FailAt(step, UNHEARD)):
        answer = applied(act())
    recorded = types(ledger, run_id)[len(before) :]
    assert (
        recorded
        == {
            "lost": ["attempt.lost", "run.lost"],
            "stopped": ["run.stop_confirmed", "attempt.cancelled", "run.cancelled"],
            "retried": ["run.retry_wait"],
        }[prepare.__name__]
    )
    assert answer.version == len(before) + len(recorded)
    assert ledger.verify().clean


def test_what_was_recorded_unheard_is_answered_so_although_the_term_is_over_by_then(
    ledger: Ledger, ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    _, act = lost(ledger, manual_clock)
    other = ledger_factory()

    def meanwhile() -> None:
        manual_clock.advance(LEASE_MS)
        # What is lost is found to be no candidate.
        assert page(other, owner=TWO) == ()
        assert other.sweep_recoveries().swept == 1

    # Another process has its own turn to write.
    with listening(ledger, AllSteps(CallAt("sql:after:commit", meanwhile), FailAt("sql:after:commit", UNHEARD))):
        applied(act())

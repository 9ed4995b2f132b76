"""Facts that a projection cannot apply, and facts that it does not know (R3.7, R14.1)."""

from __future__ import annotations

from typing import Any

import pytest

from later_release import append
from runfacts import Actor, Ledger, Page, ProjectionName, Retried, SetAsideFact
from runfacts.domain.facts import Fact
from runfacts.domain.projecting import Projected
from runfacts.projections.folding import Counts
from runfacts.projections.statistics import StatisticsProjection
from runfacts.testing.clock import EPOCH_MS
from stages import ANA, created, finished, queued, unchanged
from views import rebuilt_rows_of, rows_of

STATISTICS = ProjectionName.STATISTICS


class Fault:
    """A defect of the projection that strikes at facts of one type of one Run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Strike nothing yet."""
        self.run_id = ""
        self.type = ""
        apply = StatisticsProjection.apply

        def faulty(view: StatisticsProjection, state: Any, fact: Fact, counts: Counts) -> object:  # noqa: ANN401 - any
            counts["created"] = 100
            if (fact.run_id, fact.type) == (self.run_id, self.type):
                raise ZeroDivisionError("secret")
            counts.clear()
            return apply(view, state, fact, counts)

        monkeypatch.setattr(StatisticsProjection, "apply", faulty)

    def strike(self, run_id: str, type_: str) -> None:
        """Strike here."""
        self.run_id, self.type = run_id, type_

    def mended(self) -> None:
        """Strike no more."""
        self.run_id = ""


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    """A defect that can be switched on."""
    return Fault(monkeypatch)


def test_a_fact_that_cannot_be_applied_is_set_aside_with_all_later_ones_of_its_run(
    ledger: Ledger, fault: Fault
) -> None:
    poisoned = finished(ledger).run_id
    fault.strike(poisoned, "attempt.claimed")
    finished(ledger)
    assert ledger.project() == {STATISTICS: Projected(18, 6, 0), ProjectionName.STOP_PROOF: Projected(18)}
    # Created twice, succeeded once: the other Run goes on, and the fault has added nothing.
    (line,) = ledger.statistics().items
    assert (line.created, line.attempts, line.succeeded) == (2, 1, 1)
    history = {fact.sequence: fact.position for fact in ledger.history(poisoned)}
    expected = [(4, "ZeroDivisionError")] + [(sequence, "behind an earlier one") for sequence in range(5, 10)]
    assert ledger.set_aside(STATISTICS) == Page(
        tuple(
            SetAsideFact(STATISTICS, history[sequence] or 0, poisoned, sequence, reason, 1, EPOCH_MS)
            for sequence, reason in expected
        ),
        None,
    )
    first = ledger.set_aside("statistics", limit=4)
    assert [item.sequence for item in first.items] == [4, 5, 6, 7]
    assert [item.sequence for item in ledger.set_aside("statistics", limit=4, after=first.next).items] == [8, 9]
    assert [(health.set_aside, health.facts) for health in ledger.projections()] == [(6, 18), (0, 18)]
    with unchanged(ledger):
        ledger.project()


def test_what_comes_later_of_such_a_run_waits_behind_it(ledger: Ledger, fault: Fault) -> None:
    run_id = created(ledger)
    fault.strike(run_id, "run.created")
    ledger.project()
    ledger.queue(run_id, actor=ANA)
    assert ledger.project()[STATISTICS] == Projected(1, 1, 0)
    assert [(item.sequence, item.reason) for item in ledger.set_aside(STATISTICS).items] == [
        (1, "ZeroDivisionError"),
        (2, "behind an earlier one"),
    ]
    assert ledger.statistics().items == ()


def test_trying_again_applies_what_can_be_applied_and_equals_a_rebuild(ledger: Ledger, fault: Fault) -> None:
    poisoned = finished(ledger).run_id
    fault.strike(poisoned, "run.running")
    finished(ledger)
    ledger.project()
    # Not mended: it is tried, and stays.
    assert ledger.retry_set_aside(STATISTICS) == Retried(STATISTICS, 0, 3)
    assert [item.tries for item in ledger.set_aside(STATISTICS).items] == [2, 2, 2]
    fault.mended()
    found = ledger.verify()
    assert {item.field for item in found.differences} >= {"statistics sequence"}
    assert {item.run_id for item in found.differences} == {poisoned, ""}
    assert ledger.retry_set_aside(STATISTICS) == Retried(STATISTICS, 3, 0)
    assert ledger.retry_set_aside(STATISTICS) == Retried(STATISTICS, 0, 0)
    assert ledger.set_aside(STATISTICS).items == ()
    assert ledger.verify().clean
    live = rows_of(ledger)
    assert rebuilt_rows_of(ledger) == live
    (line,) = ledger.statistics().items
    assert (line.created, line.attempts, line.succeeded) == (2, 2, 2)


def test_trying_again_stops_at_the_next_fact_that_cannot_be_applied(ledger: Ledger, fault: Fault) -> None:
    poisoned = finished(ledger).run_id
    fault.strike(poisoned, "attempt.claimed")
    ledger.project()
    fault.strike(poisoned, "run.succeeded")
    assert ledger.retry_set_aside(STATISTICS) == Retried(STATISTICS, 5, 1)
    assert [(item.sequence, item.reason, item.tries) for item in ledger.set_aside(STATISTICS).items] == [
        (9, "ZeroDivisionError", 2)
    ]


def test_a_payload_that_does_not_fit_its_own_type_is_set_aside(ledger: Ledger) -> None:
    run_id = created(ledger)
    append(ledger, run_id, "run.queued", '{"surprise":1}')
    other = created(ledger)
    ledger.project()
    assert [(item.run_id, item.sequence, item.reason) for item in ledger.set_aside(STATISTICS).items] == [
        (run_id, 2, "malformed payload")
    ]
    assert [item.created for item in ledger.statistics().items] == [2]
    ledger.queue(other, actor=ANA)
    assert ledger.project()[STATISTICS] == Projected(1)


def test_unknown_types_and_versions_are_counted_and_leave_their_run_in_order(ledger: Ledger) -> None:
    run_id = queued(ledger)
    append(ledger, run_id, "run.teleported", '{"to":"mars"}')
    append(ledger, run_id, "run.queued", "{}", version=9)
    ledger.project()
    finished(ledger)
    assert ledger.project()[STATISTICS] == Projected(9)
    assert [(health.unknown, health.set_aside) for health in ledger.projections()] == [(2, 0), (2, 0)]
    assert ledger.verify().unknown_types == {"run.teleported": 1, "run.queued": 1}
    assert ledger.verify().clean
    live = rows_of(ledger)
    assert rebuilt_rows_of(ledger) == live
    assert [health.unknown for health in ledger.projections()] == [2, 2]
    assert [fact.type for fact in ledger.history(run_id)] == [
        "run.created",
        "run.queued",
        "run.teleported",
        "run.queued",
    ]


def test_an_unknown_fact_after_a_request_leaves_the_report_in_order(ledger: Ledger) -> None:
    run_id = queued(ledger)
    ledger.request_cancellation(run_id, actor=Actor.user("ana"))
    append(ledger, run_id, "run.teleported", "{}")
    (item,) = ledger.stop_proofs().items
    assert item.evidence == "no_attempt"
    assert [health.set_aside for health in ledger.projections()] == [0, 0]

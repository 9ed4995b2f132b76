"""
What is due, page by page: nothing else takes a place in a page or costs anything.

R7.6, R8.2, R9.1, R9.2; case C31 for dispatches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import text

from deliveries import (
    LEASE_MS,
    ONE,
    SCOPE,
    TWO,
    Asked,
    asked_to_stop,
    cloned,
    due_runs,
    held_by,
    settled_with,
    stored,
)
from runfacts import InvalidValue, Ledger
from runfacts.domain.cancellation.controllers import Controllers, StopResult, StopTarget, TimeLeft
from runfacts.domain.cancellation.dispatcher import CycleReport, Dispatcher
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import Cursor
from runfacts.infrastructure.stores.dispatch_queue import SELECT_DUE
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import RecordedSteps, listening
from stages import ANA, claim_of, one_writer, queued, unchanged

OURS = (("batch", SCOPE),)
DAY = 86_400_000


@dataclass
class Accepting:
    """A controller whose signals are all accepted."""

    executor_type: str = "batch"
    scopes: frozenset[str] = frozenset({SCOPE})
    worst_case_ms: int = 100
    stopped: list[str] = field(default_factory=list)

    def stop(self, target: StopTarget, time_left: TimeLeft) -> StopResult:
        """See ``ExecutionController``."""
        assert time_left.allows(0)
        self.stopped.append(target.run_id)
        return StopResult(DispatchResult.TERMINATION_REQUESTED)


def dispatcher(ledger: Ledger, controller: Accepting, owner: str = ONE) -> Dispatcher:
    """A dispatcher with the default page and pages; what fails is counted."""
    return Dispatcher(
        ledger,
        Controllers([controller]),
        owner=owner,
        lease_ms=LEASE_MS,
        page=32,
        pages=4,
        monotonic=lambda: 0.0,
        on_error=lambda _run_id, _error: None,
    )


def test_the_oldest_due_come_first(ledger: Ledger, manual_clock: ManualClock) -> None:
    made = []
    for _ in range(3):
        made.append(asked_to_stop(ledger).run_id)
        manual_clock.advance(1)
    page, cutoff_ms = ledger.due_dispatches(OURS, limit=32)
    assert [item.run_id for item in page.items] == made
    assert [item.due_at_ms for item in page.items] == [EPOCH_MS, EPOCH_MS + 1, EPOCH_MS + 2]
    assert [item.requested_at_ms for item in page.items] == [EPOCH_MS, EPOCH_MS + 1, EPOCH_MS + 2]
    assert (page.next, cutoff_ms) == (None, EPOCH_MS + 3)


def test_ids_decide_among_those_that_were_due_together(ledger: Ledger) -> None:
    made = [asked_to_stop(ledger).run_id for _ in range(5)]
    assert due_runs(ledger) == sorted(made)


def test_pages_hold_everything_once(ledger: Ledger, manual_clock: ManualClock) -> None:
    made = []
    for number in range(7):
        made.append(asked_to_stop(ledger).run_id)
        if number % 3 == 0:
            manual_clock.advance(1)
    seen: list[str] = []
    after: Cursor | None = None
    sizes = []
    while True:
        page, _ = ledger.due_dispatches(OURS, after=after, limit=3)
        seen += [item.run_id for item in page.items]
        sizes.append(len(page.items))
        if page.next is None:
            break
        assert page.next == Cursor(page.items[-1].due_at_ms, page.items[-1].run_id)
        assert after is None or (page.next.due_at_ms, page.next.run_id) > (after.due_at_ms, after.run_id)
        after = page.next
    assert (sorted(seen), sizes) == (sorted(made), [3, 3, 1])


def test_a_full_page_without_another_behind_it_is_the_last(ledger: Ledger) -> None:
    for _ in range(3):
        asked_to_stop(ledger)
    page, _ = ledger.due_dispatches(OURS, limit=3)
    assert (len(page.items), page.next) == (3, None)


def test_a_round_covers_what_was_due_when_it_began(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    _, cutoff_ms = ledger.due_dispatches(OURS, limit=32)
    manual_clock.advance(1)
    later = asked_to_stop(ledger)
    page, again = ledger.due_dispatches(OURS, cutoff_ms=cutoff_ms, limit=32)
    assert ([item.run_id for item in page.items], again) == ([asked.run_id], cutoff_ms)
    assert due_runs(ledger) == [asked.run_id, later.run_id]


def test_only_what_the_worker_serves_is_given_as_pairs(ledger: Ledger) -> None:
    here = asked_to_stop(ledger).run_id
    there = queued(ledger)
    claim = claim_of(ledger, there, executor_type="other", scope="there")
    ledger.request_cancellation(there, actor=ANA)
    assert claim.run_id == there

    def due(*served: tuple[str, str]) -> list[str]:
        page, _ = ledger.due_dispatches(served, limit=32)
        return [item.run_id for item in page.items]

    assert due(("batch", SCOPE)) == [here]
    assert due(("other", "there")) == [there]
    assert due(("batch", "there"), ("other", SCOPE), ("batch", "")) == []
    assert due() == []
    assert sorted(due(("batch", SCOPE), ("other", "there"))) == sorted([here, there])
    page, _ = ledger.due_dispatches((("batch", SCOPE), ("other", "there")), limit=1)
    assert (len(page.items), page.next is None) == (1, False)


def test_what_is_held_done_waiting_or_ended_is_not_due(ledger: Ledger, manual_clock: ManualClock) -> None:
    held_by(ledger, asked_to_stop(ledger))
    settled_with(ledger, asked_to_stop(ledger), DispatchResult.TERMINATION_REQUESTED)
    settled_with(ledger, asked_to_stop(ledger), DispatchResult.IDENTITY_MISMATCH)
    waiting = asked_to_stop(ledger)
    settled_with(ledger, waiting, DispatchResult.DISPATCH_ERROR)
    ended = asked_to_stop(ledger, "claimed")
    ledger.start(ended.claim, actor=ANA)
    assert due_runs(ledger) == []
    manual_clock.advance(1_000)
    assert due_runs(ledger) == [waiting.run_id]


def test_a_row_of_an_ended_run_is_never_given_whatever_it_says(ledger: Ledger) -> None:
    ended = asked_to_stop(ledger, "claimed")
    ledger.start(ended.claim, actor=ANA)
    with ledger.database.engine.begin() as connection:
        connection.execute(text("UPDATE cancellation_dispatches SET due_at_ms = 5"))
    assert due_runs(ledger) == []


def test_looking_writes_nothing_and_is_one_query(ledger: Ledger) -> None:
    asked_to_stop(ledger)
    recorded = RecordedSteps()
    with unchanged(ledger), listening(ledger, recorded):
        ledger.due_dispatches(OURS, limit=32)
    queries = [name for name in recorded.names if name.startswith("sql:before:")]
    # PostgreSQL is asked for its time first (R5.1).
    clock = [] if one_writer(ledger) else ["sql:before:now"]
    assert queries == [*clock, "sql:before:select_due_dispatches"]


def test_a_page_has_at_most_its_size_and_a_round_takes_all(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    cloned(ledger, asked, 40)
    controller = Accepting()
    page, _ = ledger.due_dispatches(OURS, limit=32)
    assert len(page.items) == 32
    report = dispatcher(ledger, controller).cycle()
    assert (report.seen, report.round_ended) == (41, True)
    # The clones have no facts and cannot be claimed; they keep nobody from the real one.
    assert report.counts == {"error": 40, "termination_requested": 1}
    assert controller.stopped == [asked.run_id]


@pytest.fixture(params=[300, pytest.param(5_000, marks=pytest.mark.long)])
def crowd(request: pytest.FixtureRequest, ledger: Ledger, manual_clock: ManualClock) -> tuple[Asked, int]:
    """As many rows as asked for that nobody can claim now, all older than one that can be claimed."""
    count: int = request.param
    third = count // 3
    template = asked_to_stop(ledger)
    digest = "d" * 64
    boot = {"lease_boot_id": manual_clock.boot_id(), "lease_expires_boot_ms": manual_clock.boot_ms() + LEASE_MS}
    lease = {"lease_owner": TWO, "lease_token_digest": digest, "lease_expires_at_ms": EPOCH_MS + LEASE_MS}
    tried: dict[str, Any] = {"version": 2, "dispatch_count": 1, "tries_since_rearm": 1}
    wait_ms = EPOCH_MS + 50_000
    waiting = {
        "status": "retry_wait",
        "next_attempt_at_ms": wait_ms,
        "due_at_ms": wait_ms,
        "last_result": "dispatch_error",
    }
    blocked = {"status": "blocked", "due_at_ms": None, "last_result": "identity_mismatch"}
    done = {"status": "dispatched", "due_at_ms": None, "last_result": "already_exited"}
    leased = {"status": "leased", "due_at_ms": EPOCH_MS + LEASE_MS} | lease | (boot if one_writer(ledger) else {})
    cloned(ledger, template, third, **(tried | waiting))
    cloned(ledger, template, third // 2, **(tried | blocked))
    cloned(ledger, template, third // 2, **(tried | done))
    cloned(ledger, template, third // 2, **(tried | leased))
    cloned(ledger, template, third // 2, scope="there")
    ledger.start(template.claim, actor=ANA)
    held = held_by(ledger, template)
    ledger.settle_dispatch(held, DispatchResult.TERMINATION_REQUESTED)
    manual_clock.advance(5)
    return asked_to_stop(ledger), count


def test_c31_rows_that_cannot_be_claimed_do_not_delay_one_that_can(ledger: Ledger, crowd: tuple[Asked, int]) -> None:
    asked, _ = crowd
    controller = Accepting()
    report: CycleReport = dispatcher(ledger, controller).cycle()
    assert controller.stopped == [asked.run_id]
    assert report.as_dict() == {"seen": 1, "claimed": 1, "termination_requested": 1}
    assert report.round_ended
    assert stored(ledger, asked, "status") == ("dispatched",)


def test_c31_a_page_is_a_range_of_an_index_however_many_rows_there_are(
    ledger: Ledger, manual_clock: ManualClock, crowd: tuple[Asked, int]
) -> None:
    assert crowd[1] >= 300
    parameters: dict[str, Any] = {
        "executor_type": "batch",
        "scope": SCOPE,
        "after_ms": -1,
        "after_id": "",
        "limit": 33,
        "cutoff_ms": manual_clock.database_ms(),
        "now_ms": manual_clock.database_ms(),
        "beyond_ms": manual_clock.database_ms() + DAY,
    }
    if one_writer(ledger):
        parameters |= {"boot_id": manual_clock.boot_id(), "boot_ms": manual_clock.boot_ms()}
    else:
        parameters["longest_ms"] = manual_clock.database_ms() + 300_000
    ranges = _ranges(ledger, parameters)
    due = ["executor_type", "scope", "due_at_ms"]
    assert ranges == {
        ("ix_cancellation_dispatches_due", *due),
        ("ix_cancellation_dispatches_open", *due),
    }


def _ranges(ledger: Ledger, parameters: dict[str, Any]) -> set[tuple[str, ...]]:
    """Say which indexes of dispatches the query goes through and by which columns; no other access is allowed."""
    compiled = SELECT_DUE.compiled(ledger.database.dialect)
    bound = compiled.bind(parameters)
    columns = ("executor_type", "scope", "due_at_ms")
    # A later page begins in the index where the one before ended.
    with ledger.database.engine.connect() as connection:
        if one_writer(ledger):
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled.text}", bound).all()
            lines = [row[3] for row in plan]
            own = [line for line in lines if "cancellation_dispatches" in line]
            assert not [line for line in lines if line.startswith(("SCAN d", "SCAN r"))]
            assert any("(due_at_ms,run_id)>(?,?) AND due_at_ms<?" in line for line in own), own
            return {(line.split(" INDEX ")[1].split()[0], *(name for name in columns if name in line)) for line in own}
        connection.execute(text("ANALYZE"))
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        connection.execute(text("SET LOCAL enable_bitmapscan = off"))
        found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {compiled.text}", bound).scalar_one()
        plan_tree = found if isinstance(found, list) else json.loads(found)
        nodes = list(_nodes(plan_tree[0]["Plan"]))
        scans = [node for node in nodes if node.get("Relation Name") == "cancellation_dispatches"]
        assert len(scans) == 3
        assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan"}
        assert all("ROW(" in node["Index Cond"] for node in scans)
        return {(node["Index Name"], *(name for name in columns if name in node["Index Cond"])) for node in scans}


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def test_c31_the_second_worker_of_another_scope_finds_only_its_own(
    ledger_factory: ThrowAwayLedgers, ledger: Ledger, crowd: tuple[Asked, int]
) -> None:
    asked, count = crowd
    there = Accepting(scopes=frozenset({"there"}))
    report = dispatcher(ledger_factory(), there, TWO).cycle()
    # All of that scope, up to the cycle's size; the clones have no facts and cannot be claimed.
    foreign = min(count // 6, 128)
    assert report.as_dict() == {"seen": foreign, "claimed": 0, "error": foreign}
    assert there.stopped == []
    assert stored(ledger, asked, "status") == ("pending",)


@pytest.mark.parametrize("limit", [-1, 0, 65, 1 << 80, True, 1.0])
def test_a_page_has_at_least_one_place_and_64_at_most(ledger: Ledger, limit: int) -> None:
    with pytest.raises(InvalidValue, match=r"limit is not a whole number(, but of type| between 1 and 64$)"):
        ledger.due_dispatches(OURS, limit=limit)

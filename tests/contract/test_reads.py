"""Reads: board, audit trail, history and executions; pages are complete and repeat nothing (R1.4, R14.1)."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from runfacts import (
    Actor,
    AttemptNotFound,
    AttemptStatus,
    ExecutionView,
    InvalidCursor,
    InvalidValue,
    Ledger,
    MalformedId,
    Outcome,
    Page,
    RunNotFound,
    RunStatus,
    RunSummary,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, claim_of, claimed, created, finished, queued, running, started

NOWHERE = "01900000-0000-7000-8000-00000000dead"


def everything(read: Callable[..., Page[Any]], **options: Any) -> list[Any]:  # noqa: ANN401 - any option of a read
    """Follow the cursors to the last page."""
    found: list[Any] = []
    page = read(**options)
    while True:
        found += page.items
        if page.next is None:
            return found
        assert page.items
        page = read(**options, after=page.next)


def test_an_empty_ledger_has_empty_pages(ledger: Ledger) -> None:
    assert ledger.runs() == Page((), None)
    assert ledger.facts() == Page((), None)
    assert ledger.open_executions("batch", "") == Page((), None)


def test_the_board_says_what_a_board_needs(ledger: Ledger, manual_clock: ManualClock) -> None:
    manual_clock.advance(5)
    claim = running(ledger, project="sales", task="monthly")
    assert ledger.runs() == Page(
        (RunSummary(claim.run_id, "sales", "monthly", RunStatus.RUNNING, 7, EPOCH_MS + 5, None, None),), None
    )


def test_the_boards_pages_are_complete_newest_first(ledger: Ledger, manual_clock: ManualClock) -> None:
    made = []
    for number in range(7):
        made.append(created(ledger))
        # Some are of the same millisecond: then the id decides, which also rises.
        manual_clock.advance(number % 2)
    for limit in (1, 2, 3, 6, 7, 8, 500):
        assert [item.run_id for item in everything(ledger.runs, limit=limit)] == made[::-1], limit


def test_a_run_that_comes_while_somebody_turns_pages_disturbs_nobody(ledger: Ledger, manual_clock: ManualClock) -> None:
    made = [created(ledger) for _ in range(4)]
    first = ledger.runs(limit=2)
    manual_clock.advance(1)
    created(ledger)
    second = ledger.runs(limit=2, after=first.next)
    assert [item.run_id for item in (*first.items, *second.items)] == made[::-1]
    assert second.next is None


def test_the_board_filters_by_status_and_project(ledger: Ledger) -> None:
    runs = {
        ("a", "created"): created(ledger, project="a"),
        ("a", "queued"): queued(ledger, project="a"),
        ("b", "queued"): queued(ledger, project="b"),
        ("b", "succeeded"): finished(ledger, project="b").run_id,
    }

    def found(**filters: Any) -> set[str]:  # noqa: ANN401 - any filter of the board
        items = everything(ledger.runs, limit=1, **filters)
        assert len(items) == len({item.run_id for item in items})
        return {item.run_id for item in items}

    assert found() == set(runs.values())
    assert found(project="a") == {runs["a", "created"], runs["a", "queued"]}
    assert found(status=RunStatus.QUEUED) == {runs["a", "queued"], runs["b", "queued"]}
    assert found(status=["created", "succeeded"]) == {runs["a", "created"], runs["b", "succeeded"]}
    assert found(status="queued", project="b") == {runs["b", "queued"]}
    assert found(status="lost") == set()
    assert found(project="c") == set()
    assert found(project="a' OR '1'='1") == set()


def test_a_filter_or_limit_that_cannot_be_is_refused(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory(fact_page=2)
    for _ in range(3):
        created(ledger)
    with pytest.raises(InvalidValue, match="status"):
        ledger.runs(status="sleeping")  # type: ignore[arg-type]  # that it is none is the point
    for limit in (0, -1, 501):
        with pytest.raises(InvalidValue, match="limit"):
            ledger.runs(limit=limit)
        with pytest.raises(InvalidValue, match="limit"):
            ledger.facts(limit=limit)
    for read in (ledger.runs, ledger.facts):
        with pytest.raises(InvalidValue, match="project"):
            read(project="")
    for name in ("since_ms", "until_ms"):
        with pytest.raises(InvalidValue, match=name):
            ledger.facts(**{name: 1 << 70})  # type: ignore[arg-type]  # one of two names
    with pytest.raises(InvalidValue, match="executor_type"):
        ledger.open_executions("\x00", "")
    with pytest.raises(InvalidValue, match="scope"):
        ledger.open_executions("batch", "\x00")
    assert len(ledger.runs().items) == len(ledger.facts().items) == 2


def place(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode()


def test_a_cursor_that_is_none_of_ours_is_refused(ledger: Ledger) -> None:
    numbers = [f"-1:{NOWHERE}", f"{1 << 70}:{NOWHERE}"]
    for cursor in ["", "x", "\ud800", place("5"), place(f"x:{NOWHERE}"), place("5:no-id"), *map(place, numbers)]:
        with pytest.raises(InvalidCursor):
            ledger.runs(after=cursor)
    for cursor in ["", "x", "-1", "1.5", "\u0661", "9" * 20, "\ud800", " 1"]:
        with pytest.raises(InvalidCursor):
            ledger.facts(after=cursor)
    for cursor in ["", "x", "\x00"]:
        with pytest.raises(InvalidCursor):
            ledger.open_executions("batch", "", after=cursor)


def test_the_audit_trails_pages_are_complete_in_order(ledger: Ledger) -> None:
    one, two = created(ledger), created(ledger)
    ledger.queue(two, actor=ANA)
    finished(ledger)
    for limit in (1, 4, 11, 12, 500):
        found = everything(ledger.facts, limit=limit)
        assert [fact.position for fact in found] == list(range(1, 13)), limit
    assert [fact.run_id for fact in found[:3]] == [one, two, two]
    assert found[:1] == list(ledger.history(one))


def test_the_audit_trail_filters(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = running(ledger, project="sales")
    manual_clock.advance(10)
    ledger.finish(claim, Outcome.succeeded(), actor=Actor.executor("x-9"))
    manual_clock.advance(10)
    other = queued(ledger)

    def found(**filters: Any) -> list[int | None]:  # noqa: ANN401 - any filter of the audit trail
        return [fact.position for fact in everything(ledger.facts, limit=2, **filters)]

    assert found() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert found(run_id=claim.run_id) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert found(run_id=other) == [10, 11]
    assert found(attempt_id=claim.attempt_id) == [3, 4, 5, 6, 7, 8, 9]
    assert found(attempt_id=NOWHERE) == []
    assert found(actor_id="x-9") == [8, 9]
    assert found(actor_id="nobody") == []
    assert found(types=["run.queued", "attempt.running"]) == [2, 6, 11]
    assert found(types=["run.of_a_later_release"]) == []
    assert found(types="run.queued") == [2, 11]
    assert found(project="sales") == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert found(project="default", types=["run.queued"]) == [11]
    assert found(since_ms=EPOCH_MS + 10) == [8, 9, 10, 11]
    assert found(until_ms=EPOCH_MS + 10) == [1, 2, 3, 4, 5, 6, 7]
    assert found(since_ms=EPOCH_MS + 1, until_ms=EPOCH_MS + 20) == [8, 9]
    assert found(since_ms=EPOCH_MS + 20, until_ms=EPOCH_MS + 20) == []
    everything_at_once = {
        "run_id": claim.run_id,
        "attempt_id": claim.attempt_id,
        "actor_id": "x-9",
        "types": ["run.succeeded"],
        "project": "sales",
        "since_ms": EPOCH_MS,
        "until_ms": EPOCH_MS + 11,
    }
    assert found(**everything_at_once) == [9]
    with pytest.raises(RunNotFound):
        ledger.facts(run_id=NOWHERE)


def test_a_history_is_all_facts_of_its_run_by_sequence(ledger: Ledger) -> None:
    claim, other = started(ledger), started(ledger)
    ledger.running(claim, actor=WORKER)
    history = ledger.history(claim.run_id)
    assert [fact.sequence for fact in history] == [1, 2, 3, 4, 5, 6, 7]
    assert [fact.position for fact in history] == [1, 2, 3, 4, 5, 11, 12]
    assert {fact.run_id for fact in history} == {claim.run_id}
    assert len(ledger.history(other.run_id)) == 5
    assert ledger.history(claim.run_id.upper()) == history


def test_what_is_not_there_is_not_found(ledger: Ledger) -> None:
    reads: list[Callable[[], object]] = [
        lambda: ledger.run(NOWHERE),
        lambda: ledger.history(NOWHERE),
        lambda: ledger.verify(NOWHERE),
    ]
    for read in reads:
        with pytest.raises(RunNotFound):
            read()
    with pytest.raises(AttemptNotFound):
        ledger.execution(NOWHERE)


def test_what_is_no_id_is_malformed(ledger: Ledger) -> None:
    reads: list[Callable[[str], object]] = [
        ledger.run,
        ledger.history,
        ledger.verify,
        ledger.execution,
        lambda text: ledger.facts(run_id=text),
        lambda text: ledger.facts(attempt_id=text),
        lambda text: ledger.queue(text, actor=ANA),
    ]
    for text in ("", "7", "01900000-0000-7000-8000-00000000dea", "x" * 36, "' OR 1=1 --", "\x00"):
        for read in reads:
            with pytest.raises(MalformedId):
                read(text)


def test_an_execution_says_where_its_process_is(ledger: Ledger) -> None:
    claim = claim_of(ledger, queued(ledger), gated=True, scope="here", worker_id="w-1", lease_ms=5_000)
    ledger.start(claim, actor=WORKER, timeout_ms=9_000, log_path="/l", receipt_path="/r")
    ledger.running(claim, actor=WORKER, handle="h", pid=3)
    assert ledger.execution(claim.attempt_id) == ExecutionView(
        attempt_id=claim.attempt_id,
        run_id=claim.run_id,
        executor_type="batch",
        gated=True,
        scope="here",
        worker_id="w-1",
        handle="h",
        pid=3,
        lease_expires_at_ms=EPOCH_MS + 5_000,
        seen_at_ms=EPOCH_MS,
        callback_sequence=1,
        deadline_at_ms=EPOCH_MS + 9_000,
        log_path="/l",
        receipt_path="/r",
        attempt_status=AttemptStatus.RUNNING,
        cancellation_requested=False,
    )


def test_open_executions_are_the_active_ones_that_keep_a_receipt(ledger: Ledger) -> None:
    wanted = []
    for scope in ("here", "here", "there", "here"):
        claim = claim_of(ledger, queued(ledger), scope=scope)
        ledger.start(claim, actor=WORKER, receipt_path=f"/receipts/{claim.number}")
        if scope == "here":
            wanted.append(claim.attempt_id)
    ended = claim_of(ledger, queued(ledger), scope="here")
    ledger.start(ended, actor=WORKER, receipt_path="/receipts/x")
    ledger.finish(ended, Outcome.failed(exit_code=1), actor=WORKER)
    other = claim_of(ledger, queued(ledger), scope="here", executor_type="stream")
    ledger.start(other, actor=WORKER, receipt_path="/receipts/y")
    claim_of(ledger, queued(ledger), scope="here")
    claimed(ledger)
    for limit in (1, 2, 3, 100):
        found = everything(partial(ledger.open_executions, "batch", "here"), limit=limit)
        assert [item.attempt_id for item in found] == sorted(wanted), limit

"""
Projections: statistics and the stop-proof report, made of facts alone (R1.4, R14.1).

Times are of a clock that stands at the first moment of 2026 and is moved by hand.
"""

from __future__ import annotations

import threading
from dataclasses import asdict

import pytest

from deliveries import OPERATOR, asked_to_stop, brought_to, settled_with
from runfacts import (
    Actor,
    Grouping,
    InvalidValue,
    Ledger,
    Outcome,
    ProjectionName,
    RebuildOvertaken,
    RetryPolicy,
    RunStatus,
)
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.errors import CheckpointLost, DatabaseReadOnly
from runfacts.domain.projecting import Lag, Lengths, Projected, StatisticsLine, StopProof
from runfacts.infrastructure.stores import projector
from runfacts.infrastructure.supervision import Duty
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of
from runfacts.testing.steps import RecordedSteps, listening
from stages import ANA, WORKER, created, finished, queued, run_again, running, unchanged
from tampering import change, owner_of
from views import rebuilt_rows_of, rows_of

T = EPOCH_MS
DAY_MS = 86_400_000
NONE = Lengths(0, 0, 0)
AGAIN = RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=1_000)


def line(group: str, **values: object) -> StatisticsLine:
    """A line that says nothing but this."""
    empty = dict.fromkeys(
        (
            "created",
            "succeeded",
            "failed",
            "cancelled",
            "timed_out",
            "attempts",
            "retries",
            "lost",
            "cancel_requests",
        ),
        0,
    )
    lengths = dict.fromkeys(("durations", "executions", "cancellations", "recoveries"), NONE)
    return StatisticsLine(group, **{**empty, **lengths, **values})  # type: ignore[arg-type] # as they are given


@pytest.fixture
def lived(ledger: Ledger, manual_clock: ManualClock) -> Ledger:
    """A ledger with two days of Runs in two projects."""
    claim = running(ledger, project="shop", task="build")
    manual_clock.advance(2_000)
    ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    claim = running(ledger, project="shop", task="build")
    manual_clock.advance(500)
    ledger.request_cancellation(claim.run_id, actor=ANA)
    manual_clock.advance(4_000)
    ledger.finish(claim, Outcome.cancelled(), actor=WORKER)
    never_ran = queued(ledger, project="mail", task="send")
    ledger.request_cancellation(never_ran, actor=ANA)
    # It fails on the first day and, tried again, on the second.
    claim = running(ledger, project="mail", task="send", policy=AGAIN)
    manual_clock.advance(1_000)
    ledger.finish(claim, Outcome.failed(exit_code=2), actor=WORKER)
    manual_clock.advance(DAY_MS)
    ledger.queue(claim.run_id, actor=WORKER)
    claim = run_again(ledger, claim.run_id)
    manual_clock.advance(3_000)
    ledger.finish(claim, Outcome.failed(exit_code=2), actor=WORKER)
    return ledger


def test_statistics_by_day_count_each_fact_on_the_day_of_its_record(lived: Ledger) -> None:
    found = lived.statistics()
    assert found.lag == Lag(0, 0)
    assert found.items == (
        line(
            "2026-01-01",
            created=4,
            succeeded=1,
            cancelled=2,
            attempts=3,
            cancel_requests=2,
            durations=Lengths(3, 6_500, 4_500),
            executions=Lengths(3, 7_500, 4_500),
            cancellations=Lengths(1, 4_000, 4_000),
        ),
        line(
            "2026-01-02",
            failed=1,
            attempts=1,
            retries=1,
            durations=Lengths(1, DAY_MS + 4_000, DAY_MS + 4_000),
            executions=Lengths(1, 3_000, 3_000),
        ),
    )
    assert found.items[0].cancellations.mean_ms == 4_000
    assert found.items[1].cancellations.mean_ms is None


def test_statistics_by_project_and_by_task_are_the_same_facts_in_other_groups(lived: Ledger) -> None:
    shop = line(
        "shop",
        created=2,
        succeeded=1,
        cancelled=1,
        attempts=2,
        cancel_requests=1,
        durations=Lengths(2, 6_500, 4_500),
        executions=Lengths(2, 6_500, 4_500),
        cancellations=Lengths(1, 4_000, 4_000),
    )
    mail = line(
        "mail",
        created=2,
        cancelled=1,
        failed=1,
        attempts=2,
        retries=1,
        cancel_requests=1,
        durations=Lengths(2, DAY_MS + 4_000, DAY_MS + 4_000),
        executions=Lengths(2, 4_000, 3_000),
    )
    assert lived.statistics(by=Grouping.PROJECT).items == (mail, shop)
    by_task = lived.statistics(by="task").items
    assert [asdict(item) | {"group": ""} for item in by_task] == [asdict(item) | {"group": ""} for item in (shop, mail)]
    assert [item.group for item in by_task] == ["build", "send"]


def test_since_takes_whole_days(lived: Ledger) -> None:
    assert [item.group for item in lived.statistics(since_ms=T + DAY_MS - 1).items] == ["2026-01-01", "2026-01-02"]
    assert [item.group for item in lived.statistics(since_ms=T + DAY_MS).items] == ["2026-01-02"]
    assert lived.statistics(since_ms=T + 2 * DAY_MS).items == ()


def test_what_cannot_be_asked_is_refused(ledger: Ledger) -> None:
    for ask in (
        lambda: ledger.statistics(by="month"),
        lambda: ledger.statistics(since_ms=1 << 60),
        lambda: ledger.rebuild("audit"),
        lambda: ledger.stop_proofs(limit=0),
    ):
        with pytest.raises(InvalidValue):
            ask()


def test_the_stop_proof_report_says_what_became_of_each_request(ledger: Ledger, manual_clock: ManualClock) -> None:
    nothing = queued(ledger)
    ledger.request_cancellation(nothing, actor=ANA)
    manual_clock.advance(1_000)
    delivered = asked_to_stop(ledger, project="shop")
    manual_clock.advance(1_000)
    settled_with(ledger, delivered, DispatchResult.TERMINATION_REQUESTED)
    manual_clock.advance(1_000)
    ledger.finish(delivered.claim, Outcome.cancelled(), actor=WORKER)
    blocked = asked_to_stop(ledger)
    settled_with(ledger, blocked, DispatchResult.IDENTITY_MISMATCH)
    found = ledger.stop_proofs()
    assert found.lag == Lag(0, 0)
    assert found.items == (
        StopProof(
            run_id=nothing,
            project="default",
            attempt_id=None,
            kind=found.items[0].kind,
            requested_by=ANA,
            requested_at_ms=T,
            delivery=None,
            result=None,
            escalation=None,
            delivered_at_ms=None,
            status=RunStatus.CANCELLED,
            ended_at_ms=T,
            evidence="no_attempt",  # type: ignore[arg-type] # as it is stored
        ),
        StopProof(
            run_id=delivered.run_id,
            project="shop",
            attempt_id=delivered.attempt_id,
            kind=found.items[1].kind,
            requested_by=found.items[1].requested_by,
            requested_at_ms=T + 1_000,
            delivery="dispatched",  # type: ignore[arg-type] # the same
            result="termination_requested",
            escalation="none",  # type: ignore[arg-type] # the same
            delivered_at_ms=T + 2_000,
            status=RunStatus.CANCELLED,
            ended_at_ms=T + 3_000,
            evidence="reported",  # type: ignore[arg-type] # the same
        ),
        StopProof(
            run_id=blocked.run_id,
            project="default",
            attempt_id=blocked.attempt_id,
            kind=found.items[2].kind,
            requested_by=found.items[2].requested_by,
            requested_at_ms=T + 3_000,
            delivery="blocked",  # type: ignore[arg-type] # the same
            result="identity_mismatch",
            escalation=None,
            delivered_at_ms=None,
            status=None,
            ended_at_ms=None,
            evidence=None,
        ),
    )
    # Delivered is not stopped, and neither is blocked (R6.2).
    assert [item.run_id for item in ledger.stop_proofs(unfinished=True).items] == [blocked.run_id]
    first = ledger.stop_proofs(limit=2)
    assert [item.run_id for item in first.items] == [nothing, delivered.run_id]
    assert [item.run_id for item in ledger.stop_proofs(limit=2, after=first.next).items] == [blocked.run_id]
    assert ledger.stop_proofs(limit=2, after=first.next).next is None


def test_an_operators_word_is_no_report(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, DispatchResult.TERMINATION_REQUESTED)
    version = ledger.run(asked.run_id).version
    ledger.confirm_stopped(asked.run_id, actor=OPERATOR, because="I looked", version=version)
    (item,) = ledger.stop_proofs().items
    assert (item.evidence, item.status) == ("attested", RunStatus.CANCELLED)


def test_a_second_look_takes_nothing_in_twice(lived: Ledger) -> None:
    lived.project()
    with unchanged(lived):
        assert set(lived.project().values()) == {Projected()}
        lived.statistics()
        lived.stop_proofs()


def test_lag_is_said_in_facts_and_time_and_reading_catches_up(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger, idle = ledger_factory(), ledger_factory(catch_up_ms=0)
    finished(ledger)
    manual_clock.advance(7_000)
    assert idle.statistics().lag == Lag(9, 7_000)
    assert idle.statistics().items == ()
    assert [health.lag for health in ledger.projections()] == [Lag(9, 7_000)] * 2
    assert ledger.statistics().lag == Lag(0, 0)
    assert [item.succeeded for item in idle.statistics().items] == [1]
    assert [(health.position > 0, health.facts) for health in ledger.projections()] == [(True, 9), (False, 0)]


def test_whoever_may_not_write_reads_what_there_is(lived: Ledger) -> None:
    lived.statistics(by="project")
    created(lived)
    lived.database.refusal = DatabaseReadOnly("it is")
    found = lived.statistics(by="project")
    assert [item.group for item in found.items] == ["mail", "shop"]
    assert found.lag.facts == 1
    lived.database.refusal = None


def test_of_two_that_project_at_once_each_fact_counts_once(
    ledger_factory: ThrowAwayLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projector, "LIVE_PAGE", 3)
    ledger = ledger_factory()
    for _ in range(6):
        finished(ledger)
    users = [ledger_factory() for _ in range(4)]
    threads = [threading.Thread(target=user.project) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.project()
    assert [health.facts for health in ledger.projections()] == [54, 54]
    assert [(item.created, item.succeeded) for item in ledger.statistics().items] == [(6, 6)]


def test_a_rebuild_gives_the_same_rows_and_leaves_no_generation_behind(lived: Ledger) -> None:
    lived.project()
    before = rows_of(lived)
    assert before["statistics"]
    assert rebuilt_rows_of(lived) == before
    rows = contents_of(lived)["projections"]
    assert [(row[0], row[1], row[2]) for row in rows] == [("statistics", 2, "live"), ("stop_proof", 2, "live")]


def test_a_rebuild_while_writers_append_equals_the_live_view_row_by_row(
    ledger_factory: ThrowAwayLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projector, "REBUILD_PAGE", 100)
    # SQLite has one writer at a time, and takes no turns among processes.
    ledger, follower, *writers = (ledger_factory(busy_timeout_ms=60_000) for _ in range(6))
    failed: list[BaseException] = []
    ended = threading.Event()

    def write(writer: Ledger) -> None:
        try:
            for _ in range(8):
                finished(writer)
                claim = running(writer)
                writer.request_cancellation(claim.run_id, actor=ANA)
                writer.finish(claim, Outcome.cancelled(), actor=WORKER)
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    def follow() -> None:
        try:
            while not ended.wait(0.02):
                follower.project()
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    writing = [threading.Thread(target=write, args=(writer,)) for writer in writers]
    following = threading.Thread(target=follow)
    for thread in (*writing, following):
        thread.start()
    rebuilt = 0
    while any(thread.is_alive() for thread in writing):
        rebuilt += sum(ledger.rebuild(name).facts > 0 for name in ProjectionName)
    ended.set()
    for thread in (*writing, following):
        thread.join()
    assert failed == []
    assert rebuilt
    ledger.project()
    live = rows_of(ledger)
    assert len(live["statistics_runs"]) == len(contents_of(ledger)["runs"])
    assert rebuilt_rows_of(ledger) == live
    assert ledger.verify().clean


def test_of_two_rebuilds_the_later_one_goes_on(lived: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projector, "REBUILD_PAGE", 5)
    lived.project()
    before = rows_of(lived)
    begun: list[int] = []

    def overtake(_: int) -> None:
        if not begun:
            begun.append(1)
            lived.rebuild("statistics")

    with pytest.raises(RebuildOvertaken):
        lived.rebuild("statistics", progress=overtake)
    lived.project()
    assert rows_of(lived) == before


def test_a_live_view_that_is_ahead_is_not_replaced_before_the_other_has_caught_up(lived: Ledger) -> None:
    seen: list[int] = []

    def go_on(facts: int) -> None:
        seen.append(facts)
        if len(seen) == 1:
            finished(lived, project="late")
            lived.project()

    assert lived.rebuild("statistics", progress=go_on).facts == seen[0] + 9
    assert [item.group for item in lived.statistics(by="project").items] == ["late", "mail", "shop"]


def test_a_database_that_was_set_back_stops_projecting_loudly_until_it_is_rebuilt(
    lived: Ledger, database_url: str
) -> None:
    lived.project()
    with owner_of(database_url) as owner:
        (key,) = owner.rows("SELECT max(position) FROM facts")
        change(owner, "facts", {"position": key[0]}, "hash", "f" * 64)
    created(lived)
    with pytest.raises(CheckpointLost):
        lived.project()
    for name in ProjectionName:
        lived.rebuild(name)
    assert set(lived.project().values()) == {Projected()}


def test_the_worker_projects_last_and_says_what(lived: Ledger) -> None:
    worker = lived.supervise(local=False)
    report = worker.cycle()
    assert list(report.counters)[-1] == "projections"
    facts = len(contents_of(lived)["facts"])
    assert report["projections"] == {"seen": 2 * facts, "claimed": 0, "projected": 2 * facts}
    recorded = RecordedSteps()
    with listening(lived, recorded), unchanged(lived):
        only = lived.supervise(local=False, duties=[Duty.PROJECT]).cycle()
    assert only.counters == {"projections": {"seen": 0, "claimed": 0}}
    assert [name for name in recorded.names if name.startswith("sql:before:select")] == [
        "sql:before:select_projection_progress"
    ]


def test_verify_names_what_a_rebuild_would_change(lived: Ledger, database_url: str) -> None:
    lived.project()
    assert lived.verify().clean
    run_id = contents_of(lived)["stop_proofs"][0][1]
    with owner_of(database_url) as owner:
        change(owner, "stop_proofs", {"run_id": run_id}, "evidence", "attested")
        change(owner, "statistics", {"day_at_ms": T, "project": "shop"}, "succeeded", 7)
    found = lived.verify().differences
    assert [(item.run_id, item.kind, item.field, item.recorded, item.recomputed) for item in found] == [
        (run_id, "projection", "stop_proof evidence", "attested", found[0].recomputed),
        ("", "projection", "statistics 2026-01-01 shop build succeeded", "7", "1"),
    ]
    assert [item.field for item in lived.verify(run_id).differences] == ["stop_proof evidence"]
    for name in ProjectionName:
        lived.rebuild(name)
    assert lived.verify().clean


def test_verify_finds_rows_that_no_fact_has_made(lived: Ledger, database_url: str) -> None:
    lived.project()
    with owner_of(database_url) as owner:
        owner.run("DELETE FROM statistics_runs WHERE task = ?", ["build"])
    fields = {item.field for item in lived.verify().differences}
    assert fields == {"statistics sequence", "statistics runs"}


def test_only_what_is_read_is_brought_up_to_date(ledger: Ledger) -> None:
    brought_to(ledger, "running")
    ledger.stop_proofs()
    assert {health.projection.value: health.facts for health in ledger.projections()} == {
        "statistics": 0,
        "stop_proof": 7,
    }


def test_actors_are_kept_in_the_report(ledger: Ledger) -> None:
    run_id = queued(ledger)
    ledger.request_cancellation(run_id, actor=Actor.operator("olga"))
    (item,) = ledger.stop_proofs().items
    assert item.requested_by == Actor.operator("olga")

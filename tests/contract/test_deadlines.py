"""Deadlines: fixed at the start barrier, kept over restarts, and asked for once (R5.1, R6.1, R10.4)."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

import later_release
from deliveries import SCOPE, brought_to, due_runs
from runfacts import Actor, ActorType, ExecutionOwner, IntentKind, Ledger, Outcome, RetryPolicy, RunStatus
from runfacts.domain.payloads import RunCancelRequested
from runfacts.infrastructure.stores.deadlines import SELECT_PASSED
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, claim_of, created, one_writer, queued, types, unchanged
from tampering import owner_of

SUPERVISOR = Actor(ActorType.SUPERVISOR, "worker-1")


def ask_due(ledger: Ledger, limit: int | None = None) -> int:
    return ledger.request_due_deadlines(actor=SUPERVISOR, limit=limit)


def running_for(ledger: Ledger, timeout_ms: int) -> str:
    claim = claim_of(ledger, queued(ledger), scope=SCOPE)
    ledger.start(claim, actor=WORKER, timeout_ms=timeout_ms)
    ledger.running(claim, actor=WORKER, handle="h", pid=7)
    return claim.run_id


def test_a_deadline_passes_at_its_very_millisecond(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = running_for(ledger, 5_000)
    manual_clock.advance(4_999)
    with unchanged(ledger):
        assert ask_due(ledger) == 0
    manual_clock.advance(1)
    assert ask_due(ledger) == 1
    fact = ledger.history(run_id)[-1]
    assert (fact.type, fact.payload, fact.actor) == (
        "run.cancel_requested",
        RunCancelRequested(kind=IntentKind.TIMEOUT),
        SUPERVISOR,
    )
    # Only asked: the delivery is for a worker of its scope, and the end for the evidence (R6.2).
    assert ledger.run(run_id).status is RunStatus.RUNNING
    assert due_runs(ledger) == [run_id]
    with unchanged(ledger):
        assert ask_due(ledger) == 0


def test_a_deadline_outlasts_the_process_that_fixed_it(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    first = ledger_factory()
    run_id = running_for(first, 5_000)
    first.close()
    manual_clock.reboot()
    manual_clock.advance(5_000)
    second = ledger_factory()
    assert ask_due(second) == 1
    assert types(second, run_id)[-1] == "run.cancel_requested"


@pytest.mark.parametrize(
    ("stage", "status"),
    [
        ("created", RunStatus.CANCELLED),  # a created Run cannot time out (R2.5)
        ("queued", RunStatus.TIMED_OUT),
        ("claimed", RunStatus.DISPATCHING),
        ("starting", RunStatus.DISPATCHING),
        ("running", RunStatus.RUNNING),
        ("waiting_approval", RunStatus.WAITING_APPROVAL),
    ],
)
def test_a_runs_own_deadline_counts_in_every_status(
    ledger: Ledger, manual_clock: ManualClock, stage: str, status: RunStatus
) -> None:
    options = {"deadline_at_ms": EPOCH_MS + 100}
    if stage == "created":
        run_id = created(ledger, **options)
    elif stage == "queued":
        run_id = queued(ledger, **options)
    else:
        run_id = brought_to(ledger, stage, **options).run_id
    manual_clock.advance(99)
    assert ask_due(ledger) == 0
    manual_clock.advance(1)
    # Once, though both the Run's and its Attempt's deadline have passed.
    assert ask_due(ledger) == 1
    assert ledger.run(run_id).status is status
    assert types(ledger, run_id).count("run.cancel_requested") == 1
    assert ask_due(ledger) == 0
    assert ledger.verify().clean


def test_a_run_without_an_attempt_keeps_its_own_deadline_between_two_tries(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    policy = RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=60_000)
    claim = brought_to(ledger, "running", deadline_at_ms=EPOCH_MS + 100, policy=policy)
    ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER)
    manual_clock.advance(100)
    assert ask_due(ledger) == 1
    assert ledger.run(claim.run_id).status is RunStatus.TIMED_OUT


def test_what_has_ended_or_was_asked_before_is_not_asked(ledger: Ledger, manual_clock: ManualClock) -> None:
    ended = claim_of(ledger, queued(ledger))
    ledger.start(ended, actor=WORKER, timeout_ms=10)
    ledger.running(ended, actor=WORKER)
    ledger.finish(ended, Outcome.succeeded(), actor=WORKER)
    asked = running_for(ledger, 10)
    ledger.request_cancellation(asked, actor=ANA)
    running_for(ledger, 1_000)
    brought_to(ledger, "running")
    manual_clock.advance(10)
    with unchanged(ledger):
        assert ask_due(ledger) == 0


def test_an_attempt_that_failed_in_time_does_not_pass_its_deadline_later(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = claim_of(ledger, queued(ledger, policy=RetryPolicy(max_attempts=2, retry_on_failure=True)))
    ledger.start(claim, actor=WORKER, timeout_ms=10)
    ledger.running(claim, actor=WORKER)
    ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER)
    manual_clock.advance(10)
    with unchanged(ledger):
        assert ask_due(ledger) == 0


def test_a_page_is_bounded_and_the_soonest_come_first(ledger: Ledger, manual_clock: ManualClock) -> None:
    made = [running_for(ledger, length) for length in (30, 10, 20)]
    manual_clock.advance(30)
    assert ask_due(ledger, 1) == 1
    assert [types(ledger, run_id)[-1] == "run.cancel_requested" for run_id in made] == [False, True, False]
    assert ask_due(ledger, 2) == 2
    assert ask_due(ledger, 2) == 0


def test_the_soonest_come_first_whether_they_are_the_runs_or_the_attempts(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    late = running_for(ledger, 30)
    soon = queued(ledger, deadline_at_ms=EPOCH_MS + 10)
    manual_clock.advance(30)
    assert ask_due(ledger, 1) == 1
    assert types(ledger, soon)[-2] == "run.cancel_requested"
    assert ask_due(ledger, 1) == 1
    assert types(ledger, late)[-1] == "run.cancel_requested"


def test_runs_that_may_not_be_asked_keep_nobody_else_running(
    ledger: Ledger, manual_clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    created(ledger, execution_owner=ExecutionOwner.LEGACY, deadline_at_ms=EPOCH_MS + 1)
    later = queued(ledger, deadline_at_ms=EPOCH_MS + 2)
    later_release.append(ledger, later, "run.teleported", "{}")
    run_id = running_for(ledger, 3)
    manual_clock.advance(3)
    with caplog.at_level(logging.WARNING, "runfacts"):
        assert ask_due(ledger) == 1
    assert types(ledger, run_id)[-1] == "run.cancel_requested"
    assert [message for message in caplog.messages if later in message]


def test_a_damaged_run_keeps_nobody_else_running(
    ledger: Ledger, manual_clock: ManualClock, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = queued(ledger, deadline_at_ms=EPOCH_MS + 1)
    run_id = running_for(ledger, 2)
    with owner_of(database_url) as owner:
        owner.run("UPDATE facts SET aggregate_version = 9 WHERE run_id = ? AND sequence = 2", [damaged])
    manual_clock.advance(2)
    # Another process than the one that knows the Run from before.
    with Ledger.open(database_url, clock=manual_clock) as other, caplog.at_level(logging.WARNING, "runfacts"):
        assert ask_due(other) == 1
    assert types(ledger, run_id)[-1] == "run.cancel_requested"
    assert [message for message in caplog.messages if damaged in message]


def test_pages_full_of_runs_that_may_not_be_asked_hide_nobody(ledger: Ledger, manual_clock: ManualClock) -> None:
    refused = [queued(ledger, deadline_at_ms=EPOCH_MS + number) for number in (1, 2, 2, 3)]
    for run_id in refused:
        later_release.append(ledger, run_id, "run.teleported", "{}")
    run_id = running_for(ledger, 4)
    manual_clock.advance(4)
    asked = [ask_due(ledger, 2) for _ in range(6)]
    assert sum(asked) == 1
    assert types(ledger, run_id)[-1] == "run.cancel_requested"
    # What comes to be overdue before them is not forgotten either.
    soon = queued(ledger, deadline_at_ms=EPOCH_MS)
    assert sum(ask_due(ledger, 2) for _ in range(6)) == 1
    assert ledger.run(soon).status is RunStatus.TIMED_OUT


def test_looking_for_them_is_a_range_of_two_partial_indexes(ledger: Ledger) -> None:
    compiled = SELECT_PASSED.compiled(ledger.database.dialect)
    bound = compiled.bind({"now_ms": EPOCH_MS, "from_ms": 0, "limit": 100})
    with ledger.database.engine.connect() as connection:
        if one_writer(ledger):
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled.text}", bound)]
            ranges = [line for line in plan if line.endswith("(deadline_at_ms>? AND deadline_at_ms<?)")]
        else:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
            plan = [row[0] for row in connection.exec_driver_sql(f"EXPLAIN {compiled.text}", bound)]
            ranges = [line for line, below in pairwise(plan) if "Index Cond: ((deadline_at_ms >= " in below]
    assert len(ranges) == 2
    assert "ix_executions_deadline" in ranges[0]
    assert "ix_runs_deadline" in ranges[1]


def test_the_time_that_decides_is_the_databases(ledger: Ledger, manual_clock: ManualClock) -> None:
    running_for(ledger, 5_000)
    # What is off is this machine's clock on PostgreSQL, and a server's that SQLite has not (R5.1, R5.2).
    (manual_clock.jump_wall if ledger.database.dialect == "postgresql" else manual_clock.jump_database)(10_000)
    with unchanged(ledger):
        assert ask_due(ledger) == 0

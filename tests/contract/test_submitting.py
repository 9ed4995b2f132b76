"""Runs with a command for workers: made at once, queued, read, and gone with their end (R12.1, R2.11, R3.6)."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from runfacts import (
    Actor,
    AlreadyCreated,
    Claimed,
    Created,
    ExecutionOwner,
    IdempotencyConflict,
    InvalidCursor,
    InvalidValue,
    Ledger,
    NotClaimable,
    Outcome,
    Refusal,
    RetryPolicy,
    RunStatus,
)
from runfacts.domain.stored_commands import StoredCommand
from runfacts.infrastructure.stores.run_commands import SELECT_QUEUED
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of
from stages import ANA, EXECUTOR, WORKER, claim_of, created, one_writer, queued, types, unchanged

ARGV = ("sh", "-c", "exit 3")
SECRET = "hunter2-in-argv"


def submitted(ledger: Ledger, *argv: str, **options: Any) -> str:  # noqa: ANN401 - any option of submit
    """Submit a command; the id of its Run."""
    answer = ledger.submit(argv or ARGV, **{"actor": ANA, "cwd": "/srv", **options})
    assert isinstance(answer, Created)
    return answer.run.run_id


def test_what_is_submitted_is_created_and_queued_at_once(ledger: Ledger) -> None:
    answer = ledger.submit(ARGV, actor=ANA, cwd="/srv", timeout_ms=5_000)
    assert isinstance(answer, Created)
    run = answer.run
    assert (run.status, run.version, run.task, run.project) == (RunStatus.QUEUED, 2, "command", "default")
    assert types(ledger, run.run_id) == ["run.created", "run.queued"]
    assert ledger.command_of(run.run_id) == StoredCommand(ARGV, "/srv")
    assert ledger.run(run.run_id) == run
    assert contents_of(ledger)["commands"] == [(run.run_id, '["sh","-c","exit 3"]', "/srv")]
    assert ledger.verify().clean


def test_the_directory_is_the_submitters_own_if_none_is_named(
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ledger.command_of(submitted(ledger, cwd=None))
    assert command is not None
    assert command.cwd == str(tmp_path)


def test_a_run_may_be_created_with_a_command_and_queued_later(ledger: Ledger) -> None:
    run_id = created(ledger, command=StoredCommand(ARGV, "/srv"))
    assert types(ledger, run_id) == ["run.created"]
    assert ledger.queued_runs().items == ()
    ledger.queue(run_id, actor=ANA)
    assert ledger.queued_runs().items == (run_id,)


def test_the_queue_is_read_oldest_first_in_pages(ledger: Ledger) -> None:
    run_ids = [submitted(ledger) for _ in range(5)]
    first = ledger.queued_runs(limit=2)
    second = ledger.queued_runs(limit=2, after=first.next)
    third = ledger.queued_runs(limit=2, after=second.next)
    assert [*first.items, *second.items, *third.items] == sorted(run_ids)
    assert (first.next, third.next) == (first.items[-1], None)
    with pytest.raises(InvalidCursor):
        ledger.queued_runs(after="nonsense")
    with pytest.raises(InvalidValue):
        ledger.queued_runs(limit=0)


def test_runs_of_other_executors_are_not_in_it(ledger: Ledger) -> None:
    queued(ledger)
    run_id = submitted(ledger)
    assert ledger.queued_runs().items == (run_id,)


def test_what_is_taken_leaves_the_queue_and_keeps_its_command_until_the_end(ledger: Ledger) -> None:
    run_id = submitted(ledger)
    claim = claim_of(ledger, run_id)
    assert ledger.queued_runs().items == ()
    ledger.start(claim, actor=WORKER)
    ledger.running(claim, actor=WORKER)
    assert ledger.command_of(run_id) == StoredCommand(ARGV, "/srv")
    ledger.finish(claim, Outcome.failed(exit_code=3), actor=WORKER)
    assert ledger.command_of(run_id) is None
    assert contents_of(ledger)["commands"] == []
    assert ledger.verify().clean


def test_a_cancelled_run_loses_its_command(ledger: Ledger) -> None:
    run_id = submitted(ledger)
    ledger.request_cancellation(run_id, actor=ANA)
    assert (ledger.run(run_id).status, ledger.command_of(run_id)) == (RunStatus.CANCELLED, None)


def test_a_run_that_is_tried_again_keeps_its_command(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = submitted(ledger, policy=RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=1_000))
    fail(ledger, run_id)
    assert ledger.run(run_id).status is RunStatus.RETRY_WAIT
    assert ledger.command_of(run_id) == StoredCommand(ARGV, "/srv")
    manual_clock.advance(1_000)
    ledger.queue(run_id, actor=ANA)
    assert ledger.queued_runs().items == (run_id,)
    fail(ledger, run_id)
    assert (ledger.run(run_id).status, ledger.command_of(run_id)) == (RunStatus.FAILED, None)


def fail(ledger: Ledger, run_id: str, *, queue: bool = False) -> None:
    """Let the Run's next Attempt fail."""
    claim = claim_of(ledger, run_id, queue=queue)
    ledger.start(claim, actor=WORKER)
    ledger.running(claim, actor=WORKER)
    ledger.finish(claim, Outcome.failed(exit_code=3), actor=WORKER)


def test_a_key_submits_once(ledger_factory: ThrowAwayLedgers) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    run_id = submitted(ledger, idempotency_key="k")
    with unchanged(ledger):
        answer = other.submit(ARGV, actor=ANA, cwd="/srv", idempotency_key="k")
    assert answer == AlreadyCreated(ledger.run(run_id), differs=None)
    with unchanged(ledger), pytest.raises(IdempotencyConflict):
        other.submit(ARGV, actor=ANA, cwd="/srv", task="another", idempotency_key="k")
    assert ledger.command_of(run_id) == StoredCommand(ARGV, "/srv")


@pytest.mark.parametrize(
    ("argv", "cwd", "differs"), [(["other"], "/srv", "command"), (["other"], "/", "command"), (ARGV, "/", "directory")]
)
def test_another_command_of_a_key_is_told_and_changes_nothing(
    ledger: Ledger, argv: list[str], cwd: str, differs: str
) -> None:
    """Only another task or policy is a conflict (R2.11); but nobody shall think that his command will run."""
    run_id = submitted(ledger, idempotency_key="k")
    with unchanged(ledger):
        answer = ledger.submit(argv, actor=ANA, cwd=cwd, idempotency_key="k")
    assert answer == AlreadyCreated(ledger.run(run_id), differs=differs)  # type: ignore[arg-type] # as parametrized
    assert ledger.command_of(run_id) == StoredCommand(ARGV, "/srv")


def test_the_command_of_a_run_that_has_ended_cannot_be_compared(ledger: Ledger) -> None:
    run_id = submitted(ledger, idempotency_key="k")
    ledger.request_cancellation(run_id, actor=ANA)
    answer = ledger.submit(["other"], actor=ANA, cwd="/", idempotency_key="k")
    assert answer == AlreadyCreated(ledger.run(run_id), differs=None)


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(ledger: Ledger) -> None:
    with unchanged(ledger):
        for argv, cwd in (([], "/"), (["a\0"], "/"), (["a"], "here"), (["a" * 131_072], "/")):
            with pytest.raises(InvalidValue):
                ledger.submit(argv, actor=ANA, cwd=cwd)
        with pytest.raises(InvalidValue):
            ledger.create(actor=ANA, task="t", execution_owner=ExecutionOwner.LEGACY, command=StoredCommand(ARGV, "/"))


def test_the_longest_command_and_every_byte_can_be_kept(ledger: Ledger) -> None:
    every = "".join(chr(number) for number in range(1, 256)) + "\udcff"
    run_id = submitted(ledger, "x" * 131_068)
    assert ledger.command_of(run_id) == StoredCommand(("x" * 131_068,), "/srv")
    run_id = submitted(ledger, "cat", every, cwd="/a\nb")
    assert ledger.command_of(run_id) == StoredCommand(("cat", every), "/a\nb")


def test_nothing_of_a_command_is_in_facts_logs_or_what_is_printed(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer = ledger.submit(["login", SECRET], actor=ANA, cwd=f"/{SECRET}")
    run_id = answer.run.run_id
    fail(ledger, run_id)
    said = [answer, ledger.run(run_id), ledger.history(run_id), ledger.runs(), ledger.verify(), caplog.text]
    said += [fact.payload_text for fact in ledger.history(run_id)]
    assert [thing for thing in said if SECRET in str(thing) or SECRET in repr(thing)] == []
    assert SECRET not in str(contents_of(ledger))


def test_in_a_callers_transaction_both_are_there_or_neither(ledger: Ledger) -> None:
    with ledger.database.engine.connect() as connection:
        with connection.begin() as transaction:
            ledger.submit(ARGV, actor=ANA, cwd="/srv", connection=connection)
            transaction.rollback()
        assert contents_of(ledger)["commands"] == []
        with connection.begin():
            kept = ledger.submit(ARGV, actor=ANA, cwd="/srv", connection=connection)
    assert ledger.queued_runs().items == (kept.run.run_id,)


def test_a_claim_may_queue_what_was_only_created(ledger: Ledger) -> None:
    run_id = created(ledger)
    with unchanged(ledger):
        assert isinstance(ledger.claim(run_id, actor=WORKER, executor_type=EXECUTOR), NotClaimable)
    assert isinstance(ledger.claim(run_id, actor=WORKER, executor_type=EXECUTOR, queue=True), Claimed)
    assert types(ledger, run_id) == ["run.created", "run.queued", "run.dispatching", "attempt.claimed"]
    facts = ledger.history(run_id)
    assert [fact.actor for fact in facts[1:]] == [WORKER] * 3
    assert ledger.verify().clean


def test_a_claim_queues_a_retry_only_when_it_is_due(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = created(ledger, policy=RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=1_000))
    fail(ledger, run_id, queue=True)
    assert ledger.run(run_id).retry_due_at_ms == EPOCH_MS + 1_000
    manual_clock.advance(999)
    with unchanged(ledger):
        answer = ledger.claim(run_id, actor=WORKER, executor_type=EXECUTOR, queue=True)
    assert answer == NotClaimable(run_id, RunStatus.RETRY_WAIT, Refusal.NOT_DUE)
    manual_clock.advance(1)
    assert isinstance(ledger.claim(run_id, actor=WORKER, executor_type=EXECUTOR, queue=True), Claimed)
    assert types(ledger, run_id)[-3:] == ["run.queued", "run.dispatching", "attempt.claimed"]
    assert ledger.verify().clean


def test_a_claim_queues_no_retry_while_something_of_the_last_attempt_may_live(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    run_id = created(ledger, policy=RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=0))
    claim = claim_of(ledger, run_id, queue=True)
    ledger.start(claim, actor=WORKER)
    ledger.running(claim, actor=WORKER)
    ledger.finish(claim, Outcome.failed(exit_code=3), actor=WORKER, group_left=True)
    manual_clock.advance(60_000)
    with unchanged(ledger):
        answer = ledger.claim(run_id, actor=WORKER, executor_type=EXECUTOR, queue=True)
    assert isinstance(answer, NotClaimable)
    assert (answer.status, answer.reason) == (RunStatus.RETRY_WAIT, "group_lives")


@pytest.mark.parametrize("stage", ["running", "ended", "asked"])
def test_a_claim_queues_nothing_else(ledger: Ledger, stage: str) -> None:
    run_id = created(ledger)
    claim = claim_of(ledger, run_id, queue=True)
    reason = "not_queued"
    if stage == "asked":
        ledger.request_cancellation(run_id, actor=ANA)
        reason = "cancellation_requested"
    elif stage == "ended":
        ledger.start(claim, actor=WORKER)
        ledger.running(claim, actor=WORKER)
        ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    with unchanged(ledger):
        answer = ledger.claim(run_id, actor=Actor.worker("w-2"), executor_type=EXECUTOR, queue=True)
    assert isinstance(answer, NotClaimable)
    assert answer.reason == reason


def test_a_page_of_the_queue_is_read_in_the_order_of_commands_and_no_further(ledger: Ledger) -> None:
    # Runs without a command, however many wait, are not looked at (R12.1).
    for _ in range(3):
        queued(ledger)
    submitted(ledger)
    compiled = SELECT_QUEUED.compiled(ledger.database.dialect)
    bound = compiled.bind({"after": "", "limit": 2})
    with ledger.database.engine.connect() as connection:
        if one_writer(ledger):
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled.text}", bound)]
            assert [line.split(" USING ")[0].strip() for line in plan] == [
                "SEARCH commands",
                "CORRELATED SCALAR SUBQUERY 1",
                "SEARCH runs",
            ]
        else:
            connection.execute(text("SET LOCAL enable_seqscan = off"))
            connection.execute(text("SET LOCAL enable_bitmapscan = off"))
            lines = connection.exec_driver_sql(f"EXPLAIN {compiled.text}", bound).scalars().all()
            assert re.findall(r"(Index(?: Only)? Scan) using (\w+) on (\w+)", "\n".join(lines)) == [
                ("Index Only Scan", "pk_commands", "commands"),
                ("Index Scan", "pk_runs", "runs"),
            ]

"""
Two at once: real connections, the second one seen waiting before the first goes on (R2.7, R2.8, R2.11, R4.3, R4.4).

The first runs in a transaction of its caller and has written; the second is then sent from a thread of its own. On
PostgreSQL it waits for the first one's rows, which the server's own lists show, and goes on when the first commits
or rolls back. On SQLite, which has one writer, the second hears that the database is busy while the first has it,
and runs when the first is done.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from racing import crowd, race, somebody_waits
from runfacts import (
    AlreadyCreated,
    AttemptStatus,
    Claimed,
    Created,
    DatabaseBusy,
    Finished,
    IdempotencyConflict,
    LateCallback,
    Ledger,
    NotClaimable,
    Outcome,
    Recorded,
    Refusal,
    RenewalRefused,
    Renewed,
    Repeated,
    RunStatus,
    RunVersionConflict,
    Started,
    StartRefused,
)
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import PauseAt, listening
from stages import ANA, WORKER, claimed, created, one_writer, queued, running, types
from waiting import until


def test_of_two_claims_of_one_run_one_is_answered_with_an_attempt(ledger_factory: ThrowAwayLedgers) -> None:
    run_id = queued(ledger_factory())
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.claim(run_id, actor=ANA, executor_type="batch", connection=caller),
        lambda ledger: ledger.claim(run_id, actor=WORKER, executor_type="batch"),
    )
    assert isinstance(one, Claimed)
    assert two == NotClaimable(run_id, RunStatus.DISPATCHING, Refusal.NOT_QUEUED)
    assert types(ledger_factory(), run_id) == ["run.created", "run.queued", "run.dispatching", "attempt.claimed"]


def test_a_claim_that_is_rolled_back_leaves_the_run_to_the_other(ledger_factory: ThrowAwayLedgers) -> None:
    run_id = queued(ledger_factory())
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.claim(run_id, actor=ANA, executor_type="batch", connection=caller),
        lambda ledger: ledger.claim(run_id, actor=WORKER, executor_type="batch"),
        commit=False,
    )
    assert isinstance(one, Claimed)
    assert isinstance(two, Claimed)
    assert [attempt.attempt_id for attempt in ledger_factory().run(run_id).attempts] == [two.claim.attempt_id]


def test_of_two_claims_of_one_named_version_one_hears_of_the_conflict(ledger_factory: ThrowAwayLedgers) -> None:
    run_id = queued(ledger_factory())
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.claim(
            run_id, actor=ANA, executor_type="batch", expected_version=2, connection=caller
        ),
        lambda ledger: ledger.claim(run_id, actor=WORKER, executor_type="batch", expected_version=2),
    )
    assert isinstance(one, Claimed)
    assert isinstance(two, RunVersionConflict)
    assert (two.expected, two.actual) == (2, 4)


def test_the_start_barrier_is_passed_by_one(ledger_factory: ThrowAwayLedgers) -> None:
    claim = claimed(ledger_factory())
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.start(claim, actor=WORKER, connection=caller),
        lambda ledger: ledger.start(claim, actor=WORKER),
    )
    assert one == Started(None, 5)
    assert two == StartRefused(RunStatus.DISPATCHING, AttemptStatus.STARTING, Refusal.REPEATED)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.succeeded(exit_code=0), Repeated),
        (Outcome.failed(exit_code=1), LateCallback),
    ],
)
def test_of_two_ends_the_first_stands(
    ledger_factory: ThrowAwayLedgers, outcome: Outcome, expected: type[object]
) -> None:
    claim = running(ledger_factory())
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER, connection=caller),
        lambda ledger: ledger.finish(claim, outcome, actor=WORKER),
    )
    assert one == Finished(RunStatus.SUCCEEDED, AttemptStatus.SUCCEEDED, 9, None)
    assert isinstance(two, expected)
    view = ledger_factory().run(claim.run_id)
    assert (view.status, view.attempts[0].exit_code) == (RunStatus.SUCCEEDED, 0)


def test_the_same_report_sent_twice_is_recorded_once(ledger_factory: ThrowAwayLedgers) -> None:
    claim = running(ledger_factory())
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.wait_for_approval(claim, actor=WORKER, sequence=2, connection=caller),
        lambda ledger: ledger.wait_for_approval(claim, actor=WORKER, sequence=2),
    )
    assert isinstance(one, Recorded)
    assert two == Repeated(claim.run_id, RunStatus.WAITING_APPROVAL, 8)


def test_a_renewal_that_waits_for_the_end_is_refused(ledger_factory: ThrowAwayLedgers) -> None:
    claim = running(ledger_factory())
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.finish(claim, Outcome.succeeded(), actor=WORKER, connection=caller),
        lambda ledger: ledger.renew(claim),
    )
    assert isinstance(one, Finished)
    assert two == RenewalRefused(RunStatus.SUCCEEDED, AttemptStatus.SUCCEEDED)


def test_an_end_that_waits_for_a_renewal_stands(ledger_factory: ThrowAwayLedgers) -> None:
    one, two = ledger_factory(), ledger_factory(busy_timeout_ms=0)
    claim = running(one)
    pause = PauseAt("sql:before:commit")
    with listening(one, pause), ThreadPoolExecutor(2) as pool:
        renewal = pool.submit(one.renew, claim)
        pause.wait()
        if one_writer(one):
            with pytest.raises(DatabaseBusy):
                two.finish(claim, Outcome.succeeded(), actor=WORKER)
            pause.resume()
            assert isinstance(renewal.result(timeout=30), Renewed)
            end = pool.submit(two.finish, claim, Outcome.succeeded(), actor=WORKER)
        else:
            end = pool.submit(two.finish, claim, Outcome.succeeded(), actor=WORKER)
            until(lambda: somebody_waits(ledger_factory.url))
            pause.resume()
            assert isinstance(renewal.result(timeout=30), Renewed)
        assert isinstance(end.result(timeout=30), Finished)
    assert two.verify().clean
    assert isinstance(two.renew(claim), RenewalRefused)


@pytest.mark.parametrize("commit", [True, False])
def test_one_idempotency_key_makes_one_run(ledger_factory: ThrowAwayLedgers, *, commit: bool) -> None:
    ledger = ledger_factory()
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.create(actor=ANA, task="report", idempotency_key="k", connection=caller),
        lambda ledger: ledger.create(actor=WORKER, task="report", idempotency_key="k"),
        commit=commit,
    )
    assert isinstance(one, Created)
    (summary,) = ledger.runs().items
    if commit:
        assert two == AlreadyCreated(ledger.run(one.run.run_id))
    else:
        assert isinstance(two, Created)
        assert summary.run_id == two.run.run_id


def test_one_idempotency_key_with_two_tasks_is_a_conflict(ledger_factory: ThrowAwayLedgers) -> None:
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.create(actor=ANA, task="report", idempotency_key="k", connection=caller),
        lambda ledger: ledger.create(actor=WORKER, task="other", idempotency_key="k"),
    )
    assert isinstance(one, Created)
    assert isinstance(two, IdempotencyConflict)


def test_a_run_is_queued_once(ledger_factory: ThrowAwayLedgers) -> None:
    run_id = created(ledger_factory())
    one, two = race(
        ledger_factory,
        lambda ledger, caller: ledger.queue(run_id, actor=ANA, dedupe_key="q", connection=caller),
        lambda ledger: ledger.queue(run_id, actor=WORKER, dedupe_key="q"),
    )
    assert isinstance(one, Recorded)
    assert two == Repeated(run_id, RunStatus.QUEUED, 2)


def test_writers_of_different_runs_do_not_wait_for_each_other(ledger_factory: ThrowAwayLedgers) -> None:
    one, two = ledger_factory(), ledger_factory(busy_timeout_ms=0)
    first, second = queued(one), queued(one)
    with one.database.engine.connect() as caller:
        one.claim(first, actor=WORKER, executor_type="batch", connection=caller)
        if one_writer(one):
            with pytest.raises(DatabaseBusy):
                two.claim(second, actor=WORKER, executor_type="batch")
        else:
            assert isinstance(two.claim(second, actor=WORKER, executor_type="batch"), Claimed)
        caller.commit()
    assert two.verify().clean


def crowd_on_one_run(many: list[Ledger]) -> None:
    """Let all claim, start and end one Run at once."""
    run_id = queued(many[0])
    answers = crowd(many, lambda each: each.claim(run_id, actor=WORKER, executor_type="batch"))
    (claim,) = [answer.claim for answer in answers if isinstance(answer, Claimed)]
    starts = crowd(many, lambda each: each.start(claim, actor=WORKER))
    assert [isinstance(answer, Started) for answer in starts].count(True) == 1
    many[0].running(claim, actor=WORKER)
    ends = crowd(many, lambda each: each.finish(claim, Outcome.succeeded(), actor=WORKER))
    assert sorted(type(answer).__name__ for answer in ends) == ["Finished"] + ["Repeated"] * (len(many) - 1)
    assert len(many[0].history(run_id)) == 9


def crowded(ledgers: ThrowAwayLedgers, *, shared: bool, rounds: int) -> None:
    """Do that with six threads, on one ledger or each on its own, with one Run after the other."""
    many = [ledgers()] * 6 if shared else [ledgers() for _ in range(6)]
    for _ in range(rounds):
        crowd_on_one_run(many)
    assert many[0].verify().clean


@pytest.mark.parametrize("shared", [True, False])
def test_a_crowd_does_each_thing_once(ledger_factory: ThrowAwayLedgers, *, shared: bool) -> None:
    crowded(ledger_factory, shared=shared, rounds=1)


@pytest.mark.long
@pytest.mark.parametrize("shared", [True, False])
def test_a_crowd_does_each_thing_once_again_and_again(ledger_factory: ThrowAwayLedgers, *, shared: bool) -> None:
    crowded(ledger_factory, shared=shared, rounds=20)

"""The testing kit on real databases: ledgers to throw away, given facts, steps that are listened to (R14.3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from runfacts import Claimed, Finished, InvalidSetting, LeaseState, Ledger, Outcome, Recorded, Renewed, RetryPolicy
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptFailed,
    AttemptRunning,
    AttemptStarting,
    AttemptSucceeded,
    Payload,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunQueued,
    RunRetryWait,
    RunRunning,
    RunSucceeded,
)
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of, sqlite_ledgers
from runfacts.testing.steps import RecordedSteps, listening
from stages import ANA, WORKER, created, one_writer

CREATED = RunCreated(task="report", policy=RetryPolicy(max_attempts=2, retry_on_failure=True))
CLAIMED = (CREATED, RunQueued(), RunDispatching(number=1), AttemptClaimed(number=1, executor_type="batch"))
RUNNING = (*CLAIMED, AttemptStarting(), AttemptRunning(), RunRunning())
RETRIED = (*RUNNING, AttemptFailed(exit_code=1), RunRetryWait(due_at_ms=EPOCH_MS), RunQueued())
SECOND = (RunDispatching(number=2), AttemptClaimed(number=2, executor_type="batch", gated=True), AttemptStarting())


def test_every_ledger_of_a_factory_is_on_the_same_database(ledger_factory: ThrowAwayLedgers) -> None:
    one, two = ledger_factory(), ledger_factory(fact_page=7)
    assert one.database is not two.database
    assert two.run(created(one)).version == 1
    assert (one.settings.fact_page, two.settings.fact_page) == (100, 7)


def test_the_environment_does_not_change_what_a_test_sees(
    ledger_factory: ThrowAwayLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNFACTS_FACT_PAGE", "3")
    assert ledger_factory().settings.fact_page == 100
    with pytest.raises(InvalidSetting):
        ledger_factory(fact_page=0)


def test_the_database_follows_the_clock(ledger: Ledger, manual_clock: ManualClock) -> None:
    manual_clock.advance(1_234)
    assert ledger.history(created(ledger))[0].recorded_at_ms == EPOCH_MS + 1_234


def test_closing_the_factory_closes_its_ledgers(database_url: str) -> None:
    clock = ManualClock()
    with ThrowAwayLedgers(database_url, clock) as ledgers:
        ledger = ledgers()
        created(ledger)
        assert ledger.database.engine.pool.checkedin() == 1  # type: ignore[attr-defined]  # of the queue that it is
    assert ledger.database.engine.pool.checkedin() == 0  # type: ignore[attr-defined]  # of the queue that it is
    ledgers.close()
    clock.advance(1)


def test_a_ledger_on_a_temporary_file_needs_no_pytest() -> None:
    with sqlite_ledgers() as ledgers:
        ledger = ledgers()
        path = Path(ledgers.url.removeprefix("sqlite:///"))
        assert ledger.run(created(ledger)).created_at_ms == EPOCH_MS
        assert path.exists()
    assert not path.parent.exists()


@pytest.mark.parametrize(
    "past",
    [
        (CREATED,),
        CLAIMED,
        RUNNING,
        (*RUNNING, AttemptSucceeded(exit_code=0), RunSucceeded(exit_code=0)),
        RETRIED,
        (*RETRIED, *SECOND),
        (*RETRIED, *SECOND, AttemptRunning(), RunRunning()),
        (*RETRIED, *SECOND, AttemptFailed(), RunFailed()),
    ],
)
def test_given_facts_are_a_run_that_verifies(ledger: Ledger, past: tuple[Payload, ...]) -> None:
    run = given_in(ledger, *past, project="sales")
    assert [fact.payload for fact in ledger.history(run.run_id)] == list(past)
    view = ledger.run(run.run_id)
    assert (view.project, view.version) == ("sales", len(past))
    assert [attempt.attempt_id for attempt in view.attempts] == [claim.attempt_id for claim in run.claims]
    assert [attempt.number for attempt in view.attempts] == [claim.number for claim in run.claims]
    assert ledger.verify().clean


def test_a_given_claim_is_a_good_one(ledger: Ledger, manual_clock: ManualClock) -> None:
    run = given_in(ledger, *RUNNING, lease_ms=5_000)
    manual_clock.advance(4_999)
    assert ledger.run(run.run_id).attempts[0].lease == LeaseState.VALID
    manual_clock.advance(1)
    assert ledger.run(run.run_id).attempts[0].lease == LeaseState.EXPIRED
    assert isinstance(ledger.renew(run.claim), Renewed)
    assert isinstance(ledger.finish(run.claim, Outcome.succeeded(), actor=WORKER), Finished)


def test_the_claim_is_that_of_the_latest_attempt(ledger: Ledger) -> None:
    run = given_in(ledger, *RETRIED, *SECOND)
    assert (run.claim.number, len(run.claims)) == (2, 2)
    assert isinstance(ledger.running(run.claim, actor=WORKER, handle="h"), Recorded)


def test_when_sees_the_facts_of_its_own_run_alone(ledger: Ledger) -> None:
    run, other = given_in(ledger, CREATED), given_in(ledger, CREATED)
    answer = run.when(lambda: (ledger.queue(other.run_id, actor=ANA), ledger.queue(run.run_id, actor=ANA)))
    assert len(answer.then(RunQueued())) == 2
    with pytest.raises(AssertionError, match=r"(?s)recorded:\nexpected:\n  run.queued"):
        run.when(lambda: None).then(RunQueued())


def test_contents_are_every_row_of_every_table(ledger: Ledger) -> None:
    given_in(ledger, *RUNNING)
    counts = {name: len(rows) for name, rows in contents_of(ledger).items()}
    assert counts["facts"] == 7
    assert counts["runs"] == counts["attempts"] == counts["executions"] == 1
    assert counts["ledger_meta"] >= 1


def test_listening_ends_with_its_block(ledger: Ledger) -> None:
    steps = RecordedSteps()
    before = ledger.database.steps
    run_id = created(ledger)
    with listening(ledger, steps):
        ledger.queue(run_id, actor=ANA)
    heard = steps.names
    assert ledger.database.steps is before
    assert isinstance(ledger.claim(run_id, actor=WORKER, executor_type="batch"), Claimed)
    assert steps.names == heard
    own_writes = ("sql:before:update_run", "sql:after:update_run", "sql:before:insert_fact", "sql:after:insert_fact")
    assert heard == (
        "sql:before:select_ground",
        "sql:after:select_ground",
        *(own_writes if one_writer(ledger) else ()),
        "sql:before:commit",
        "sql:after:commit",
    )


def test_a_ledger_can_be_opened_with_a_listener(ledger_factory: ThrowAwayLedgers) -> None:
    steps = RecordedSteps()
    created(ledger_factory(steps=steps))
    assert steps.names[-1] == "sql:after:commit"

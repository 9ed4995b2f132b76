"""
Who names a version wins or hears of the conflict; who names none is decided again, a bounded number of times (R4.3).

``slow`` and ``fast`` are two ledgers on one database, each with connections of its own. On SQLite, where a command
has the database for itself from its first read on, nobody can overtake it: the fast one hears that it is busy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from runfacts import (
    Claimed,
    Contended,
    DatabaseBusy,
    LateCallback,
    Ledger,
    NotClaimable,
    Outcome,
    Recorded,
    Refusal,
    Repeated,
    RunStatus,
    RunVersionConflict,
)
from runfacts.infrastructure.database.errors import LostRace
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import AllSteps, CallAt, FailAt, RecordedSteps, listening
from stages import ANA, WORKER, created, finished, one_writer, queued, unchanged


def answers_of(command: Callable[[], object], answers: list[object]) -> Callable[[], None]:
    """Run a command and keep its answer, or that the database was busy."""

    def call() -> None:
        try:
            answers.append(command())
        except DatabaseBusy as error:
            answers.append(error)

    return call


def test_a_named_version_that_is_current_wins(ledger: Ledger) -> None:
    run_id = created(ledger)
    assert isinstance(ledger.queue(run_id, actor=ANA, expected_version=1), Recorded)
    assert isinstance(ledger.claim(run_id, actor=WORKER, executor_type="batch", expected_version=2), Claimed)


@pytest.mark.parametrize("expected", [0, 1, 3, 99])
def test_another_version_is_a_conflict_that_says_both(ledger_factory: ThrowAwayLedgers, expected: int) -> None:
    one, other = ledger_factory(), ledger_factory()
    run_id = queued(one)
    with unchanged(one), pytest.raises(RunVersionConflict) as caught:
        other.claim(run_id, actor=WORKER, executor_type="batch", expected_version=expected)
    assert (caught.value.run_id, caught.value.expected, caught.value.actual) == (run_id, expected, 2)


def test_of_two_connections_on_one_named_version_one_wins(ledger_factory: ThrowAwayLedgers) -> None:
    slow, fast = ledger_factory(), ledger_factory(busy_timeout_ms=0)
    run_id = queued(slow)
    answers: list[object] = []

    def claim(ledger: Ledger) -> Claimed | NotClaimable:
        return ledger.claim(run_id, actor=WORKER, executor_type="batch", expected_version=2)

    with listening(slow, CallAt("sql:before:commit", answers_of(lambda: claim(fast), answers))):
        if one_writer(slow):
            assert isinstance(claim(slow), Claimed)
            assert isinstance(answers[0], DatabaseBusy)
            with pytest.raises(RunVersionConflict) as caught:
                claim(fast)
        else:
            with pytest.raises(RunVersionConflict) as caught:
                claim(slow)
            assert isinstance(answers[0], Claimed)
    assert (caught.value.expected, caught.value.actual) == (2, 4)
    assert len(slow.run(run_id).attempts) == 1
    assert slow.verify().clean


def test_an_overtaken_command_without_a_version_is_decided_again(ledger_factory: ThrowAwayLedgers) -> None:
    slow, fast = ledger_factory(), ledger_factory(busy_timeout_ms=0)
    run_id = created(slow)
    answers: list[object] = []
    overtaking = CallAt("sql:before:commit", answers_of(lambda: fast.queue(run_id, actor=WORKER), answers))
    with listening(slow, overtaking):
        answer = slow.queue(run_id, actor=ANA)
    if one_writer(slow):
        assert isinstance(answers[0], DatabaseBusy)
        assert isinstance(answer, Recorded)
    else:
        assert isinstance(answers[0], Recorded)
        assert answer == Repeated(run_id, RunStatus.QUEUED, 2)
    assert [fact.type for fact in slow.history(run_id)] == ["run.created", "run.queued"]


def test_a_lost_claim_is_an_answer_not_an_error(ledger_factory: ThrowAwayLedgers) -> None:
    slow, fast = ledger_factory(), ledger_factory(busy_timeout_ms=0)
    run_id = queued(slow)
    answers: list[object] = []

    def claim(ledger: Ledger) -> Claimed | NotClaimable:
        return ledger.claim(run_id, actor=WORKER, executor_type="batch")

    with listening(slow, CallAt("sql:before:commit", answers_of(lambda: claim(fast), answers))):
        answer = claim(slow)
    if one_writer(slow):
        assert isinstance(answer, Claimed)
    else:
        assert isinstance(answers[0], Claimed)
        assert answer == NotClaimable(run_id, RunStatus.DISPATCHING, Refusal.NOT_QUEUED)
    assert len(slow.run(run_id).attempts) == 1


def test_what_others_recorded_since_is_read_before_deciding(ledger_factory: ThrowAwayLedgers) -> None:
    one, two = ledger_factory(), ledger_factory()
    run_id = created(one)
    assert isinstance(two.queue(run_id, actor=ANA), Recorded)
    answer = one.claim(run_id, actor=WORKER, executor_type="batch", expected_version=2)
    assert isinstance(answer, Claimed)
    two.start(answer.claim, actor=WORKER)
    one.running(answer.claim, actor=WORKER)
    two.finish(answer.claim, Outcome.succeeded(), actor=WORKER)
    assert one.queue(run_id, actor=ANA).status == RunStatus.SUCCEEDED
    assert one.history(run_id) == two.history(run_id)
    assert one.verify().clean


def test_a_command_that_loses_every_race_gives_up_without_a_trace(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory(decide_retries=2)
    run_id = created(ledger)
    recorded = RecordedSteps()
    losing = AllSteps(recorded, FailAt("sql:before:commit", LostRace("update_run"), nth=0))
    with unchanged(ledger), listening(ledger, losing), pytest.raises(Contended) as caught:
        ledger.queue(run_id, actor=ANA)
    assert (caught.value.run_id, caught.value.tries) == (run_id, 3)
    assert recorded.names.count("sql:before:select_ground") == 3
    assert isinstance(ledger.queue(run_id, actor=ANA), Recorded)


def test_a_race_lost_to_others_again_and_again_is_contended(ledger_factory: ThrowAwayLedgers) -> None:
    slow, fast = ledger_factory(decide_retries=2), ledger_factory(busy_timeout_ms=0)
    claim = finished(slow)
    sequences = iter(range(10, 100))
    answers: list[object] = []

    def report(ledger: Ledger, sequence: int) -> object:
        return ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER, sequence=sequence)

    overtaking = CallAt("sql:before:commit", answers_of(lambda: report(fast, next(sequences)), answers), nth=0)
    with listening(slow, overtaking):
        if one_writer(slow):
            assert isinstance(report(slow, 1_000), LateCallback)
            assert [type(answer) for answer in answers] == [DatabaseBusy]
        else:
            with pytest.raises(Contended):
                report(slow, 1_000)
            assert [type(answer) for answer in answers] == [LateCallback] * 3
    assert slow.verify().clean

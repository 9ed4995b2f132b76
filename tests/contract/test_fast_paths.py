"""In-process fast paths are never a source of truth (R1.6): what others wrote is seen, whatever this process keeps."""

from __future__ import annotations

import pytest

from runfacts import Actor, Ledger, Recorded, Repeated, RunStatus, RunVersionConflict
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, running, types


def test_a_kept_history_sees_what_another_process_recorded_since(ledger_factory: ThrowAwayLedgers) -> None:
    here = ledger_factory()
    there = ledger_factory()
    claim = running(here)
    there.wait_for_approval(claim, actor=Actor.user("bo"))
    # This ledger has kept the history without that fact, and must not decide on it.
    answer = here.go_on(claim, actor=WORKER)
    assert isinstance(answer, Recorded)
    assert (answer.status, answer.version) == (RunStatus.RUNNING, 9)
    assert types(there, claim.run_id)[-2:] == ["run.waiting_approval", "run.running"]


def test_a_kept_history_does_not_hide_a_conflict(ledger_factory: ThrowAwayLedgers) -> None:
    here = ledger_factory()
    there = ledger_factory()
    run_id = here.create(actor=ANA, task="t").run.run_id
    there.queue(run_id, actor=ANA)
    with pytest.raises(RunVersionConflict) as caught:
        here.queue(run_id, actor=ANA, expected_version=1)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    assert isinstance(here.queue(run_id, actor=ANA), Repeated)


def test_what_a_caller_rolled_back_is_not_kept(ledger: Ledger) -> None:
    run_id = ledger.create(actor=ANA, task="t").run.run_id
    with ledger.database.engine.connect() as connection:
        transaction = connection.begin()
        assert isinstance(ledger.queue(run_id, actor=ANA, connection=connection), Recorded)
        transaction.rollback()
    assert ledger.run(run_id).status is RunStatus.CREATED
    answer = ledger.queue(run_id, actor=ANA)
    assert isinstance(answer, Recorded)
    assert answer.version == 2
    assert ledger.verify(run_id).clean

"""
A process may keep the histories that it wrote last; no answer and no fact ever rests on them (R1.6).

What is read for a command shows whether the kept history was used: then the facts are not read.
"""

from __future__ import annotations

import pytest

from runfacts import Ledger, Recorded, Repeated
from runfacts.infrastructure.stores import kept
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import FailAt, RecordedSteps, listening
from stages import WORKER, running, types

READ = "sql:before:select_facts_after"


class InjectedError(Exception):
    """What a test makes the product run into."""


def test_who_wrote_last_does_not_read_the_facts_again(ledger: Ledger) -> None:
    claim = running(ledger)

    steps = RecordedSteps()
    with listening(ledger, steps):
        assert isinstance(ledger.wait_for_approval(claim, actor=WORKER), Recorded)

    assert READ not in steps.names


def test_two_processes_that_take_turns_on_a_run_see_each_others_facts(ledger_factory: ThrowAwayLedgers) -> None:
    one, other = ledger_factory(), ledger_factory()
    claim = running(one)

    for _ in range(2):
        assert isinstance(other.wait_for_approval(claim, actor=WORKER), Recorded)
        assert isinstance(one.wait_for_approval(claim, actor=WORKER), Repeated)
        assert isinstance(one.go_on(claim, actor=WORKER), Recorded)

    assert types(one, claim.run_id)[7:] == ["run.waiting_approval", "run.running"] * 2
    assert one.verify().clean


def test_a_write_that_failed_is_not_remembered(ledger: Ledger) -> None:
    claim = running(ledger)
    with listening(ledger, FailAt("sql:before:commit", InjectedError)), pytest.raises(InjectedError):
        ledger.wait_for_approval(claim, actor=WORKER)

    assert ledger.run(claim.run_id).status == "running"
    assert isinstance(ledger.wait_for_approval(claim, actor=WORKER), Recorded)
    assert ledger.verify().clean


def test_what_was_written_in_a_callers_transaction_is_not_remembered(ledger: Ledger) -> None:
    claim = running(ledger)
    with ledger.database.engine.connect() as connection:
        assert isinstance(ledger.wait_for_approval(claim, actor=WORKER, connection=connection), Recorded)
        connection.rollback()

    assert isinstance(ledger.wait_for_approval(claim, actor=WORKER), Recorded)
    assert ledger.history(claim.run_id)[-1].sequence == 8
    assert ledger.verify().clean


def test_a_history_of_another_past_is_read_anew(ledger: Ledger, ledger_factory: ThrowAwayLedgers) -> None:
    claim, twin = running(ledger), running(ledger)
    own = ledger._commands._kept.take(claim.run_id)
    alien = ledger._commands._kept.take(twin.run_id)
    assert own is not None
    assert alien is not None
    # As after a restore: the Run has the kept history's version, and other facts.
    alien.run_id = claim.run_id
    ledger._commands._kept.put(alien)

    steps = RecordedSteps()
    with listening(ledger, steps):
        assert isinstance(ledger.wait_for_approval(claim, actor=WORKER), Recorded)

    assert READ in steps.names
    assert ledger_factory().verify().clean


def test_only_so_many_are_kept_and_the_least_recently_used_go_first(ledger: Ledger) -> None:
    claims = [running(ledger) for _ in range(3)]
    histories = kept.KeptHistories(2)
    for claim in claims:
        history = ledger._commands._kept.take(claim.run_id)
        assert history is not None
        histories.put(history)

    assert histories.take(claims[0].run_id) is None
    assert histories.take(claims[1].run_id) is not None
    assert histories.take(claims[1].run_id) is None


def test_long_histories_are_not_kept(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FACTS_MAX", 7)
    claim = running(ledger)
    ledger.wait_for_approval(claim, actor=WORKER)

    steps = RecordedSteps()
    with listening(ledger, steps):
        ledger.go_on(claim, actor=WORKER)

    assert READ in steps.names

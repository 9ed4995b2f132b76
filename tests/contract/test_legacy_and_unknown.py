"""Runs of other systems and facts of later releases are kept and read, and refused to every command (R2.10, R3.7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import later_release
from runfacts import (
    AlreadyCreated,
    AttemptClaim,
    ExecutionOwner,
    Ledger,
    LegacyRun,
    NotAllowed,
    Outcome,
    RetryPolicy,
    RunStatus,
    UnknownFactsInRun,
    UnknownPayload,
)
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    RunCreated,
    RunDispatching,
    RunImported,
    RunQueued,
    RunRunning,
)
from runfacts.infrastructure.database.catalogue import count_unknown_types
from runfacts.testing.given_when_then import given_in
from stages import ANA, WORKER, claimed, created, queued, running, unchanged

Command = Callable[[Ledger, AttemptClaim], object]
ON_RUNS: list[Callable[[Ledger, str], object]] = [
    lambda ledger, run_id: ledger.queue(run_id, actor=ANA),
    lambda ledger, run_id: ledger.claim(run_id, actor=WORKER, executor_type="batch"),
]
ON_ATTEMPTS: list[Command] = [
    lambda ledger, claim: ledger.start(claim, actor=WORKER),
    lambda ledger, claim: ledger.running(claim, actor=WORKER),
    lambda ledger, claim: ledger.wait_for_approval(claim, actor=WORKER),
    lambda ledger, claim: ledger.go_on(claim, actor=WORKER),
    lambda ledger, claim: ledger.finish(claim, Outcome.succeeded(), actor=WORKER),
]
RENEWAL: Command = lambda ledger, claim: ledger.renew(claim)  # noqa: E731 - one of a list like those above
RUNNING = (
    RunCreated(task="report", policy=RetryPolicy()),
    RunQueued(),
    RunDispatching(number=1),
    AttemptClaimed(number=1, executor_type="batch"),
    AttemptStarting(),
    AttemptRunning(),
    RunRunning(),
)


def test_a_legacy_run_is_kept_and_read(ledger: Ledger) -> None:
    run_id = created(ledger, execution_owner=ExecutionOwner.LEGACY)
    view = ledger.run(run_id)
    assert (view.execution_owner, view.status) == (ExecutionOwner.LEGACY, RunStatus.CREATED)
    assert [item.run_id for item in ledger.runs().items] == [run_id]
    assert ledger.verify().clean


def test_a_run_that_was_created_as_legacy_is_not_executed(ledger: Ledger) -> None:
    run_id = created(ledger, execution_owner=ExecutionOwner.LEGACY)
    with unchanged(ledger):
        for command in ON_RUNS:
            with pytest.raises(LegacyRun) as caught:
                command(ledger, run_id)
            assert caught.value.run_id == run_id


def test_a_run_that_was_imported_is_not_executed(ledger: Ledger) -> None:
    run = given_in(ledger, *RUNNING, RunImported())
    with unchanged(ledger):
        for command in (*ON_ATTEMPTS, RENEWAL):
            with pytest.raises(LegacyRun):
                command(ledger, run.claim)
    assert ledger.run(run.run_id).execution_owner == ExecutionOwner.LEGACY


def test_a_fact_of_a_later_release_is_kept_read_and_counted(ledger: Ledger) -> None:
    run_id = queued(ledger)
    later_release.append(ledger, run_id, "run.teleported", '{"to":"mars"}')
    later_release.append(ledger, run_id, "run.queued", '{"priority":5}', version=2)
    teleported, newer = ledger.history(run_id)[2:]
    assert teleported.type == "run.teleported"
    assert teleported.payload == UnknownPayload(stored_type="run.teleported", stored_version=1, text='{"to":"mars"}')
    assert isinstance(newer.payload, UnknownPayload)
    assert (newer.payload.stored_version, newer.payload.reason) == (2, "unknown version")
    view = ledger.run(run_id)
    assert (view.status, view.version) == (RunStatus.QUEUED, 4)
    assert [fact.sequence for fact in ledger.facts(types=["run.teleported"]).items] == [3]
    report = ledger.verify()
    assert (report.clean, report.unknown_types) == (True, {"run.teleported": 1, "run.queued": 1})


def test_a_run_with_unknown_facts_is_changed_by_no_command(ledger: Ledger) -> None:
    run_id = created(ledger)
    for _ in range(2):
        later_release.append(ledger, run_id, "run.teleported", "{}")
    with unchanged(ledger):
        for command in ON_RUNS:
            with pytest.raises(UnknownFactsInRun) as caught:
                command(ledger, run_id)
            assert (caught.value.run_id, caught.value.types) == (run_id, ("run.teleported",))
            assert isinstance(caught.value, NotAllowed)


def test_nor_by_its_attempts(ledger: Ledger) -> None:
    claim = running(ledger)
    later_release.append(ledger, claim.run_id, "run.teleported", "{}")
    with unchanged(ledger):
        for command in ON_ATTEMPTS:
            with pytest.raises(UnknownFactsInRun):
                command(ledger, claim)


def test_other_runs_go_on(ledger: Ledger) -> None:
    later_release.append(ledger, created(ledger), "run.teleported", "{}")
    assert claimed(ledger).number == 1


def test_an_idempotency_key_still_finds_a_run_with_unknown_facts(ledger: Ledger) -> None:
    run_id = created(ledger, idempotency_key="k")
    later_release.append(ledger, run_id, "run.teleported", "{}")
    answer = ledger.create(actor=ANA, task="report", idempotency_key="k")
    assert isinstance(answer, AlreadyCreated)
    assert answer.run.run_id == run_id


def test_the_catalogue_counts_unknown_types_and_later_versions_of_known_ones(ledger: Ledger) -> None:
    run_id = created(ledger)
    with ledger.database.reading() as reading:
        assert count_unknown_types(reading) == {}
    later_release.append(ledger, run_id, "run.teleported", "{}")
    later_release.append(ledger, run_id, "run.queued", "{}", version=2)
    later_release.append(ledger, run_id, "run.queued", "{}", version=3)
    with ledger.database.reading() as reading:
        assert count_unknown_types(reading) == {"run.teleported": 1, "run.queued": 2}

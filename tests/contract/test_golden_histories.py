"""
What earlier releases recorded, and what later ones may, is read by this one (R3.7).

Every file under tests/golden was written by the release of its folder and is never written again. Whatever this release
makes of them must be what stands here, by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from runfacts import AttemptStatus, IntentKind, Ledger, ProjectionName, RunStatus
from runfacts.domain import facts as facts_module
from runfacts.domain.cancellation.results import DispatchStatus
from runfacts.domain.canonical import GENESIS
from runfacts.domain.payloads import AttemptClaimed
from runfacts.domain.replay import PastRun
from runfacts.infrastructure.database.catalogue import count_unknown_types
from runfacts.testing.recorded import import_recorded, recorded, recorded_run

GOLDEN = Path(__file__).parents[1] / "golden"
BY_HAND = GOLDEN / "by-hand" / "older_and_later.jsonl"
FILES = sorted(file for file in GOLDEN.glob("*/*.jsonl") if file.parent != BY_HAND.parent)
BEGAN_MS = 1_767_225_600_000

# Of each file: status, facts, when it ended after it began, and each Attempt's status, exit code and signal.
AMOUNT_TO = {
    "0.1.0/cancelled_although_it_succeeded": (RunStatus.CANCELLED, 10, 4_000, [(AttemptStatus.CANCELLED, 0, None)]),
    "0.1.0/cancelled_before_a_start": (RunStatus.CANCELLED, 7, 2_000, [(AttemptStatus.CANCELLED, None, None)]),
    "0.1.0/cancelled_while_queued": (RunStatus.CANCELLED, 4, 1_000, []),
    "0.1.0/failed_twice": (
        *(RunStatus.FAILED, 17, 12_000),
        [(AttemptStatus.FAILED, 1, None), (AttemptStatus.FAILED, None, 9)],
    ),
    "0.1.0/lost_and_tried_again": (
        *(RunStatus.SUCCEEDED, 18, 72_000),
        [(AttemptStatus.LOST, None, None), (AttemptStatus.SUCCEEDED, 0, None)],
    ),
    "0.1.0/stop_confirmed": (RunStatus.CANCELLED, 12, 34_000, [(AttemptStatus.CANCELLED, None, None)]),
    "0.1.0/stopped_on_an_operators_word": (RunStatus.CANCELLED, 11, 4_000, [(AttemptStatus.CANCELLED, None, None)]),
    "0.1.0/succeeded": (RunStatus.SUCCEEDED, 12, 64_000, [(AttemptStatus.SUCCEEDED, 0, None)]),
    "0.1.0/timed_out": (RunStatus.TIMED_OUT, 10, 604_000, [(AttemptStatus.TIMED_OUT, None, 15)]),
}


def name_of(file: Path) -> str:
    """Give a file's name as the table has it."""
    return f"{file.parent.name}/{file.stem}"


def test_every_golden_history_is_in_the_table() -> None:
    assert [name_of(file) for file in FILES] == sorted(AMOUNT_TO)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_a_golden_history_amounts_to_what_it_did(file: Path) -> None:
    run = recorded_run(file)
    state = run.state()
    assert all(fact.known for fact in run.facts)
    assert amount(state) == AMOUNT_TO[name_of(file)]
    previous = GENESIS
    for fact in run.facts:
        assert fact.computed_hash(previous) == fact.hash
        previous = fact.hash


def test_the_golden_histories_come_into_a_ledger_of_today(ledger: Ledger) -> None:
    for file in FILES:
        (run_id,) = import_recorded(ledger, file)
        assert amount(ledger.replay(run_id)) == AMOUNT_TO[name_of(file)]
        assert [fact.hash for fact in ledger.history(run_id)] == [fact.hash for fact in recorded_run(file).facts]
    report = ledger.verify()
    assert (report.runs, report.facts, report.unknown_types, report.differences) == (9, 101, {}, ())


def test_what_golden_histories_say_besides() -> None:
    release = GOLDEN / "0.1.0"
    approved = recorded_run(release / "succeeded.jsonl")
    assert [approved.state(sequence).status for sequence in (7, 8, 9)] == ["running", "waiting_approval", "running"]
    assert approved.state().idempotency_key == "monday"
    failed = recorded_run(release / "failed_twice.jsonl").state().attempts[0]
    assert (failed.error_code, failed.error_summary) == ("E1", "[redacted] Zürich 雪")
    confirmed = recorded_run(release / "stop_confirmed.jsonl").state().cancellation
    assert confirmed is not None
    assert (confirmed.kind, confirmed.requested_at_ms) == (IntentKind.POLICY, BEGAN_MS + 4_000)
    assert confirmed.dispatch is not None
    assert (confirmed.dispatch.status, confirmed.dispatch.last_result) == (DispatchStatus.BLOCKED, "abandoned")
    observed = recorded_run(release / "cancelled_although_it_succeeded.jsonl").state().attempts[0].observed
    assert observed == "succeeded"


@pytest.fixture
def upcast(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose attempt.claimed is of version 2: what it calls executor_type, version 1 called executor."""
    monkeypatch.setattr(AttemptClaimed, "VERSION", 2)
    monkeypatch.setitem(
        facts_module.UPCASTERS,
        ("attempt.claimed", 1),
        lambda old: {"executor_type" if name == "executor" else name: value for name, value in old.items()},
    )


@pytest.mark.usefixtures("upcast")
def test_a_history_of_an_older_version_and_of_unknown_types_replays_and_is_reported(ledger: Ledger) -> None:
    older, later = import_recorded(ledger, BY_HAND)
    for run_id in (older, later):
        run = ledger.run(run_id)
        (attempt,) = run.attempts
        assert (run.status, attempt.executor_type, attempt.exit_code) == (RunStatus.SUCCEEDED, "batch", 0)
    assert ledger.run(older).version == 9
    assert ledger.replay(later).unknown_types == ("run.teleported", "run.audited")
    assert ledger.replay(later, sequence=7).unknown_types == ()
    report = ledger.verify()
    assert (report.differences, report.unknown_types) == ((), {"run.teleported": 1, "run.audited": 1})
    with ledger.database.reading() as reading:
        assert count_unknown_types(reading) == {"run.teleported": 1, "run.audited": 1}
    # Views leave out what they do not know, and say how much; what went through an upcaster is in them.
    (line,) = ledger.statistics(by="task").items
    assert (line.created, line.attempts, line.succeeded) == (2, 2, 2)
    ledger.project()
    assert [(health.unknown, health.set_aside) for health in ledger.projections()] == [(2, 0), (2, 0)]
    rebuilt = [ledger.rebuild(name) for name in ProjectionName]
    assert [(one.facts, one.unknown, one.set_aside) for one in rebuilt] == [(report.facts, 2, 0)] * 2
    assert ledger.statistics(by="task").items == (line,)
    out = [line["hash"] for line in ledger.export_runs([older, later])]
    assert out == [fact.hash for run in recorded(BY_HAND).values() for fact in run.facts]


def test_without_its_upcaster_an_older_version_is_not_taken_for_understood(ledger: Ledger) -> None:
    # Here version 1 is today's, which has no such field: somebody changed it.
    with pytest.raises(ValueError, match="line 4: fact 4: payload is"):
        import_recorded(ledger, BY_HAND)
    assert ledger.runs().items == ()


def amount(state: PastRun) -> tuple[RunStatus, int, int, list[tuple[AttemptStatus, int | None, int | None]]]:
    """Give of a Run what the table says."""
    return (
        state.status,
        state.version,
        (state.finished_at_ms or 0) - BEGAN_MS,
        [(attempt.status, attempt.exit_code, attempt.signal) for attempt in state.attempts],
    )

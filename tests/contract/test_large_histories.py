"""
Case C27, and a long ledger that somebody has changed (R1.4, R3.7, R14.1, R14.2).

Its facts are made by the bench's own maker of long ledgers, which ``verify`` finds as they should be.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import later_release
from benchmarks import long_ledgers
from runfacts import LateCallback, Ledger, Outcome, ProjectionName
from runfacts.domain.views import Difference
from runfacts.infrastructure.database.catalogue import count_unknown_types
from runfacts.infrastructure.database.tables import runs as runs_table
from runfacts.infrastructure.stores import projector
from runfacts.testing.ledgers import contents_of
from stages import WORKER, finished
from tampering import owner_of
from views import rebuilt_rows_of, rows_of

AUDITED = 10
"""Ended Runs that facts follow on, of each kind."""
MET = 4
"""Pages of rebuilds that are written along with."""


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    """A ledger of the machine's own clocks."""
    with Ledger.open(database_url, busy_timeout_ms=60_000) as opened:
        yield opened


def followed(ledger: Ledger) -> int:
    """Let facts follow on ended Runs: of a later version, of a later type, and late reports; how many there are."""
    for number in range(AUDITED):
        later_release.append(ledger, long_ledgers.run_id_of(4 * number), "run.succeeded", '{"exit":"0"}', version=2)
        later_release.append(ledger, long_ledgers.run_id_of(4 * number + 1), "run.audited", '{"by":"ana"}')
    for _ in range(AUDITED):
        claim = finished(ledger)
        assert isinstance(ledger.finish(claim, Outcome.failed(exit_code=1), actor=WORKER), LateCallback)
    return 2 * AUDITED + 10 * AUDITED


def ended(ledger: Ledger) -> dict[str, tuple[object, ...]]:
    """How every Run ended, and when."""
    names = runs_table.columns.keys()
    places = [names.index(name) for name in ("status", "finished_at_ms")]
    return {row[0]: tuple(row[place] for place in places) for row in contents_of(ledger)["runs"]}


@contextmanager
def writing_along(url: str) -> Iterator[tuple[Callable[[int], None], list[int]]]:
    """Append and project in a thread, so that a Run follows on each of the first ``MET`` pages of rebuilds.

    Gives what a rebuild tells its progress to, and what it was told.
    """
    asked, written, over = threading.Event(), threading.Event(), threading.Event()
    failed: list[BaseException] = []
    pages: list[int] = []

    def write() -> None:
        try:
            with Ledger.open(url, busy_timeout_ms=60_000) as writer:
                asked.wait()
                while not over.is_set():
                    finished(writer)
                    writer.project()
                    written.set()
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)
            written.set()

    def meet(facts: int) -> None:
        if over.is_set():
            return
        written.clear()
        asked.set()
        assert written.wait(60)
        pages.append(facts)
        if len(pages) == MET:
            over.set()

    writing = threading.Thread(target=write)
    writing.start()
    try:
        yield meet, pages
    finally:
        over.set()
        asked.set()
        writing.join()
    assert failed == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [1_200, pytest.param(10_000, marks=pytest.mark.long)])
def test_c27_a_rebuild_while_a_writer_appends_equals_the_live_view(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """C27: a fact of a later version and facts on ended Runs are kept, counted and reported, and change no Run."""
    monkeypatch.setattr(projector, "REBUILD_PAGE", count // 4)
    long_ledgers.fill(database_url, count - 120)
    assert followed(ledger) == 120
    before = ended(ledger)
    ledger.project()
    with writing_along(database_url) as (meet, pages):
        rebuilt = [ledger.rebuild(name, progress=meet) for name in ProjectionName]
    assert len(pages) == MET
    ledger.project()
    live = rows_of(ledger)
    assert rebuilt_rows_of(ledger) == live
    # What is not known is counted, and reported wherever somebody asks.
    unknown = {"run.succeeded": AUDITED, "run.audited": AUDITED}
    assert [one.unknown for one in rebuilt] == [2 * AUDITED] * 2
    assert [(one.unknown, one.set_aside) for one in ledger.projections()] == [(2 * AUDITED, 0)] * 2
    report = ledger.verify()
    assert (report.differences, report.unknown_types) == ((), unknown)
    with ledger.database.reading() as reading:
        assert count_unknown_types(reading) == unknown
    after = ended(ledger)
    assert {run_id: after[run_id] for run_id in before} == before
    assert len(live["statistics_runs"]) == len(after) > len(before)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_one_changed_byte_among_many_facts_is_named_by_run_sequence_and_field(
    ledger: Ledger, database_url: str, count: int
) -> None:
    """By the table's owner, past the triggers, somewhere in the middle."""
    runs = long_ledgers.fill(database_url, count)
    # A Run of the second shape: its tenth fact is attempt.succeeded.
    run_id = long_ledgers.run_id_of(runs // 8 * 4 + 1)
    with owner_of(database_url) as owner:
        owner.run("UPDATE facts SET payload = ? WHERE run_id = ? AND sequence = 10", ['{"exit_code":8}', run_id])
        ((stored,),) = owner.rows("SELECT hash FROM facts WHERE run_id = ? AND sequence = 10", [run_id])
    heard: list[tuple[int, int]] = []
    report = ledger.verify(progress=lambda runs, facts: heard.append((runs, facts)))
    assert (report.runs, report.facts) == (runs, runs * 10)
    named = [(found.run_id, found.sequence, found.kind, found.field) for found in report.differences]
    assert named == [(run_id, 10, "hash", "hash"), (run_id, None, "attempt", "exit_code")]
    assert report.differences[0].recorded == stored
    assert report.differences[1] == Difference(run_id, "attempt", "exit_code", "0", "8")
    # Progress is told Run by Run, and ends with all of them.
    assert len(heard) == runs
    assert heard == sorted(heard)
    assert heard[-1] == (runs, runs * 10)

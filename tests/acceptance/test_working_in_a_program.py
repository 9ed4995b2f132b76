"""A worker within a program: started, stopped, started again, and closed with its ledger (R9.3, R12.1)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from process_watch import wait_until
from runfacts import Actor, AlreadyStarted, InvalidValue, Ledger, RunStatus, SupervisorReport
from runfacts.infrastructure.working import Working

ANA = Actor.user("ana")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger file whose time passes by itself."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", drain_ms=60_000) as ledger:
        yield ledger


def submit(ledger: Ledger, place: Path, script: str) -> str:
    return ledger.submit(["sh", "-c", script], actor=ANA, cwd=str(place)).run.run_id


def runs(working: Working) -> bool:
    return working.running


def waits(name: str) -> str:
    """Give a script that says that it is up, and ends when the test says so."""
    return f"touch {name}.up; until test -e {name}.go; do sleep 0.02; done"


def ended(ledger: Ledger, run_id: str) -> bool:
    return ledger.run(run_id).status is RunStatus.SUCCEEDED


@pytest.mark.usefixtures("marked")
def test_a_worker_can_be_stopped_and_started_again(ledger: Ledger, tmp_path: Path) -> None:
    working = ledger.work(concurrency=2, interval_ms=250)
    first = submit(ledger, tmp_path, "exit 0")
    with working:
        assert runs(working)
        with pytest.raises(AlreadyStarted):
            working.start()
        with pytest.raises(AlreadyStarted):
            working.once()
        wait_until(lambda: ended(ledger, first), "it is hosted")
    assert not runs(working)
    assert working.stop()
    second = submit(ledger, tmp_path, "exit 0")
    assert ledger.run(second).status is RunStatus.QUEUED
    working.start()
    wait_until(lambda: ended(ledger, second), "it is hosted")
    assert working.stop()
    # Its own id stands in what it did.
    assert {item.worker_id for run_id in (first, second) for item in ledger.run(run_id).attempts} == {working.owner}


@pytest.mark.usefixtures("marked")
def test_what_is_done_while_draining_is_reported_once(ledger: Ledger, tmp_path: Path) -> None:
    reports: list[SupervisorReport] = []
    working = ledger.work(concurrency=1, interval_ms=250, on_cycle=reports.append)
    run_id = submit(ledger, tmp_path, waits("a"))
    working.start()
    wait_until(lambda: (tmp_path / "a.up").exists() and reports, "it runs")
    stopped: list[bool] = []
    stopping = threading.Thread(target=lambda: stopped.append(working.stop()))
    stopping.start()
    wait_until(lambda: not working.running, "it takes nothing new")
    assert working.hosting == 1
    (tmp_path / "a.go").touch()
    stopping.join(60)
    assert stopped == [True]
    assert ended(ledger, run_id)
    assert sum(report["hosted"].get("succeeded", 0) for report in reports) == 1
    # Every report has all parts.
    assert len({tuple(report.counters) for report in reports}) == 1


@pytest.mark.usefixtures("marked")
def test_who_leaves_does_not_wait_and_ends_nothing(ledger: Ledger, tmp_path: Path) -> None:
    working = ledger.work(concurrency=1, interval_ms=250)
    run_id = submit(ledger, tmp_path, waits("a"))
    working.start()
    wait_until((tmp_path / "a.up").exists, "it runs")
    working.leave()
    # Although there would be a minute.
    assert working.stop()
    assert (working.hosting, ledger.run(run_id).status) == (0, RunStatus.RUNNING)
    (tmp_path / "a.go").touch()

    def recorded() -> bool:
        ledger.collect_receipts()
        return ended(ledger, run_id)

    wait_until(recorded, "its receipt is found")


@pytest.mark.usefixtures("marked")
def test_a_ledger_that_is_closed_stops_its_workers(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(url, drain_ms=0) as ledger:
        run_id = submit(ledger, tmp_path, waits("a"))
        working = ledger.work(interval_ms=250)
        working.start()
        wait_until((tmp_path / "a.up").exists, "it runs")
    assert not runs(working)
    (tmp_path / "a.go").touch()
    with Ledger.open(url) as ledger:
        wait_until(lambda: list(ledger.places().receipts()), "the keeper leaves its receipt")
        ledger.collect_receipts()
        assert ended(ledger, run_id)


@pytest.mark.usefixtures("marked")
def test_once_can_be_asked_to_take_nothing_new(ledger: Ledger, tmp_path: Path) -> None:
    run_id = submit(ledger, tmp_path, "exit 0")
    assert ledger.work().once(lambda: True)["hosted"] == {"seen": 0, "claimed": 0}
    assert ledger.run(run_id).status is RunStatus.QUEUED
    assert ledger.work().once()["hosted"] == {"seen": 1, "claimed": 1, "succeeded": 1}


@pytest.mark.parametrize("concurrency", [0, 257, True, 1.5])
def test_the_places_of_a_worker_are_bounded(ledger: Ledger, concurrency: int) -> None:
    with pytest.raises(InvalidValue, match=r"concurrency is not a whole number(, but of type| between 1 and 256$)"):
        ledger.work(concurrency=concurrency)

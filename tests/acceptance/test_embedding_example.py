"""
The example of a platform that embeds the ledger does what its pages say, on every database (R3.9, R4.5).

Its own events, its own rows and our facts are there together or not at all; its board counts each fact once, whatever
happens to the process that follows.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from eventsourcing.application import AggregateNotFoundError
from eventsourcing.persistence import IntegrityError
from eventsourcing.utils import Environment
from sqlalchemy import func, select

from forge.board import Board, following
from forge.builds import Build
from forge.ci import BuildFailed, DeliveredBefore, Forge
from forge.deliveries import Delivery
from forge.tour import break_off, catch_up, package, tour
from pages import ROOT
from process_watch import marked_environment, wait_until
from runfacts import Actor, Claimed, Outcome
from runfacts.infrastructure.persistence import LedgerFactory
from told import environment

WORKER = Actor.worker("w-1")
PATHS = f"{ROOT / 'examples' / 'embedding'}:{ROOT / 'tests' / 'doubles'}"


@pytest.fixture
def forge(database_url: str) -> Iterator[Forge]:
    """The platform on a fresh database of each kind."""
    with Forge(database_url) as forge:
        yield forge


def program(*arguments: str) -> Sequence[str]:
    return [sys.executable, "-W", "error", "-m", *arguments]


def shown(url: str, tmp_path: Path) -> list[str]:
    ended = subprocess.run(
        program("forge", "--db", url),
        env=environment() | {"PYTHONPATH": PATHS},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return [line.strip() for line in ended.stdout.splitlines()]


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with marked_environment():
        process = subprocess.Popen(program(*arguments), env=environment() | {"PYTHONPATH": PATHS})
        try:
            yield process
        finally:
            process.kill()
            process.wait()


@contextmanager
def board_at(url: str) -> Iterator[Board]:
    factory = LedgerFactory(Environment("board", {"RUNFACTS_URL": url}))
    yield factory.tracking_recorder(Board)
    factory.close()


def pushed(forge: Forge, revision: str = "4f1c2a9") -> Build:
    return forge.push(str(uuid4()), "shop", revision)


def recorded(forge: Forge) -> tuple[int, int, int]:
    """How many deliveries, events of builds and facts there are."""
    with forge.sessions() as session:
        deliveries = session.scalar(select(func.count()).select_from(Delivery)) or 0
    events = forge.builds.recorder.select_notifications(start=None, limit=1_000)
    return deliveries, len(events), len(forge.ledger.facts(limit=500).items)


def test_the_tour_shows_what_it_says_and_again_on_the_same_database(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(database_url, tmp_path)
    assert lines[1].endswith("; 2 events of builds, 2 facts")
    assert lines[3] == "refused; 2 events of builds, 2 facts"
    assert lines[5] == "artifact shop-4f1c2a9.tar.gz; 5 events of builds, 18 facts"
    assert lines[7:9] == [
        "build shop 4f1c2a9: succeeded after 9 facts",
        "build shop badc0de: failed after 9 facts, notice: failed with exit code 2",
    ]
    assert lines[10:] == [
        "build shop 5e8d001: queued after 2 facts",
        "the board has seen 20 facts, the ledger has 20",
    ]
    tour(database_url)
    assert "   the board has seen 40 facts, the ledger has 40\n" in capsys.readouterr().out


def test_a_push_is_its_row_its_events_and_its_facts(forge: Forge) -> None:
    build = pushed(forge)
    assert recorded(forge) == (1, 2, 2)
    kept: Build = forge.builds.repository.get(build.id)
    assert (kept.repository, kept.revision, kept.run_id) == ("shop", "4f1c2a9", build.run_id)
    history = forge.ledger.history(str(build.run_id))
    assert [(fact.type, fact.sequence) for fact in history] == [("run.created", 1), ("run.queued", 2)]
    assert history[0].correlation_id == str(build.id)


def test_a_push_that_is_delivered_again_leaves_nothing(forge: Forge) -> None:
    forge.push("one", "shop", "4f1c2a9")
    with pytest.raises(DeliveredBefore):
        forge.push("one", "shop", "4f1c2a9")
    assert recorded(forge) == (1, 2, 2)


def test_an_error_after_both_have_written_leaves_neither(forge: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Build] = []
    save = forge.builds.save

    def save_and_fail(build: Build, **given: object) -> None:
        save(build, **given)
        saved.append(build)
        raise ConnectionError("the mail server is gone")

    monkeypatch.setattr(forge.builds, "save", save_and_fail)
    with pytest.raises(ConnectionError):
        pushed(forge)
    assert recorded(forge) == (0, 0, 0)
    with pytest.raises(AggregateNotFoundError):
        forge.builds.repository.get(saved[0].id)


def test_an_artifact_that_cannot_be_recorded_leaves_its_run_unfinished(
    forge: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = pushed(forge)

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("the store of artifacts is gone")

    monkeypatch.setattr(forge.builds, "save", fail)
    with pytest.raises(ConnectionError):
        forge.work(build.id, "w-1", package)
    assert forge.ledger.run(str(build.run_id)).status == "running"
    assert forge.builds.repository.get(build.id).artifact is None


def test_a_build_is_made_by_one_worker(forge: Forge) -> None:
    build = pushed(forge)
    asked: list[bool] = []

    def ask_another(made: Build) -> str:
        asked.append(forge.work(made.id, "w-2", package))
        return package(made)

    assert forge.work(build.id, "w-1", ask_another)
    assert asked == [False]
    assert not forge.work(build.id, "w-2", package)
    assert forge.builds.repository.get(build.id).artifact == "shop-4f1c2a9.tar.gz"
    assert forge.ledger.run(str(build.run_id)).status == "succeeded"


def test_a_report_that_comes_too_late_publishes_nothing(forge: Forge) -> None:
    build = pushed(forge)
    claimed = forge.ledger.claim(str(build.run_id), actor=WORKER, executor_type="forge")
    assert isinstance(claimed, Claimed)
    forge.ledger.start(claimed.claim, actor=WORKER)
    forge.ledger.finish(claimed.claim, Outcome.failed(error_code="gone"), actor=WORKER)
    assert not forge.publish(build, "shop.tar.gz", claimed.claim, WORKER)
    assert forge.builds.repository.get(build.id).artifact is None
    assert forge.ledger.history(str(build.run_id))[-1].type == "attempt.late_callback_ignored"


def test_the_board_has_each_build_and_a_notice_for_each_failure(forge: Forge, database_url: str) -> None:
    good, bad, waiting = pushed(forge), pushed(forge, "badc0de"), pushed(forge)
    other = forge.ledger.create(actor=WORKER, task="of another system").run
    with following(database_url) as runner:
        forge.work(good.id, "w-1", package)
        forge.work(bad.id, "w-1", break_off)
        catch_up(runner)
        lines, notices = runner.view.lines(), runner.view.notices()
    assert [(line.run_id, line.build_id, line.status, line.facts) for line in lines] == [
        (good.run_id, str(good.id), "succeeded", 9),
        (bad.run_id, str(bad.id), "failed", 9),
        (waiting.run_id, str(waiting.id), "queued", 2),
    ]
    assert notices == [(bad.run_id, "failed with exit code 2")]
    assert other.run_id not in {line.run_id for line in lines}


def test_of_two_followers_one_goes_on_and_the_board_counts_once(forge: Forge, database_url: str) -> None:
    with following(database_url) as one, following(database_url) as other:
        pushed(forge)
        wait_until(lambda: one.is_interrupted.is_set() or other.is_interrupted.is_set(), "one was second")
        loser, survivor = (one, other) if one.is_interrupted.is_set() else (other, one)
        with pytest.raises(IntegrityError):
            loser.run_forever()
        pushed(forge)
        catch_up(survivor)
        assert [line.facts for line in survivor.view.lines()] == [2, 2]


def test_a_follower_that_is_killed_loses_and_doubles_nothing(forge: Forge, database_url: str) -> None:
    def fail(_: Build) -> str:
        raise BuildFailed(7)

    def seen(board: Board) -> int:
        return sum(line.facts for line in board.lines())

    builds = [pushed(forge) for _ in range(4)]
    for build in builds:
        forge.work(build.id, "w-1", fail)
    newest = 36  # four Runs of nine facts
    with board_at(database_url) as board:
        for position, moment, kept in ((13, "before", 12), (27, "after", 27)):
            with started("mortal_board", database_url, str(position), moment) as follower:
                assert follower.wait(60) == -signal.SIGKILL
            assert board.max_tracking_id("runfacts") == kept
            assert seen(board) == kept
        with started("forge", "follow", "--db", database_url) as follower:
            wait_until(lambda: seen(board) == newest, "the rest is followed")
            while seen(board) < newest + 5:
                builds.append(pushed(forge))
            follower.kill()  # wherever it is
            follower.wait()
        builds.append(pushed(forge))
        newest += 2 * (len(builds) - 4)
        with started("forge", "follow", "--db", database_url) as follower:
            wait_until(lambda: board.max_tracking_id("runfacts") == newest, "all is followed")
            follower.terminate()
            assert follower.wait(60) == 0
        lines = {line.run_id: line.facts for line in board.lines()}
        failures = Counter(board.notices())
    assert lines == {build.run_id: 9 if number < 4 else 2 for number, build in enumerate(builds)}
    assert failures == {(build.run_id, "failed with exit code 7"): 1 for build in builds[:4]}

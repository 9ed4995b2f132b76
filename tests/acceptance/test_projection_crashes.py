"""
A runner of projections that is killed at any moment loses and doubles nothing (R14.1).

Facts are written while it runs. Whatever it was doing when SIGKILL came, the views in the end are those of a rebuild.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from process_watch import marked_environment
from runfacts import Ledger, Outcome
from runfacts.testing.ledgers import contents_of
from stages import ANA, WORKER, finished, running
from views import live_rows_of, rebuilt_rows_of

# Pages of seven facts, so that many transactions are there to be hit; a rebuild now and then.
RUNNER = """
import sys
from runfacts import Ledger, RebuildOvertaken
from runfacts.infrastructure.stores import projector
projector.LIVE_PAGE, projector.REBUILD_PAGE = 7, 23
with Ledger.open(sys.argv[1], busy_timeout_ms=60_000) as ledger:
    print("ready", flush=True)
    while True:
        for _ in range(5):
            ledger.project()
        for health in ledger.projections():
            ledger.rebuild(health.projection)
"""


@contextmanager
def writing(ledger: Ledger) -> Iterator[None]:
    """Append facts in a thread as long as the block lasts."""
    ended = threading.Event()

    def write() -> None:
        while not ended.wait(0.005):
            finished(ledger)
            claim = running(ledger)
            ledger.request_cancellation(claim.run_id, actor=ANA)
            ledger.finish(claim, Outcome.cancelled(), actor=WORKER)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def killed_at_a_random_moment(url: str, chance: random.Random) -> None:
    """Start a runner, and kill it up to a third of a second after it began."""
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, url], stdout=subprocess.PIPE)
    assert runner.stdout is not None
    with runner.stdout:
        assert runner.stdout.readline() == b"ready\n"
        time.sleep(chance.uniform(0, 0.3))
        runner.kill()
        assert runner.wait(30) == -9


@pytest.mark.timeout(600)
@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.long)])
def test_a_runner_that_is_killed_at_random_points_loses_and_doubles_nothing(
    ledger: Ledger, database_url: str, times: int
) -> None:
    chance = random.Random(14)  # noqa: S311 - moments, no secrets
    with writing(ledger), marked_environment():
        for _ in range(times):
            killed_at_a_random_moment(database_url, chance)
    ledger.project()
    (line,) = ledger.statistics(by="project").items
    asked = len(contents_of(ledger)["runs"]) // 2
    assert (line.created, line.succeeded, line.cancelled) == (2 * asked, asked, asked)
    assert len(ledger.stop_proofs(limit=500).items) == min(asked, 500)
    # The live view, which lived through all of it, is what facts give.
    assert ledger.verify().clean
    live = live_rows_of(ledger)
    # A rebuild overtakes what killed ones have left, and sweeps it.
    assert rebuilt_rows_of(ledger) == live
    kept = [(row[0], row[2]) for row in contents_of(ledger)["projections"]]
    assert kept == [("statistics", "live"), ("stop_proof", "live")]

"""
R5.2, R5.3, R8.4, R8.7, R8.8: clocks that are set while a delivery is held, and a file that is held while it is claimed.

C35, with real workers and commands, on SQLite, whose workers have only this machine's clocks. On PostgreSQL no clock of
a worker decides anything (R5.1).
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deliveries import dispatch_of
from left_commands import LeavingHost
from process_watch import Marked, wait_until
from runfacts import Ledger
from runfacts.domain.payloads import RunCancelDispatched, RunCancelDispatchTakenOver
from runfacts.infrastructure.database.clocks import elapsed_s
from stepped_clock import step
from workers import Job, working

LEASE_MS = 8_000
SHORT_LEASE_MS = 4_000
HOUR_MS = 3_600_000


@pytest.mark.parametrize("step_ms", [-HOUR_MS, HOUR_MS], ids=["back", "forward"])
def test_a_step_of_the_wall_clock_neither_stretches_nor_shortens_a_dead_workers_lease(
    tmp_path: Path, marked: Marked, step_ms: int
) -> None:
    """C35."""
    assert not marked.living()
    url, clock = f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "clock"
    jobs = (
        Job("one", url, lease_ms=LEASE_MS, fault="kill", step="stop:after:term", clock=str(clock)),
        Job("two", url, clock=str(clock)),
    )
    with Ledger.open(url) as ledger:
        command = LeavingHost(ledger, tmp_path).leave("stays")
        command.ask_to_stop(ledger)
        with working(jobs[0]) as dead:
            dead.first("ended", "one")
            assert dead.sent("one") == ["SIGTERM"]
            row = dispatch_of(ledger, command.run_id)
            assert row is not None
            assert row["status"] == "leased"
            with working(jobs[1]) as workers:
                owner = workers.owner("two")
                workers.first("cycle", "two")
                step(clock, step_ms)
                wait_until(lambda: workers.all("failed", "two"), "the step is seen")
                (seen,) = workers.all("failed", "two")
                assert seen["error"] == "WallClockSet"
                # An hour would be far beyond this test's patience.
                wait_until(lambda: workers.counted("two", "termination_requested") == 1, "it is taken over")
                assert workers.end() == {"two": 0}
                sent = [(said["signal"], said["answer"]) for said in workers.all("sent", "two")]
                assert sent == [("SIGTERM", "accepted"), ("SIGKILL", "accepted")]
                # By the clock that the lease was given in, nobody acted before its end.
                assert workers.all("sent", "two")[0]["at_boot_ms"] >= row["lease_expires_boot_ms"]
        told = [fact.payload for fact in ledger.history(command.run_id) if fact.type.startswith("run.cancel_dispatch")]
        taken, delivered = told
        assert isinstance(taken, RunCancelDispatchTakenOver)
        assert isinstance(delivered, RunCancelDispatched)
        assert (taken.previous_owner, taken.dispatch_count) == (row["lease_owner"], 2)
        assert row["lease_owner"] != owner
        assert delivered.dispatch_count == 2
        assert ledger.verify().clean


def test_a_worker_that_waits_for_the_file_longer_than_its_lease_sends_nothing(
    tmp_path: Path, marked: Marked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that a claim waits for the file is the holder's own: no lease begins with it (R8.4, R8.7)."""
    assert not marked.living()
    monkeypatch.setenv("RUNFACTS_BUSY_TIMEOUT_MS", "60000")
    file = tmp_path / "ledger.db"
    url = f"sqlite:///{file}"
    with Ledger.open(url) as ledger:
        command = LeavingHost(ledger, tmp_path).leave()
        job = Job("one", url, lease_ms=SHORT_LEASE_MS, grace_ms=200, fault="freeze", phase="claim", step="asked")
        with working(job) as workers:
            command.ask_to_stop(ledger)
            workers.first("reached", "one")
            with closing(sqlite3.connect(file, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                begun_s = elapsed_s()
                workers.thaw("one")
                # The claim is granted in the end, but to one who has no time left for it.
                wait_until(
                    lambda: elapsed_s() - begun_s > SHORT_LEASE_MS / 1_000,
                    "the worker has waited for longer than its lease",
                )
                other.execute("ROLLBACK")
            wait_until(lambda: workers.counted("one", "out_of_time") == 1, "it does not act on it")
            sent = workers.all("sent")
            row = dispatch_of(ledger, command.run_id)
            assert row is not None
            wait_until(lambda: workers.counted("one", "termination_requested") == 1, "a later term does")
            assert workers.end() == {"one": 0}
            assert sent == []
            assert command.signals() == [["SIGTERM"]]
        assert ledger.verify().clean

"""
R6.2, R7.4, R8.8: cancelling goes on through failures of the database.

A server that stops as in a crash while somebody waits for a Run's end, and a disk that is full while a signal is under
way, with real servers, workers and commands.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from left_commands import ANA, LeavingHost, LeftCommand
from process_watch import Marked, marked_environment, wait_until
from runfacts import Actor, AlreadyRequested, DatabaseError, Ledger
from runfacts.domain.cancellation.terms import CancelRequested
from runfacts.infrastructure.database.opening import migrate
from runfacts.testing.postgres import PostgresServer, PostgresVersion
from stages import types
from told import apart
from under_way import UnderWay
from workers import Job, working

LEASE_MS = 4_000
AT_ONCE = 12
MIB = 1 << 20


@pytest.mark.parametrize("version", [16, 18])
def test_who_waits_for_an_end_waits_on_when_the_server_crashes(version: PostgresVersion, tmp_path: Path) -> None:
    with PostgresServer.start(version) as server:
        url = server.create_database()
        migrate(url)
        with Ledger.open(url) as ledger, marked_environment():
            command = LeavingHost(ledger, tmp_path).leave()
            waiting = UnderWay(tmp_path, url, "cancel", command.run_id, "--wait", "60", "--json")
            try:
                wait_until(lambda: types(ledger, command.run_id)[-1] == "run.cancel_requested", "it is asked to stop")
                server.stop_immediately()
                waiting.says("the database cannot be used; waiting on")
                server.restart()
                assert apart("supervise", "--once", url=url).code == 0

                def ended() -> bool:
                    ledger.collect_receipts(actor=Actor.worker("collector"))
                    return ledger.run(command.run_id).finished_at_ms is not None

                wait_until(ended, "the run ends")
                assert waiting.code() == 0
                assert waiting.lines == [{"run_id": command.run_id, "outcome": "accepted", "status": "cancelled"}]
                assert waiting.err.count("waiting on") == 1
            finally:
                waiting.end()


@pytest.mark.parametrize("version", [16, 18])
def test_a_server_that_crashes_under_load_costs_no_second_signal(version: PostgresVersion, tmp_path: Path) -> None:
    with PostgresServer.start(version) as server:
        url = server.create_database()
        migrate(url)
        jobs = [Job(name, url, lease_ms=LEASE_MS) for name in ("one", "two")]
        with Ledger.open(url) as ledger, marked_environment(), working(*jobs) as workers:
            host = LeavingHost(ledger, tmp_path)
            commands = [host.leave() for _ in range(AT_ONCE)]
            for job in jobs:
                workers.owner(job.name)

            def ask(command: LeftCommand) -> None:
                with suppress(DatabaseError):
                    ledger.request_cancellation(command.run_id, actor=ANA)

            with ThreadPoolExecutor(AT_ONCE) as pool:
                asked = [pool.submit(ask, command) for command in commands]
                wait_until(lambda: workers.all("sent"), "a first signal is sent")
                server.stop_immediately()
                for future in asked:
                    future.result()
                wait_until(lambda: all(workers.all("failed", job.name) for job in jobs), "both have met it")
                server.restart()
                again = list(pool.map(lambda command: ledger.request_cancellation(command.run_id, actor=ANA), commands))
            assert {type(answer) for answer in again} <= {CancelRequested, AlreadyRequested}
            for command in commands:
                wait_until(partial(is_delivered, ledger, command.run_id), "it is delivered")
            assert workers.end() == {job.name: 0 for job in jobs}
            for command in commands:
                assert command.signals() == [["SIGTERM"]]
                told = types(ledger, command.run_id)
                assert (told.count("run.cancel_requested"), told.count("run.cancel_dispatched")) == (1, 1)
            assert len(workers.sent("one") + workers.sent("two")) == AT_ONCE
            assert ledger.verify().clean


def is_delivered(ledger: Ledger, run_id: str) -> bool:
    """Tell whether a Run's delivery is settled."""
    return "run.cancel_dispatched" in types(ledger, run_id)


def test_who_waits_for_an_end_in_vain_is_told_of_the_database_that_is_away(tmp_path: Path) -> None:
    with PostgresServer.start(18) as server:
        url = server.create_database()
        migrate(url)
        with Ledger.open(url) as ledger, marked_environment():
            command = LeavingHost(ledger, tmp_path).leave()
            waiting = UnderWay(tmp_path, url, "cancel", command.run_id, "--wait", "2", "--json")
            try:
                wait_until(lambda: types(ledger, command.run_id)[-1] == "run.cancel_requested", "it is asked to stop")
                server.stop_immediately()
                assert waiting.code() == 5
                assert waiting.lines[0]["error"]["code"] == "database_unreachable"
            finally:
                waiting.end()


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """Mount a disk of a few MiB within the block."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={4 * MIB}", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Leave no room on a disk within the block."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (MIB, 4_096, 512):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    yield
    filler.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")
def test_a_disk_that_is_full_while_a_signal_is_under_way_costs_no_second_one(tmp_path: Path, marked: Marked) -> None:
    assert not marked.living()
    with small_disk(tmp_path / "disk") as disk:
        url = f"sqlite:///{disk / 'ledger.db'}"
        with Ledger.open(url) as ledger:
            command = LeavingHost(ledger, tmp_path).leave()
            with full(disk):
                refused = apart("cancel", command.run_id, "--json", url=url)
                assert (refused.code, refused.json["error"]["code"]) == (5, "database_read_only")
                assert types(ledger, command.run_id)[-1] == "run.running"
            command.ask_to_stop(ledger)
            with working(Job("one", url, lease_ms=LEASE_MS, fault="freeze", step="stop:after:proof")) as workers:
                workers.first("reached", "one")
                before = types(ledger, command.run_id)
                with full(disk):
                    workers.thaw("one")
                    wait_until(lambda: workers.counted("one", "error") == 1, "the result cannot be written")
                    wait_until(lambda: workers.all("failed", "one"), "and that is said")
                    assert types(ledger, command.run_id) == before
                wait_until(lambda: workers.counted("one", "already_exited") == 1, "a later term settles it")
                assert workers.end() == {"one": 0}
                assert workers.sent("one") == ["SIGTERM"]
            assert command.signals() == [["SIGTERM"]]
            assert types(ledger, command.run_id)[-2:] == ["run.cancel_dispatch_taken_over", "run.cancel_dispatched"]
            assert ledger.verify().clean

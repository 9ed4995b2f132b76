"""
R11, C19: recovery goes on through failures of the database's server.

PostgreSQL stops as in a crash in the middle of a page, or a synchronous standby takes over there, with real servers:
nothing is lost, nothing is doubled, and the workers go on by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Event, Lock

import pytest

from abandoned import Drainer, NotRunning, abandon, ask, drained, nothing_lost_and_nothing_doubled
from process_watch import wait_until
from runfacts import Ledger
from runfacts.infrastructure.database.opening import migrate
from runfacts.testing.postgres import PostgresServer, PostgresVersion, database_name
from standby import Standby, url_of_both
from waiting import until

COUNT = 200
IN_THE_MIDDLE = 40
"""How many were looked into when the server goes: less than two workers' pages."""
LOST = "SELECT attempt_id FROM facts WHERE type = 'attempt.lost'"
versions = pytest.mark.parametrize("version", [16, 18])
MOMENTS = ["probe", "sql:before:commit", "sql:after:commit"]
moments = pytest.mark.parametrize("moment", MOMENTS)


class Breaking:
    """Breaks something once, amid a page: during a probe, or before or after a commit of what was proven."""

    def __init__(self, moment: str, call: Callable[[], object]) -> None:
        self._moment = moment
        self._call = call
        self._count = 0
        self._lock = Lock()
        self.happened = Event()

    def probed(self, number: int) -> None:
        """See ``NotRunning``."""
        if self._moment == "probe" and number == IN_THE_MIDDLE:
            self._break()

    def steps_of(self, worker: Drainer) -> StepsOf:
        """Give the steps of one worker."""
        return StepsOf(self, worker)

    def reached(self, name: str) -> None:
        """Count what is recorded."""
        if name != self._moment:
            return
        with self._lock:
            self._count += 1
            now = self._count == IN_THE_MIDDLE
        if now:
            self._break()

    def _break(self) -> None:
        self._call()
        self.happened.set()


class StepsOf:
    """Passes on the steps at which a worker records that an Attempt is lost. See ``Steps``."""

    def __init__(self, breaking: Breaking, worker: Drainer) -> None:
        self._breaking = breaking
        self._worker = worker

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        if self._worker.ledger.applying:
            self._breaking.reached(name)


@contextmanager
def drainers(url: str, breaking: Breaking) -> Iterator[list[Drainer]]:
    """Run two workers, of which each has a provider of its own."""
    provider = NotRunning(breaking.probed)
    with ExitStack() as stack:
        workers = []
        for _ in range(2):
            worker = Drainer(url, provider)
            stack.callback(worker.close)
            worker.ledger.database.steps = breaking.steps_of(worker)
            workers.append(worker)
        for worker in workers:
            worker.start()
        yield workers


def goes_on(workers: list[Drainer], then: Callable[[], object]) -> None:
    """Mend what was broken once every worker has met it; nobody else does anything for them."""
    until(lambda: all(worker.failures for worker in workers))
    cycles = [worker.cycles for worker in workers]
    then()
    until(lambda: all(worker.cycles > before + 1 for worker, before in zip(workers, cycles, strict=True)))


@versions
@moments
def test_a_server_that_crashes_in_the_middle_of_a_page_costs_nothing(version: PostgresVersion, moment: str) -> None:
    with PostgresServer.start(version) as server:
        url = server.create_database()
        migrate(url)
        with Ledger.open(url) as ledger:
            attempts = abandon(ledger, COUNT)
            breaking = Breaking(moment, server.stop_immediately)
            with drainers(url, breaking) as workers:
                assert breaking.happened.wait(30)
                goes_on(workers, server.restart)
                wait_until(lambda: drained(url, COUNT), "everything is decided on")
                assert all(worker.goes_on for worker in workers)
                told = [attempt for worker in workers for attempt in worker.ledger.told]
            nothing_lost_and_nothing_doubled(ledger, url, attempts, told)


@versions
@moments
def test_a_standby_that_takes_over_has_everything_that_a_worker_was_told(version: PostgresVersion, moment: str) -> None:
    with PostgresServer.start(version) as leader, Standby.of(leader) as standby:
        at_leader = leader.create_database()
        url = url_of_both(at_leader, leader, standby)
        migrate(url)
        with Ledger.open(url) as ledger:
            attempts = abandon(ledger, COUNT)
            breaking = Breaking(moment, leader.stop_immediately)
            with drainers(url, breaking) as workers:
                assert breaking.happened.wait(30)
                until(lambda: all(worker.failures for worker in workers))
                told_before = [attempt for worker in workers for attempt in worker.ledger.told]
                assert told_before
                # What was answered is on the standby before it is anybody's turn to write there.
                lost = ask(standby.url(database_name(at_leader)), LOST)
                assert set(told_before) <= {attempt for (attempt,) in lost}
                goes_on(workers, standby.promote)
                wait_until(lambda: drained(url, COUNT), "everything is decided on")
                assert all(worker.goes_on for worker in workers)
                told = [attempt for worker in workers for attempt in worker.ledger.told]
            assert leader.pid() is None
            nothing_lost_and_nothing_doubled(ledger, url, attempts, told)

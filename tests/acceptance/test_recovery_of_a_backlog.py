"""R11.8: a backlog is drained by several ledgers of one process, with flat memory and few connections."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from abandoned import Drainer, NotRunning, abandon, ask, drained, nothing_lost_and_nothing_doubled
from benchmarks import backlogs
from process_watch import wait_until
from real_time import RealTime
from runfacts import Ledger
from runfacts.infrastructure.database.engines import APPLICATION_NAME
from runfacts.testing.postgres import PostgresServer

COUNT = 200
LEDGERS = 3
THREADS_EACH = 2
CONNECTIONS = (
    "SELECT count(*) FROM pg_stat_activity"
    f" WHERE datname = current_database() AND application_name = '{APPLICATION_NAME}'"
)
PER_THREAD = 2
"""What a worker needs at once: one connection to work on, and one to be woken by."""
MEBIBYTE = 1 << 20
PAGE = 32
SAMPLES = 20


@pytest.fixture(params=["16", "18"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database on PostgreSQL, in real time."""
    databases = RealTime(tmp_path, request.getfixturevalue(f"postgres_{request.param}"))
    yield databases.create()
    databases.drop()


def connections(url: str) -> int:
    """Count the connections that the ledgers of a database have open."""
    ((count,),) = ask(url, CONNECTIONS)
    return int(count)


def test_several_pools_in_one_process_drain_one_backlog_together(url: str) -> None:
    with Ledger.open(url) as ledger:
        attempts = abandon(ledger, COUNT)
    provider = NotRunning()
    sampled = []
    with ExitStack() as stack:
        pools = []
        for _ in range(LEDGERS):
            pool = Drainer(url, provider, recovery_page=16)
            stack.callback(pool.close)
            pool.supervisions += [pool.supervision(provider) for _ in range(THREADS_EACH - 1)]
            pools.append(pool)
        for pool in pools:
            pool.start()

        def over() -> bool:
            sampled.append(connections(url))
            return drained(url, COUNT)

        wait_until(over, "everything is decided on")
        idle = connections(url)
        told = [attempt for pool in pools for attempt in pool.ledger.told]
        assert [pool.failures for pool in pools] == [[]] * LEDGERS
        assert all(pool.ledger.told for pool in pools)
        assert all(pool.goes_on for pool in pools)
    # Without failures every one is looked into and recorded once, and by whom does not matter.
    assert provider.asked == dict.fromkeys(attempts, 1)
    assert sorted(told) == sorted(attempts)
    # And one for each ledger that follows the facts for its views.
    assert max(sampled) <= LEDGERS * (THREADS_EACH * PER_THREAD + 1)
    assert idle <= max(sampled)
    wait_until(lambda: connections(url) == 0, "the server has seen all of them close")
    assert ask(url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]
    with Ledger.open(url) as ledger:
        nothing_lost_and_nothing_doubled(ledger, url, attempts, told)


@dataclass
class Flat:
    """What is sampled while a backlog is drained."""

    resident: list[int] = field(default_factory=list)
    """Bytes of the process."""
    traced: list[int] = field(default_factory=list)
    """Bytes that Python holds, where that is traced."""
    connections: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def sample(self, ledger: Ledger) -> None:
        """Look once."""
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.resident.append(pages * os.sysconf("SC_PAGE_SIZE"))
        self.traced.append(tracemalloc.get_traced_memory()[0])
        pool = ledger.database.engine.pool
        self.connections.append(pool.checkedin() + pool.checkedout())  # type: ignore[attr-defined]  # of a QueuePool
        self.threads.append(threading.active_count())

    def grown(self, values: list[int]) -> int:
        """By how much the highest of the last quarter exceeds that of the quarter before it."""
        quarter = len(values) // 4
        return max(values[-quarter:]) - max(values[-2 * quarter : -quarter])

    def __str__(self) -> str:
        """The figures, for a report."""
        some = range(0, len(self.resident), max(1, len(self.resident) // 8))
        mebibytes = ", ".join(f"{self.resident[at] / MEBIBYTE:.1f}/{self.traced[at] / MEBIBYTE:.2f}" for at in some)
        return f"MiB {mebibytes}; connections {set(self.connections)}, threads {set(self.threads)}"


@pytest.mark.parametrize(
    ("database", "count"),
    [
        ("sqlite", 1_280),
        ("postgresql-18", 1_280),
        pytest.param("sqlite", 100_000, marks=pytest.mark.long),
        pytest.param("postgresql-18", 100_000, marks=pytest.mark.long),
    ],
)
@pytest.mark.timeout(3_600)
def test_memory_and_connections_stay_flat_over_a_backlog(
    request: pytest.FixtureRequest, tmp_path: Path, database: str, count: int
) -> None:
    """Each Run's ids and histories are forgotten again; the histories that are kept are full after 512 (R1.6)."""
    server: PostgresServer | None = None
    if database != "sqlite":
        server = request.getfixturevalue(database.replace("postgresql-", "postgres_"))
    databases = RealTime(tmp_path, server)
    url = databases.create()
    Ledger.open(url).close()
    backlogs.fill(url, count)
    flat, claimed = Flat(), 0
    tracemalloc.start()
    try:
        with Ledger.open(url, recovery_page=PAGE) as ledger:
            # It keeps nothing of what it was asked, since that is what is measured.
            provider = NotRunning(executor_type="bench", keeps=False)
            worker = ledger.supervise(providers=[provider], local=False)
            while claimed < count:
                for _ in range(max(1, count // PAGE // SAMPLES)):
                    report = worker.cycle()
                    assert report.failed == 0
                    claimed += report["recovery"]["claimed"]
                flat.sample(ledger)
            while worker.cycle()["retry"]["claimed"]:
                pass
    finally:
        tracemalloc.stop()
    assert claimed == count
    assert flat.grown(flat.traced) < MEBIBYTE, flat
    assert flat.grown(flat.resident) < 8 * MEBIBYTE, flat
    assert len(set(flat.threads)) == 1
    assert max(flat.connections) == 1
    databases.drop()

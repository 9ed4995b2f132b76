"""Case C39: somebody else's reader holds a snapshot of a SQLite ledger open while facts are appended (R4.4, R15)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from runfacts import Ledger
from stages import created, finished
from told import Told

LIMIT = 1 << 20
FACTS_OF_A_RUN = 9


def appended_for(ledger: Ledger, count: int, held_s: float) -> int:
    """Append ``count`` facts, and go on until the reader has held its snapshot for long enough; how many were."""
    until = time.monotonic() + held_s
    done = 0
    while done < count or time.monotonic() < until:
        finished(ledger)
        done += FACTS_OF_A_RUN
    return done


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("count", "held_s"), [(450, 0.0), pytest.param(50_000, 60.0, marks=pytest.mark.long)])
def test_c39_a_reader_that_stays_open_makes_the_log_grow_and_nobody_fail(
    tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch, count: int, held_s: float
) -> None:
    """C39: writers never fail, the log's size is told and named, and the file shrinks when the reader is gone."""
    file = tmp_path / "ledger.db"
    log = file.with_name("ledger.db-wal")
    monkeypatch.setenv("RUNFACTS_DB", f"sqlite:///{file}")
    monkeypatch.setenv("RUNFACTS_WAL_LIMIT_BYTES", str(LIMIT))

    def wal_check() -> tuple[bool, str]:
        checks = {check["name"]: check for check in told("doctor", "--json").json["checks"]}
        return checks["wal"]["ok"], checks["wal"]["detail"]

    with Ledger.open(f"sqlite:///{file}", wal_limit_bytes=LIMIT) as ledger:
        created(ledger)
        # Our own readers pause for as long, each in the middle of what it gives.
        own = [ledger.export_runs(), ledger.facts_of(finished(ledger).run_id), ledger.heads()]
        for paused in own:
            assert len(list(islice(paused, 1))) == 1
        assert wal_check()[0]
        reader = sqlite3.connect(file, isolation_level=None)
        reader.execute("BEGIN")
        (seen,) = reader.execute("SELECT count(*) FROM facts").fetchone()
        done = appended_for(ledger, count, held_s)
        grown = log.stat().st_size
        assert grown > LIMIT
        ok, detail = wal_check()
        assert not ok
        assert detail.startswith(f"{grown / LIMIT:.1f} MiB of at most 1: checkpoint starvation")
        # It still has its snapshot, and nothing is missing beside it.
        assert reader.execute("SELECT count(*) FROM facts").fetchone() == (seen,)
        assert len(list(ledger.heads())) == 2 + done // FACTS_OF_A_RUN
        reader.close()
        # The next commit finds the whole log written back, and the one after it begins the file anew.
        _until(lambda: log.stat().st_size <= LIMIT, lambda: created(ledger))
        assert wal_check()[0]
        assert ledger.verify().clean
        for paused in own:
            assert list(paused)


def _until(reached: Callable[[], bool], act: Callable[[], object]) -> None:
    for _ in range(3):
        act()
        if reached():
            return
    raise AssertionError("the log has not shrunk")

"""freezegun follows the manual clock (R5.4)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

from runfacts import Actor, Ledger
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.freezing import frozen


def test_python_sees_the_clocks_wall_time() -> None:
    clock = ManualClock()
    with frozen(clock):
        assert datetime.now(UTC) == datetime(2026, 1, 1, tzinfo=UTC)
        clock.advance(90_000)
        assert datetime.now(UTC) == datetime(2026, 1, 1, 0, 1, 30, tzinfo=UTC)
        clock.jump_wall(-30_000)
        assert time.time() == EPOCH_MS / 1_000 + 60
    assert datetime.now(UTC).year >= 2026
    clock.advance(1)


def test_a_ledger_and_the_code_around_it_agree(tmp_path: Path) -> None:
    clock = ManualClock()
    with Ledger.open(f"sqlite:///{tmp_path}/runs.db", clock=clock) as ledger, frozen(clock):
        clock.advance(5_000)
        run = ledger.create(actor=Actor.user("ana"), task="t").run
        assert run.created_at_ms == time.time_ns() // 1_000_000 == EPOCH_MS + 5_000

"""R9.3: a host that cannot do what it was asked tries on, and does not flood its stderr with that."""

from __future__ import annotations

from runfacts.domain.cancellation.supervisor import Diagnostic
from runfacts.infrastructure.supervision import Seldom

FULL = Diagnostic("own_runs", "DatabaseFull", "the disk is full", "run-1")
BUSY = Diagnostic("own_runs", "DatabaseBusy", "locked", "run-1")


def test_the_same_failure_is_told_once_in_ten_seconds_and_another_one_at_once() -> None:
    now_s = 0.0
    told: list[tuple[float, Diagnostic]] = []
    seldom = Seldom(lambda diagnostic: told.append((now_s, diagnostic)), lambda: now_s)
    for tenths in range(250):
        now_s = tenths / 10
        seldom(FULL)
        if tenths == 42:
            seldom(BUSY)
    assert told == [(0.0, FULL), (4.2, BUSY), (10.0, FULL), (20.0, FULL)]

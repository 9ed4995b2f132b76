"""How long a follower waits before it looks by itself (R3.9)."""

from __future__ import annotations

import pytest

from runfacts.domain.feeds import Waiting
from runfacts.infrastructure.database import wakeups
from runfacts.infrastructure.database.wakeups import Pace


@pytest.fixture
def now_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [100.0]
    monkeypatch.setattr("runfacts.infrastructure.database.wakeups.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(("dialect", "net_s"), [("postgresql", 1.0), ("sqlite", 0.1)])
def test_after_a_wake_up_it_looks_soon_for_longer_than_a_writer_keeps_quiet(
    now_s: list[float], dialect: str, net_s: float
) -> None:
    pace = Pace(dialect, 1_000)
    assert pace.pause_s(None) == 0.01
    now_s[0] = 100.09
    assert now_s[0] - 100.0 > wakeups.QUIET_S
    assert pace.pause_s(None) == 0.01
    now_s[0] = 100.11
    assert pace.pause_s(None) == net_s
    pace.woken()
    assert pace.pause_s(None) == 0.01


@pytest.mark.parametrize(
    ("waited_ms", "pause_s"), [(0, 0.005), (40, 0.005), (200, 0.02), (5_000, 0.1), (3_600_000, 0.1)]
)
def test_at_a_gap_it_looks_soon_and_less_often_the_longer_it_takes(
    now_s: list[float], waited_ms: int, pause_s: float
) -> None:
    pace = Pace("postgresql", 1_000)
    now_s[0] = 200.0
    assert pace.pause_s(Waiting(7, waited_ms, 1)) == pytest.approx(pause_s)


def test_it_never_waits_longer_than_it_is_told(now_s: list[float]) -> None:
    pace = Pace("postgresql", 10)
    assert pace.pause_s(None) == 0.01
    assert pace.pause_s(Waiting(7, 3_600_000, 1)) == 0.01
    now_s[0] = 200.0
    assert pace.pause_s(None) == 0.01

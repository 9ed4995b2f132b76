"""The manual clock: three times, moved together or one by one (R5.1, R5.2, R5.4)."""

from __future__ import annotations

import uuid

import pytest

from runfacts.testing.clock import EPOCH_MS, ManualClock


def times(clock: ManualClock) -> tuple[int, int, int]:
    return clock.wall_ms() - EPOCH_MS, clock.boot_ms() - 3_600_000, clock.database_ms() - EPOCH_MS


def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    assert times(clock) == (0, 0, 0)
    assert times(clock) == (0, 0, 0)
    assert EPOCH_MS == 1_767_225_600_000


def test_time_passes_everywhere() -> None:
    clock = ManualClock()
    clock.advance(250)
    clock.advance(0)
    assert times(clock) == (250, 250, 250)


def test_time_does_not_go_back() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)
    assert times(clock) == (0, 0, 0)


def test_a_jump_of_the_wall_clock_touches_nothing_else() -> None:
    clock = ManualClock()
    clock.jump_wall(-3_600_000)
    assert times(clock) == (-3_600_000, 0, 0)


def test_a_jump_of_the_databases_clock_touches_nothing_else() -> None:
    clock = ManualClock()
    clock.jump_database(-5)
    assert times(clock) == (0, 0, -5)


def test_a_reboot_gives_another_boot_id_and_a_boot_clock_that_begins_anew() -> None:
    clock = ManualClock()
    first = clock.boot_id()
    clock.reboot()
    assert clock.boot_ms() == 0
    assert clock.wall_ms() == EPOCH_MS
    assert clock.boot_id() != first
    assert [str(uuid.UUID(item)) for item in (first, clock.boot_id())] == [first, clock.boot_id()]


def test_whoever_follows_hears_the_databases_time_at_once_and_after_every_move() -> None:
    clock = ManualClock(1_000)
    heard: list[int] = []
    clock.drive(heard.append)
    clock.advance(5)
    clock.jump_wall(100)
    clock.jump_database(-1)
    clock.release(heard.append)
    clock.advance(7)
    # A jump of the wall clock is told, too, and is none of the database's.
    assert heard == [1_000, 1_005, 1_005, 1_004]

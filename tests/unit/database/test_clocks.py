"""The boot clock is only trusted where it means the same to every process of the host (R5.2)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runfacts.domain.errors import UnsupportedPlatform
from runfacts.infrastructure.database.clocks import SystemClock, read_boot_id, refuse_time_offset

BOOT_ID = "01890000-0000-4000-8000-0000000000ff"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A procfs with what the clock looks at."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text(f"{BOOT_ID}\n")
    (tmp_path / "self").mkdir()
    (tmp_path / "self/timens_offsets").write_text("monotonic           0         0\nboottime            0         0\n")
    return tmp_path


def test_the_clock_of_this_machine_agrees_with_the_kernel() -> None:
    clock = SystemClock()
    assert abs(clock.wall_ms() - time.time() * 1_000) < 10_000
    assert abs(clock.boot_ms() - time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000) < 10_000
    assert clock.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_boot_id_is_read_as_it_is(proc: Path) -> None:
    assert read_boot_id(proc) == BOOT_ID
    assert SystemClock(proc).boot_id() == BOOT_ID


def test_a_missing_or_broken_boot_id_is_refused(proc: Path) -> None:
    (proc / "sys/kernel/random/boot_id").write_text("soon\n")
    with pytest.raises(UnsupportedPlatform, match="holds no UUID"):
        read_boot_id(proc)
    (proc / "sys/kernel/random/boot_id").unlink()
    with pytest.raises(UnsupportedPlatform, match="the boot id"):
        read_boot_id(proc)


def test_a_boot_id_that_something_is_mounted_over_is_refused(proc: Path) -> None:
    # A link leads to another file system as a bind mount does.
    path = proc / "sys/kernel/random/boot_id"
    path.unlink()
    path.symlink_to("/proc/sys/kernel/random/boot_id")
    assert Path("/proc").stat().st_dev != proc.stat().st_dev
    with pytest.raises(UnsupportedPlatform, match="mounted over"):
        read_boot_id(proc)


@pytest.mark.parametrize(
    "offsets",
    ["monotonic 0 0\nboottime 3600 0\n", "monotonic 0 0\nboottime -1 0\n", "1 0 0\n7 0 500\n"],
)
def test_a_time_namespace_with_an_offset_is_refused(proc: Path, offsets: str) -> None:
    (proc / "self/timens_offsets").write_text(offsets)
    with pytest.raises(UnsupportedPlatform, match="time namespace"):
        refuse_time_offset(proc)


def test_a_shifted_monotonic_clock_and_a_kernel_without_time_namespaces_are_fine(proc: Path) -> None:
    (proc / "self/timens_offsets").write_text("monotonic 3600 0\nboottime 0 0\n")
    refuse_time_offset(proc)
    (proc / "self/timens_offsets").unlink()
    refuse_time_offset(proc)

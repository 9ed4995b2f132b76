"""The boot clock is only trusted where it means the same to every process of the host (R5.2)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from runfacts.domain.errors import DatabaseUnreachable, UnsupportedPlatform
from runfacts.infrastructure.database.clocks import SystemClock
from runfacts.infrastructure.processes.procfs import ProcFs


@pytest.fixture
def proc(tmp_path: Path) -> ProcFs:
    """A procfs with what the clock looks at; only the boot id is the kernel's."""
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").symlink_to("/proc/sys/kernel/random/boot_id")
    (tmp_path / "self").mkdir()
    return ProcFs(tmp_path)


def offsets(proc: ProcFs, text: str) -> None:
    (proc.root / "self/timens_offsets").write_text(text)


def test_the_clock_of_this_machine_agrees_with_the_kernel() -> None:
    clock = SystemClock()
    assert abs(clock.wall_ms() - time.time() * 1_000) < 10_000
    assert abs(clock.boot_ms() - time.clock_gettime(time.CLOCK_BOOTTIME) * 1_000) < 10_000
    assert clock.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_boot_id_that_something_is_mounted_over_is_refused(proc: ProcFs, tmp_path: Path) -> None:
    path = tmp_path / "sys/kernel/random/boot_id"
    (tmp_path / "fake").write_text("01890000-0000-4000-8000-0000000000ff\n")
    # A link leads to another file as a mount does: of another file system, or procfs's own one that looks alike.
    for other in (tmp_path / "fake", Path("/proc/sys/kernel/random/uuid"), Path("/proc/self/cmdline")):
        path.unlink()
        path.symlink_to(other)
        with pytest.raises(UnsupportedPlatform, match="the boot id"):
            SystemClock(proc).boot_id()
        with pytest.raises(UnsupportedPlatform, match="the boot id"):
            SystemClock(proc).boot_ms()


@pytest.mark.parametrize(
    "shifted",
    ["monotonic 0 0\nboottime 3600 0\n", "monotonic 0 0\nboottime -1 0\n", "1 0 0\n7 0 500\n"],
)
def test_a_time_namespace_with_an_offset_is_refused(proc: ProcFs, shifted: str) -> None:
    offsets(proc, shifted)
    with pytest.raises(DatabaseUnreachable, match="time namespace"):
        SystemClock(proc).boot_id()


def test_a_shifted_monotonic_clock_and_a_kernel_without_time_namespaces_are_fine(proc: ProcFs) -> None:
    expected = SystemClock().boot_id()
    assert SystemClock(proc).boot_id() == expected
    offsets(proc, "monotonic 3600 0\nboottime 0 0\n")
    assert SystemClock(proc).boot_id() == expected


def test_the_wall_clock_is_there_without_a_boot_clock(tmp_path: Path) -> None:
    assert SystemClock(ProcFs(tmp_path)).wall_ms() > 0

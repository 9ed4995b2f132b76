"""What tests of real local processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from process_bench import Bench
from process_watch import Marked, marked_environment
from runfacts.infrastructure.processes.launcher import Launcher
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import Places
from stop_scene import RecordingPidfds, StopScene


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose processes are all gone at the end of the test."""
    places = Places.beside_file(tmp_path / "ledger.db")
    places.make()
    with marked_environment() as marked:
        yield Bench(Launcher(MachineIdentity.of_this_process(), gate_timeout_ms=60_000), places, tmp_path, marked)


@pytest.fixture
def marked() -> Iterator[Marked]:
    """A mark; at the end nothing that bears it is left."""
    with marked_environment() as found:
        yield found


@pytest.fixture
def scene(tmp_path: Path, marked: Marked) -> Iterator[StopScene]:
    """A scene whose processes all end with the test."""
    found = StopScene(tmp_path, MachineIdentity.of_this_process())
    yield found
    marked.end()
    found.end()


@pytest.fixture
def pidfds() -> RecordingPidfds:
    """What remembers the signals that were sent."""
    return RecordingPidfds()


@pytest.fixture(params=[True, False], ids=["group flag", "member by member"])
def by_group(request: pytest.FixtureRequest) -> bool:
    """Whether the kernel's group flag is used."""
    return bool(request.param)

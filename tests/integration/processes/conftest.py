"""What tests of real local processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from process_bench import Bench
from process_watch import marked_environment
from runfacts.infrastructure.processes.launcher import Launcher
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import Places


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose processes are all gone at the end of the test."""
    places = Places.beside_file(tmp_path / "ledger.db")
    places.make()
    with marked_environment() as marked:
        yield Bench(Launcher(MachineIdentity.of_this_process(), gate_timeout_ms=60_000), places, tmp_path, marked)

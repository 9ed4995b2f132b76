"""Clocks of this machine whose wall time somebody sets while workers run."""

from __future__ import annotations

import os
from pathlib import Path

from runfacts.infrastructure.database.clocks import SystemClock


class SteppedClock(SystemClock):
    """A ``Clock`` whose wall time is off by what a file says, in milliseconds: one step for all processes at once."""

    def __init__(self, file: Path) -> None:
        """Read ``file`` at every look; it is off by nothing until somebody steps it."""
        super().__init__()
        self._file = file

    def wall_ms(self) -> int:
        """See ``Clock``."""
        off_ms = int(self._file.read_text()) if self._file.exists() else 0
        return super().wall_ms() + off_ms


def step(file: Path, ms: int) -> None:
    """Set the wall clock of whoever reads ``file`` by ``ms``, forward or back; nobody sees a part of it."""
    made = file.with_suffix(".made")
    made.write_text(str(ms))
    os.replace(made, file)  # noqa: PTH105 - says what matters here

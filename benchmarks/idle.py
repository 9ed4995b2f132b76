"""
Idle: what a supervisor does to a SQLite ledger in which nothing is to be done.

The ledger is not empty: a Run is running, another was asked to stop and delivered to. Per cycle it is counted what the
process wrote to any file, how many rows its connections changed, and how many statements it ran; the statements of
delivering cancellations also alone, since that is the duty of which every worker has one. The same is counted per
startup gate, which lets new Runs through where there is nothing to recover.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.delivery_sides import pairs
from benchmarks.figures import Figure
from benchmarks.ledger_sides import begin_run, open_ledger
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.supervision import Duty

CASE: Final = "a cycle of an idle supervisor"
GATE: Final = "a startup gate with nothing to recover"


@dataclass(slots=True)
class _Counted:
    """Counts the statements that the product runs. See ``Steps``."""

    statements: int = 0

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        self.statements += name.startswith("sql:before:")


def measure(url: str, cycles: int) -> Iterator[Figure]:
    """Run idle cycles on a SQLite ledger."""
    side = pairs(url)
    for _ in side.prepare(1):
        pass
    side.close()
    counted = _Counted()
    with open_ledger(url) as ledger:
        begin_run(ledger)
        ledger.database.steps = counted
        acts: list[tuple[str, str, Callable[[], object]]] = [
            (CASE, "sqlite, cancellation alone", ledger.supervise(duties=(Duty.CANCELLATION,)).cycle),
            (CASE, "sqlite, all duties", ledger.supervise().cycle),
            (GATE, "sqlite", ledger.supervise().admit),
        ]
        looks: list[tuple[str, Callable[[], int]]] = [
            ("bytes written", _written),
            ("rows changed", lambda: _changed_rows(ledger)),
            ("statements", lambda: counted.statements),
        ]
        for case, setting, act in acts:
            # The first time a worker says that it is there.
            act()
            before = [look() for _, look in looks]
            for _ in range(cycles):
                act()
            for (unit, look), earlier in zip(looks, before, strict=True):
                yield Figure.of(case, setting, "ledger", unit, [(look() - earlier) / cycles])


def _written() -> int:
    """Give the bytes that this process has written so far."""
    lines = Path(f"/proc/{os.getpid()}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))


def _changed_rows(ledger: Ledger) -> int:
    """Give the rows that the only connection of an idle ledger has changed so far."""
    fairy = ledger.database.engine.raw_connection()
    try:
        connection: Any = fairy.driver_connection
        changed: int = connection.total_changes
        return changed
    finally:
        fairy.close()

"""Goals: what the figures are meant to be, as the tables of docs/performance.md say them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks import idle, long_reads, reaction, recovery_sides, trail_sides
from benchmarks.figures import RATIO

ONE: Final = "one-fact command"
_SQL: Final = "ledger : sql"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that the product means to reach: at least ``bound``, or at most where ``at_most`` says so."""

    case: str
    setting: str
    side: str
    bound: float
    unit: str = RATIO
    at_most: bool = False

    @property
    def key(self) -> str:
        """The key of the figure."""
        return f"{self.case}, {self.setting}, {self.side}, {self.unit}"

    def key_with(self, writers: str) -> str:
        """The key of the figure with so many writers."""
        return f"{self.case}, {self.setting}, {writers}, {self.side}, {self.unit}"

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.case}, {self.setting}, {self.side}"

    @property
    def words(self) -> str:
        """The goal in words."""
        unit = f" {self.unit}" if self.at_most else ""
        return f"{'≤' if self.at_most else '≥'} {self.bound}{unit}"

    def reached_by(self, value: float) -> bool:
        """Whether a value reaches it."""
        return value <= self.bound if self.at_most else value >= self.bound


_WRITERS: Final = ("1 writer", "4 writers", "16 writers")
_PAIR: Final = "claim and settle"
_CROWD: Final = 0.83
"""Within 1.2 times as long."""
_THIRD: Final = 0.33
"""Within three times as long."""


def _at_most(case: str, setting: str, bound: int, unit: str) -> Goal:
    return Goal(case, setting, "ledger", bound, unit, at_most=True)


GOALS: Final = (
    Goal(ONE, "postgresql, disk, 1 writer", _SQL, 0.6),
    Goal(ONE, "postgresql, disk, 4 writers", _SQL, 0.55),
    Goal(ONE, "postgresql, disk, 16 writers", _SQL, 0.5),
    Goal(ONE, "postgresql, disk, 16 writers", "ledger : recorder", 2.5),
    *(Goal(ONE, f"sqlite, disk, {writers}", _SQL, 0.5) for writers in _WRITERS),
    *(Goal(ONE, f"postgresql, RAM disk, {writers}", _SQL, 0.5) for writers in _WRITERS),
    *(Goal(ONE, f"sqlite, RAM disk, {writers}", _SQL, 0.35) for writers in _WRITERS),
    Goal("replay", "sqlite, RAM disk, 1 writer", "replayed : decoded", 0.5),
    Goal("replay", "postgresql, RAM disk, 1 writer", "replayed : decoded", 0.5),
    *(
        Goal(f"{trail_sides.CASE}, {name}", f"{dialect}, RAM disk, 1 writer", "ledger : by hand", _THIRD)
        for dialect in ("sqlite", "postgresql")
        for name in trail_sides.SEARCHES
    ),
    *(
        Goal(case, dialect, "peak memory, many : few", 1.2, at_most=True)
        for case in (long_reads.VERIFY, long_reads.EXPORT)
        for dialect in ("sqlite", "postgresql")
    ),
    *(
        Goal(long_reads.REBUILD, dialect, f"{view} : decoded", 0.5)
        for dialect in ("sqlite", "postgresql")
        for view in ("statistics", "stop_proof")
    ),
    Goal(_PAIR, "sqlite, disk, 1 writer", _SQL, 0.5),
    Goal(_PAIR, "postgresql, disk, 1 writer", _SQL, 0.5),
    Goal(recovery_sides.LOST, "sqlite, disk, 1 writer", _SQL, 0.5),
    Goal(recovery_sides.LOST, "postgresql, disk, 1 writer", _SQL, 0.5),
    *(
        Goal(case, f"{dialect}, RAM disk, 1 writer", "many : few", _CROWD)
        for case in (
            "page of due dispatches",
            "claim in a crowd",
            recovery_sides.LOOKED_FOR,
            recovery_sides.CLAIMED,
        )
        for dialect in ("sqlite", "postgresql")
    ),
    _at_most(reaction.CASE, "sqlite, one process", 10, "ms"),
    _at_most(reaction.CASE, "postgresql, one process", 10, "ms"),
    _at_most(reaction.CASE, "postgresql, two processes", 10, "ms"),
    _at_most(
        reaction.CASE,
        f"sqlite, two processes, a look each {reaction.INTERVAL_MS} ms",
        reaction.INTERVAL_MS + 10,
        "ms",
    ),
    _at_most(idle.CASE, "sqlite, cancellation alone", 0, "bytes written"),
    _at_most(idle.CASE, "sqlite, cancellation alone", 0, "rows changed"),
    _at_most(idle.CASE, "sqlite, cancellation alone", 1, "statements"),
    _at_most(idle.CASE, "sqlite, all duties", 0, "bytes written"),
    _at_most(idle.CASE, "sqlite, all duties", 0, "rows changed"),
    _at_most(idle.GATE, "sqlite", 0, "bytes written"),
    _at_most(idle.GATE, "sqlite", 0, "rows changed"),
)
"""What single figures are meant to be."""

STEADY: Final = tuple(Goal(_PAIR, f"postgresql, {place}", "ledger", 0.9, "pairs/s") for place in ("disk", "RAM disk"))
"""What the rate of eight workers is meant to be, as a part of that of one."""

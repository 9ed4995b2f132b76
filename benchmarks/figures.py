"""Figures: what was measured, over all turns, and the ratios between sides that took turns."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its median over the turns, and the lowest and highest turn."""

    case: str
    setting: str
    """Where it was measured: database, place, number of writers."""
    side: str
    """Who was measured, or for a ratio both: ``ledger : sql``."""
    unit: str
    median: float
    low: float
    high: float
    turns: int

    @classmethod
    def of(cls, case: str, setting: str, side: str, unit: str, values: Sequence[float]) -> Self:
        """Sum up the values of all turns."""
        return cls(case, setting, side, unit, statistics.median(values), min(values), max(values), len(values))

    @property
    def key(self) -> str:
        """What the figure is called in a baseline."""
        return f"{self.case}, {self.setting}, {self.side}, {self.unit}"


RATIO = "ratio"
"""The unit of a ratio."""


@dataclass(slots=True)
class Report:
    """Everything that one run of the bench found."""

    machine: Mapping[str, Any]
    quick: bool
    figures: list[Figure] = field(default_factory=list)
    fsync_us: list[dict[str, Any]] = field(default_factory=list)
    """How long a flush took before and after each case."""
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Give what a file holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, read: Mapping[str, Any]) -> Self:
        """Read what ``as_json`` gave."""
        figures = [Figure(**figure) for figure in read["figures"]]
        return cls(read["machine"], read["quick"], figures, list(read["fsync_us"]), list(read["notes"]))


def figures_of_turns(
    case: str, setting: str, unit: str, rates: Mapping[str, Sequence[float]], opponents: Sequence[str]
) -> Iterator[Figure]:
    """Give each side's figure, then the ratios of the first side to its opponents, turn by turn."""
    for side, values in rates.items():
        yield Figure.of(case, setting, side, unit, values)
    ours, *_ = rates
    for opponent in opponents:
        ratios = [own / other for own, other in zip(rates[ours], rates[opponent], strict=True)]
        yield Figure.of(case, setting, f"{ours} : {opponent}", RATIO, ratios)

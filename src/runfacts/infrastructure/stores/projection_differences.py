"""
Verifying projections: what a rebuild would give is computed, and every difference is named (R14.2).

Nothing is written for it. Facts up to a checkpoint never change, so a view as it was at one moment can be compared
with those facts at leisure: what it knows of a Run together with that Run, its totals at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runfacts.domain.facts import Fact
from runfacts.domain.views import Difference
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.differences import difference
from runfacts.infrastructure.stores.generations import live_of, read_generations
from runfacts.infrastructure.stores.projection_reports import day_of
from runfacts.infrastructure.stores.projection_views import VIEWS, View
from runfacts.projections.folding import Counts, Fold, Place, Standing, add_counts

_KIND: Final = "projection"


@dataclass(frozen=True, slots=True)
class SeenInView:
    """What a view says of one Run, and up to which position."""

    view: View
    position: int
    standing: Standing[Any] | None


@dataclass(slots=True)
class _Whole:
    """A whole view as it was at one moment, and what facts up to then amount to."""

    position: int
    recorded: dict[Place, Counts]
    recorded_runs: int
    recomputed: dict[Place, Counts]
    recomputed_runs: int = 0


class ProjectionCheck:
    """Compares projections with facts, Run by Run."""

    def __init__(self, database: Database, *, whole: bool) -> None:
        """With ``whole`` all Runs will come, and what they add up to is compared, too."""
        self._whole: dict[str, _Whole] = {}
        if not whole:
            return
        for view in VIEWS.values():
            with database.snapshot() as reading:
                live = live_of(read_generations(reading, view.name))
                if live is not None:
                    totals, runs = view.totals(reading, live.number), view.count_runs(reading, live.number)
                    self._whole[view.name.value] = _Whole(live.position, totals, runs, {})

    def read(self, reading: Reading, run_ids: Sequence[str]) -> dict[str, list[SeenInView]]:
        """Read what every view says of some Runs, in the snapshot in which their facts are read."""
        found: dict[str, list[SeenInView]] = {run_id: [] for run_id in run_ids}
        named = [run_id for run_id in run_ids if run_id.isascii()]
        for view in VIEWS.values():
            live = live_of(read_generations(reading, view.name))
            if live is not None:
                standing = view.standing(reading, live.number, named)
                for run_id in named:
                    found[run_id].append(SeenInView(view, live.position, standing.get(run_id)))
        return found

    def of_run(self, run_id: str, facts: Iterable[Fact], seen: Iterable[SeenInView]) -> Iterator[Difference]:
        """Compare what was read of a Run with its facts."""
        recorded = [fact for fact in facts if fact.position is not None]
        for one in seen:
            fold = _folded(one.view, recorded, one.position)
            yield from _standing_differences(one, run_id, fold.runs.get(run_id))
            whole = self._whole.get(one.view.name.value)
            if whole is not None:
                if whole.position != one.position:
                    fold = _folded(one.view, recorded, whole.position)
                whole.recomputed_runs += len(fold.runs)
                for place, counts in fold.totals.items():
                    add_counts(whole.recomputed.setdefault(place, {}), counts)

    def of_totals(self) -> Iterator[Difference]:
        """Compare what all Runs add up to, once all have come."""
        for name, whole in self._whole.items():
            if whole.recorded_runs != whole.recomputed_runs:
                yield difference("", _KIND, f"{name} runs", whole.recorded_runs, whole.recomputed_runs)
            for place in sorted(whole.recorded.keys() | whole.recomputed.keys()):
                recorded, recomputed = whole.recorded.get(place, {}), whole.recomputed.get(place, {})
                where = f"{name} {day_of(place[0])} {place[1]} {place[2]}"
                for column in sorted(recorded.keys() | recomputed.keys()):
                    was, would = recorded.get(column, 0), recomputed.get(column, 0)
                    if was != would:
                        yield difference("", _KIND, f"{where} {column}", was, would)


def _folded(view: View, facts: Iterable[Fact], position: int) -> Fold[Any]:
    fold = Fold(view.projection)
    for fact in facts:
        if (fact.position or 0) <= position:
            fold.take(fact)
    return fold


def _standing_differences(seen: SeenInView, run_id: str, recomputed: Standing[Any] | None) -> Iterator[Difference]:
    recorded, name = seen.standing, seen.view.name.value
    if recorded is None or recomputed is None:
        if recorded is not recomputed:
            was, would = (None if one is None else one.sequence for one in (recorded, recomputed))
            yield difference(run_id, _KIND, f"{name} sequence", was, would)
        return
    if recorded.sequence != recomputed.sequence:
        yield difference(run_id, _KIND, f"{name} sequence", recorded.sequence, recomputed.sequence)
    for column in seen.view.columns:
        was, would = getattr(recorded.state, column), getattr(recomputed.state, column)
        if was != would:
            yield difference(run_id, _KIND, f"{name} {column}", was, would)

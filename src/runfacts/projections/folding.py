"""
Folding facts into a view (R1.4, R14.1).

A projection says what one fact changes in what the view knows of its Run, its ``state``, and what it adds to totals.
``Fold`` takes one fact after another, each Run's by ``sequence``, and says what has become of all that it was given.
It is the same for a live view, for one that is rebuilt and for ``verify``, so that these cannot differ.

What cannot be applied is set aside, with all later facts of its Run, which would otherwise be applied to a state that
lacks something. Other Runs go on. A fact of a type or version that this release does not know changes nothing and is
counted; it is kept where facts are (R3.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from runfacts.domain.facts import MALFORMED, Fact, UnknownPayload
from runfacts.domain.limits import TIME_MAX
from runfacts.domain.projecting import ProjectionName
from runfacts.domain.texts import NAME_MAX

DAY_MS: Final = 86_400_000

BEHIND: Final = "behind an earlier one"
"""Why a fact is set aside that could perhaps be applied."""

State = TypeVar("State")
Place = tuple[int, str, str]
"""Of totals: the beginning of the day (UTC), the project, the task."""
Counts = dict[str, int]
"""What a fact adds, by column. Of a column whose name ends in ``_max_ms`` the highest counts."""


class Unprojectable(Exception):
    """A fact cannot be applied to a view."""


class Projection(Protocol[State]):
    """One view: what each fact changes in it."""

    @property
    def name(self) -> ProjectionName:
        """Its name."""
        ...

    def apply(self, state: State | None, fact: Fact, counts: Counts) -> State | None:
        """Give what is known of the Run after a fact, None while nothing is; put what it adds to totals in ``counts``.

        Raises ``Unprojectable``.
        """
        ...

    def task_of(self, state: State | None) -> str:
        """Give the task under which a Run's facts are added up."""
        ...


@dataclass(slots=True)
class Standing(Generic[State]):
    """What a view knows of one Run, and after which of its facts. A fold moves it on."""

    state: State
    sequence: int


@dataclass(frozen=True, slots=True)
class Aside:
    """A fact that was set aside."""

    position: int
    run_id: str
    sequence: int
    reason: str


class Fold(Generic[State]):
    """Facts being folded into a view."""

    def __init__(
        self,
        projection: Projection[State],
        standing: Mapping[str, Standing[State]] | None = None,
        blocked: Iterable[str] = (),
    ) -> None:
        """Begin with what is known of the Runs whose facts will come; of ``blocked`` ones, facts are set aside."""
        self._projection = projection
        self._blocked = set(blocked)
        self.runs: dict[str, Standing[State]] = dict(standing or {})
        self.changed: set[str] = set()
        """Of these Runs something else is known than before."""
        self.totals: dict[Place, Counts] = {}
        """What is to be added."""
        self.aside: list[Aside] = []
        self.unknown = 0
        self.seen = 0

    def take(self, fact: Fact) -> bool:
        """Take in the next fact; whether it was applied."""
        self.seen += 1
        if fact.run_id in self._blocked:
            self._set_aside(fact, BEHIND)
            return False
        try:
            self._apply(fact)
        except Unprojectable as reason:
            self._set_aside(fact, str(reason))
            return False
        except Exception as error:  # noqa: BLE001 - whatever one fact does to a view, those of other Runs go on (R14.1)
            self._set_aside(fact, type(error).__name__[:NAME_MAX])
            return False
        return True

    def _set_aside(self, fact: Fact, reason: str) -> None:
        self._blocked.add(fact.run_id)
        self.aside.append(Aside(fact.position or 0, fact.run_id, fact.sequence, reason))

    def _apply(self, fact: Fact) -> None:
        standing = self.runs.get(fact.run_id)
        if standing is not None and fact.sequence != standing.sequence + 1:
            raise Unprojectable(f"follows sequence {standing.sequence}")
        state = before = None if standing is None else standing.state
        counts: Counts = {}
        payload = fact.payload
        if type(payload) is not UnknownPayload:
            if not 0 <= fact.recorded_at_ms < TIME_MAX:
                raise Unprojectable("recorded at no time")
            state = self._projection.apply(before, fact, counts)
        elif payload.reason == MALFORMED:
            raise Unprojectable(MALFORMED)
        else:
            self.unknown += 1
        if state is not None:
            if standing is None:
                self.runs[fact.run_id] = Standing(state, fact.sequence)
            else:
                standing.state, standing.sequence = state, fact.sequence
            self.changed.add(fact.run_id)
        if counts:
            day_at_ms = fact.recorded_at_ms - fact.recorded_at_ms % DAY_MS
            add_counts(self.totals.setdefault((day_at_ms, fact.project, self._projection.task_of(state)), {}), counts)


def add_counts(totals: Counts, counts: Mapping[str, int]) -> None:
    """Add to totals."""
    for name, amount in counts.items():
        before = totals.get(name, 0)
        totals[name] = max(before, amount) if name.endswith("_max_ms") else before + amount

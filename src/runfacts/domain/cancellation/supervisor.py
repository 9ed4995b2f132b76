"""
The supervisor: what a worker does over and over, as one cycle (R9.3).

A cycle runs its parts in order: receipts before deadlines, so that nobody stops what has ended; deadlines before
deliveries, so that a request made now is delivered now. Each part counts what it saw and did. A part that fails is
counted and reported, and the others run all the same.

There is no timer, no thread and no hook here: whoever wants cycles calls ``cycle``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from runfacts.domain.errors import RunfactsError
from runfacts.domain.texts import NAME_MAX, REASON_MAX, bounded

Stopping = Callable[[], bool]
"""Whether the worker was asked to stop: a part then ends as soon as it can."""
Counters = Mapping[str, int]
"""What a part counted, by name."""

FAILED: Final = "error"
"""The counter of what failed."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a cycle."""

    name: str
    run: Callable[[Stopping], Counters]


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """That something failed, or is to be known, in few words and without what may be secret."""

    part: str
    """The part of the cycle; ``cycle`` for the cycle itself."""
    error: str
    """The name of the error's type."""
    detail: str
    """The error's own words where they are ours, which hold no secret; else nothing."""
    run_id: str | None
    """The Run that it was about, where it was about one."""

    @classmethod
    def of(cls, part: str, error: BaseException, run_id: str | None = None) -> Diagnostic:
        """Say what went wrong."""
        detail = bounded(str(error), REASON_MAX).text if isinstance(error, RunfactsError) else ""
        return cls(part, type(error).__name__[:NAME_MAX], detail, run_id)


class Diagnostics:
    """Tells somebody of failures. That he fails himself stops nothing (R9.3)."""

    def __init__(self, tell: Callable[[Diagnostic], None]) -> None:
        """Tell them to ``tell``."""
        self._tell = tell
        self.untold = 0
        """How many could not be told."""

    def report(self, part: str, error: BaseException, run_id: str | None = None) -> None:
        """Tell of one failure."""
        self.tell(Diagnostic.of(part, error, run_id))

    def tell(self, diagnostic: Diagnostic) -> None:
        """Tell of what is to be known."""
        try:
            self._tell(diagnostic)
        except Exception:  # noqa: BLE001 - nobody is left to be told (R9.3)
            self.untold += 1


@dataclass(frozen=True, slots=True)
class SupervisorReport:
    """What one cycle counted, by part."""

    counters: Mapping[str, Counters] = field(default_factory=dict)

    def __getitem__(self, part: str) -> Counters:
        """Give the counters of a part."""
        return self.counters[part]

    @property
    def failed(self) -> int:
        """How much failed in this cycle."""
        return sum(counters.get(FAILED, 0) for counters in self.counters.values())


class Supervisor:
    """Runs the parts of a worker's cycle."""

    def __init__(self, parts: Sequence[Part], diagnostics: Diagnostics) -> None:
        """Run ``parts`` in this order."""
        self._parts = tuple(parts)
        self._diagnostics = diagnostics

    def cycle(self, stopping: Stopping = lambda: False) -> SupervisorReport:
        """Run every part once; ``stopping`` ends the cycle between two parts, and a part between two things."""
        counters: dict[str, Counters] = {}
        for part in self._parts:
            if stopping():
                break
            counters[part.name] = self._run(part, stopping)
        return SupervisorReport(counters)

    def _run(self, part: Part, stopping: Stopping) -> Counters:
        # The one place where any error goes on with the next part (R9.3).
        try:
            return part.run(stopping)
        except Exception as error:  # noqa: BLE001 - see above
            self._diagnostics.report(part.name, error)
            return {FAILED: 1}

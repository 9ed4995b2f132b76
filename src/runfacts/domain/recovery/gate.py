"""
The startup gate: whether new Runs may be admitted while old ones are looked into (R11.9).

Workers run before it. It looks once, with a limit of one; a clean look ends it and has written nothing. Else it runs
recovery cycles, as many as it may, and looks again. What is available, due or claimed is unsafe: nobody knows yet
whether it runs. What backs off or waits for an operator is known and let through, but said. An embedding application
runs its own reconcilers between two calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from runfacts.domain.recovery.claims import PAGE_MAX, RecoveryScan

FIRST_LIMIT: Final = 1
"""What the first look asks for: one is enough to know that it is not clean."""


class Gated(Protocol):
    """What the gate looks at and lets work."""

    def scan(self, limit: int) -> RecoveryScan:
        """Count candidates and waiting rows, each up to ``limit``; writes nothing."""
        ...

    def cycle(self) -> int:
        """Run one recovery cycle; tell how many candidates it claimed."""
        ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """New Runs may be admitted."""

    waiting: int
    """Rows that back off or wait for an operator, as far as the last look counted."""
    cycles: int = 0
    """Recovery cycles that it took."""


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """Candidates are left that nobody has looked into; ask again."""

    unsafe: int
    """How many, as far as the last look counted."""
    waiting: int
    cycles: int
    """Recovery cycles that were run."""


GateAnswer = Admitted | NotAdmitted


def pass_gate(gated: Gated, *, passes: int, stopping: Callable[[], bool] = lambda: False) -> GateAnswer:
    """Say whether new Runs may be admitted, after at most ``passes`` recovery cycles (R11.9).

    A cycle that found nothing to claim is the last one: what is unsafe then is in other hands, or another scope's.
    """
    first = gated.scan(FIRST_LIMIT)
    if first.unsafe == 0:
        return Admitted(first.waiting)
    cycles = 0
    while cycles < passes and not stopping():
        cycles += 1
        if gated.cycle() == 0:
            break
    last = gated.scan(PAGE_MAX)
    if last.unsafe == 0:
        return Admitted(last.waiting, cycles)
    return NotAdmitted(last.unsafe, last.waiting, cycles)

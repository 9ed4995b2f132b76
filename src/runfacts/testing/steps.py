"""
Crashes and pauses at named steps.

The product says when it reaches a named step, ``sql:before:update_run`` for one (the list is in ``docs/testing.md``).
``Ledger.open(…, steps=…)`` takes one of these classes, or several as ``AllSteps``; ``listening`` puts one in place for
a part of a test. A failure that is raised at a step looks to the product like a failure of its own at that place.

All of them count, so ``nth`` can mean "the second time", and may be reached from several threads.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from runfacts.infrastructure.ledger import Ledger
    from runfacts.infrastructure.steps import Steps

_PATIENCE_S: Final = 30.0


class RecordedSteps:
    """Remembers the names of all steps, in order."""

    def __init__(self) -> None:
        """Begin with an empty list."""
        self._lock = Lock()
        self._names: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The steps that were reached so far."""
        with self._lock:
            return tuple(self._names)

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        with self._lock:
            self._names.append(name)


class CallAt:
    """Calls a function at one step: the ``nth`` time it is reached, counted from 1; every time where ``nth`` is 0."""

    def __init__(self, name: str, call: Callable[[], object], *, nth: int = 1) -> None:
        """Call ``call`` at the step ``name``."""
        self._name = name
        self._call = call
        self._nth = nth
        self._lock = Lock()
        self._count = 0

    @property
    def count(self) -> int:
        """How often the step was reached so far."""
        return self._count

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        if name != self._name:
            return
        with self._lock:
            self._count += 1
            now = self._nth in {0, self._count}
        if now:
            self._call()


class FailAt(CallAt):
    """Raises an error at one step, the ``nth`` time it is reached; the product sees it as its own failure there."""

    def __init__(self, name: str, error: BaseException | type[BaseException], *, nth: int = 1) -> None:
        """Raise ``error`` at the step ``name``."""

        def fail() -> None:
            raise error

        super().__init__(name, fail, nth=nth)


class KillAt(CallAt):
    """Kills its own process with SIGKILL at one step: a crash that nothing can catch. Only for a process of its own."""

    def __init__(self, name: str, *, nth: int = 1) -> None:
        """Die at the step ``name``."""
        super().__init__(name, lambda: os.kill(os.getpid(), signal.SIGKILL), nth=nth)


class PauseAt(CallAt):
    """Holds the thread that reaches one step until the test lets it go on.

    ``wait`` returns when a thread stands there; ``resume`` lets it go on. A thread that nobody resumes fails with a
    ``TimeoutError`` after half a minute, so that a broken test ends.
    """

    def __init__(self, name: str, *, nth: int = 1) -> None:
        """Hold at the step ``name``."""
        self._stands = Event()
        self._go_on = Event()
        super().__init__(name, self._hold, nth=nth)

    def wait(self, timeout_s: float = _PATIENCE_S) -> None:
        """Return when a thread stands at the step; a ``TimeoutError`` if none has come there in time."""
        if not self._stands.wait(timeout_s):
            msg = f"no thread reached {self._name} within {timeout_s} s"
            raise TimeoutError(msg)

    def resume(self) -> None:
        """Let the thread go on."""
        self._go_on.set()

    def _hold(self) -> None:
        self._stands.set()
        if not self._go_on.wait(_PATIENCE_S):
            msg = f"nobody resumed the thread that stands at {self._name}"
            raise TimeoutError(msg)


class AllSteps:
    """Tells several listeners, in order."""

    def __init__(self, *listeners: Steps) -> None:
        """Tell each of ``listeners``."""
        self._listeners = listeners

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        for listener in self._listeners:
            listener.reached(name)


@contextmanager
def listening(ledger: Ledger, steps: Steps) -> Iterator[None]:
    """Let ``steps`` hear what ``ledger`` does from here to the end of the block, and nobody else."""
    before = ledger.database.steps
    ledger.database.steps = steps
    try:
        yield
    finally:
        ledger.database.steps = before

"""
The lifecycle of a worker's cycles: explicitly started, one after the other, explicitly stopped (R9.3).

::

    start ─> cycle ─> pause (the interval, or until woken) ─> cycle ─> …
    stop  ─> the pause ends, or the cycle under way is waited for, at most ``drain_ms``

The next cycle is armed only when the last one has ended, so that a slow one is never overtaken by the next. Each
``start`` is a life of its own: when ``stop`` has given up waiting, the old cycle still belongs to its old life, arms
nothing when it ends, and until then no new life begins.

The thread is a daemon: it never keeps a process alive. Errors are reported and stop nothing. A child that is forked has
no such thread: there the runner has not been started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

from runfacts.domain.cancellation.supervisor import Diagnostics, Stopping
from runfacts.domain.errors import AlreadyStarted
from runfacts.infrastructure.database.forks import part_at_forks

_CYCLE: Final = "cycle"
_BROKEN_PAUSE_S: Final = 1.0


class Bell(Protocol):
    """What ends a pause. ``wait`` and ``close`` are called by the runner's thread, ``wake`` by any."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring at most so long; tell whether there was one. A ring from before the wait counts."""
        ...

    def wake(self) -> None:
        """Ring."""
        ...

    def close(self) -> None:
        """Give back what waiting took."""
        ...


class EventBell:
    """A bell that only this process rings."""

    def __init__(self) -> None:
        """Nobody has rung."""
        self._event = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """See Bell."""
        rung = self._event.wait(timeout_s)
        self._event.clear()
        return rung

    def wake(self) -> None:
        """See Bell."""
        self._event.set()

    def close(self) -> None:
        """See Bell."""


class LifecycleRunner:
    """Runs cycles in a thread of its own, from ``start`` to ``stop``. May be used from several threads."""

    def __init__(
        self,
        cycle: Callable[[Stopping], object],
        *,
        pause_ms: Callable[[], int],
        drain_ms: int,
        diagnostics: Diagnostics,
        bell: Callable[[], Bell] = EventBell,
        name: str = "runfacts-cycles",
    ) -> None:
        """Run ``cycle``; ``pause_ms`` says after each one how long to wait where nobody wakes the runner.

        ``bell`` makes what each life waits at; it is made in the thread that calls ``start``.
        """
        self._cycle = cycle
        self._pause_ms = pause_ms
        self._drain_ms = drain_ms
        self._diagnostics = diagnostics
        self._bell = bell
        self._name = name
        self._lock = threading.Lock()
        self._life: _Life | None = None
        part_at_forks(self)

    def forked(self) -> list[object]:
        """Go on in a child, where the thread is not; return what must be left to the parent."""
        inherited, self._life = self._life, None
        self._lock = threading.Lock()
        return [inherited]

    @property
    def running(self) -> bool:
        """Whether it is started, and not stopped since."""
        with self._lock:
            return self._life is not None and not self._life.stopped.is_set()

    @property
    def idle(self) -> bool:
        """Whether no cycle is under way and none is armed."""
        with self._lock:
            return self._life is None or self._life.ended.is_set()

    def start(self) -> None:
        """Begin: the first cycle runs at once.

        Raises ``AlreadyStarted`` where it is started already, or a cycle from before the last ``stop`` has not ended.
        """
        with self._lock:
            if self._life is not None and not self._life.ended.is_set():
                raise AlreadyStarted
            life = _Life(self._cycle, self._pause_ms, self._bell(), self._diagnostics)
            try:
                threading.Thread(target=life.live, name=self._name, daemon=True).start()
            except BaseException:
                life.bell.close()
                raise
            self._life = life

    def wake(self) -> None:
        """End the pause; during a cycle, the next one follows at once. As safe in a signal handler as the bell is."""
        # Without the lock: a signal handler may have interrupted whoever holds it.
        life = self._life
        if life is not None:
            life.bell.wake()

    def stop(self, drain_ms: int | None = None) -> bool:
        """Arm no further cycle and wait for the one under way, at most ``drain_ms``; tell whether it has ended.

        To be called from another thread than the cycle's own. Stopping what is stopped does nothing.
        """
        with self._lock:
            life = self._life
        if life is None:
            return True
        life.stopped.set()
        life.bell.wake()
        return life.ended.wait((self._drain_ms if drain_ms is None else drain_ms) / 1_000)


class _Life:
    """What lies between one start and its stop."""

    def __init__(
        self, cycle: Callable[[Stopping], object], pause_ms: Callable[[], int], bell: Bell, diagnostics: Diagnostics
    ) -> None:
        self._cycle = cycle
        self._pause_ms = pause_ms
        self._diagnostics = diagnostics
        self.bell = bell
        self.stopped = threading.Event()
        self.ended = threading.Event()

    def live(self) -> None:
        """Run cycle after cycle."""
        stopping = self.stopped.is_set
        try:
            while not stopping():
                self._guarded(lambda: self._cycle(stopping))
                if not stopping() and not self._guarded(self._pause):
                    # A bell or a pause that is broken must not turn the cycles into a busy loop.
                    self.stopped.wait(_BROKEN_PAUSE_S)
        finally:
            self._guarded(self.bell.close)
            self.ended.set()

    def _pause(self) -> None:
        self.bell.wait(self._pause_ms() / 1_000)

    def _guarded(self, step: Callable[[], object]) -> bool:
        # The one place where any error goes on with the next cycle (R9.3).
        try:
            step()
        except Exception as error:  # noqa: BLE001 - see above
            self._diagnostics.report(_CYCLE, error)
            return False
        return True

"""
Working: hosting queued Runs beside everything that a supervisor does (R9.5, R12.1).

``Ledger.work()`` gives one. ``stop`` takes nothing new and lets the commands that run go on to their ends within the
drain time; what is not done by then is left to its keeper, whose receipt any worker of this machine records later: a
worker that goes never ends a command. Cancellations are delivered until then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from runfacts.domain.actors import Actor
from runfacts.domain.cancellation.controllers import ExecutionController
from runfacts.domain.cancellation.supervisor import Counters, Diagnostic, Diagnostics, Stopping, SupervisorReport
from runfacts.domain.errors import AlreadyStarted
from runfacts.domain.measures import CYCLE_COUNTS
from runfacts.domain.recovery.evidence import EvidenceProvider
from runfacts.domain.recovery.gate import Admitted
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.hosting import PART, HostingPlaces, local_host
from runfacts.infrastructure.lifecycle import LifecycleRunner
from runfacts.infrastructure.processes.held import HeldPidfds
from runfacts.infrastructure.supervision import Duty, Supervision, log_diagnostic, own_runs_of

if TYPE_CHECKING:
    from runfacts.infrastructure.ledger import Ledger

CONCURRENCY_MAX: Final = 256
"""The most Runs that one worker hosts at a time."""

_SQLITE_SHARE_OF_INTERVAL: Final = 10
_LEFT_WITHIN_S: Final = 10.0
_AT_ONCE_MS: Final = 1_000
_NOTHING: Final = {"seen": 0, "claimed": 0}


class Working:
    """Hosts queued Runs of one ledger on this machine, and supervises. To be started and stopped by one thread."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        concurrency: int,
        controllers: Iterable[ExecutionController] = (),
        providers: Iterable[EvidenceProvider] = (),
        gate: bool = False,
        duties: Iterable[Duty] = tuple(Duty),
        interval_ms: int,
        on_cycle: Callable[[SupervisorReport], None] | None = None,
        on_diagnostic: Callable[[Diagnostic], None] = log_diagnostic,
    ) -> None:
        """See ``Ledger.work``."""
        self._ledger = ledger
        self._concurrency = concurrency
        self._on_cycle = on_cycle
        self._diagnostics = Diagnostics(on_diagnostic)
        self._held = HeldPidfds()
        self._supervision = Supervision(
            ledger,
            controllers=controllers,
            providers=providers,
            duties=duties,
            interval_ms=interval_ms,
            held=self._held,
            on_cycle=self._tell,
            on_diagnostic=on_diagnostic,
        )
        # One look at a file costs next to nothing, and nobody rings when something is submitted.
        self._look_ms = interval_ms // _SQLITE_SHARE_OF_INTERVAL if ledger.database.dialect == SQLITE else interval_ms
        self._own = own_runs_of(ledger, self._held, worker_id=self.owner)
        self._feeder = LifecycleRunner(
            self._take,
            pause_ms=self._pause_ms,
            drain_ms=ledger.settings.drain_ms,
            diagnostics=self._diagnostics,
            name="runfacts-work",
        )
        self._places = self._new_places()
        self._leaving = False
        self._admitted = not gate
        self._parts: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """Name this incarnation of a worker, drawn anew for each, in every process (R7.3)."""
        return self._supervision.owner

    @property
    def running(self) -> bool:
        """Whether it is started, and not stopped since."""
        return self._feeder.running

    @property
    def hosting(self) -> int:
        """How many Runs it hosts now."""
        return self._places.hosting

    @property
    def admitted(self) -> bool:
        """Whether it may take queued Runs: it has passed the startup gate, or none was asked for (R11.9)."""
        return self._admitted

    @property
    def in_trouble(self) -> bool:
        """Whether the last Run that it tried could not be hosted for a reason of its own, so that it waits."""
        return self._places.in_trouble

    def start(self) -> None:
        """Begin, in threads that keep no process alive.

        Raises ``AlreadyStarted`` where it is started already, or something from before the last ``stop`` has not ended.
        """
        self._begin()
        try:
            self._supervision.start()
            self._feeder.start()
        except BaseException:
            self.stop(0)
            raise

    def once(self, stopping: Stopping = lambda: False) -> SupervisorReport:
        """Run one cycle, then host what is queued until nothing is left, in this thread (``AlreadyStarted``).

        ``stopping`` says that nothing more shall be taken; then it goes on as ``stop`` does.
        """
        report = self._supervision.cycle()
        self._begin()
        try:
            while not stopping():
                ended = self._places.ended
                if not self._may_take(stopping):
                    break
                if not self._places.take(stopping) and not self._places.hosting:
                    break
                self._places.wait_for_change(ended, stopping)
        finally:
            self._end(self._ledger.settings.drain_ms)
        return self._with_hosted(report)

    def stop(self, drain_ms: int | None = None) -> bool:
        """Take nothing new, wait at most ``drain_ms`` for what runs, leave the rest, and tell whether all has ended.

        To end are the worker's own threads: a command that was left runs on. Stopping what is stopped does nothing.
        """
        drain_ms = self._ledger.settings.drain_ms if drain_ms is None else drain_ms
        # A look at the queue under way is short, and might begin one more.
        fed = self._feeder.stop(max(_AT_ONCE_MS, drain_ms))
        ended = self._end(drain_ms)
        if self._on_cycle is not None and any((counts := self._hosted()).values()):
            # Every line has all the parts.
            self._on_cycle(SupervisorReport(dict.fromkeys(self._parts, _NOTHING) | {PART: counts}))
        return fed and ended

    def leave(self) -> None:
        """Do not wait any longer while stopping: leave every command to its keeper. Safe in a signal handler."""
        self._leaving = True
        self._places.leave()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self) -> None:
        if not self._feeder.idle or self._places.hosting:
            raise AlreadyStarted
        self._ledger.places().make()
        # Leaving is for good, and in a child that was forked the worker is another one: whoever begins needs its own.
        self._own = own_runs_of(self._ledger, self._held, worker_id=self.owner)
        self._own.start()
        self._places = self._new_places()
        self._leaving = False

    def _end(self, drain_ms: int) -> bool:
        """Wait for what is hosted, leave the rest, and end what looked after it."""
        began_s = time.monotonic()
        self._places.wait_until_free(drain_ms / 1_000, lambda: self._leaving)
        self._places.leave()
        free = self._places.wait_until_free(_LEFT_WITHIN_S)
        # A delivery under way is waited for to its settle, unless nobody wants to wait.
        owned = self._own.stop(_AT_ONCE_MS if self._leaving else None)
        left_ms = max(_AT_ONCE_MS, drain_ms - int((time.monotonic() - began_s) * 1_000))
        supervised = self._supervision.stop(_AT_ONCE_MS if self._leaving else left_ms)
        if free:
            self._held.close()
        return free and owned and supervised

    def _take(self, stopping: Stopping) -> None:
        if self._may_take(stopping):
            self._places.take(stopping)

    def _may_take(self, stopping: Stopping) -> bool:
        if not self._admitted:
            self._admitted = isinstance(self._supervision.admit(stopping), Admitted)
        return self._admitted

    def _pause_ms(self) -> int:
        return self._places.pause_ms()

    def _new_places(self) -> HostingPlaces:
        return HostingPlaces(
            self._ledger,
            local_host(self._ledger, worker_id=self.owner, held=self._held, stops=self._own),
            actor=Actor.worker(self.owner),
            concurrency=self._concurrency,
            interval_ms=self._look_ms,
            diagnostics=self._diagnostics,
            on_free=self._feeder.wake,
        )

    def _tell(self, report: SupervisorReport) -> None:
        told = self._with_hosted(report)
        if self._on_cycle is not None:
            self._on_cycle(told)

    def _with_hosted(self, report: SupervisorReport) -> SupervisorReport:
        self._parts = tuple(report.counters)
        return SupervisorReport(dict(report.counters) | {PART: self._hosted()})

    def _hosted(self) -> Counters:
        counts = self._places.counted()
        for counter, count in counts.items():
            if count:
                self._ledger.measures.record(CYCLE_COUNTS, count, part=PART, counter=counter)
        return counts

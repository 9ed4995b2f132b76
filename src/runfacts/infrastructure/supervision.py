"""
Supervision: what a worker does for a ledger besides hosting, wired together (R9).

``Ledger.supervise()`` gives one. It serves the executor types and scopes of its controllers, and by itself this
machine's own. Run ``cycle`` yourself, or ``start`` a thread that does and ``stop`` it. Any number may work side by
side, in one process or in many: the database decides who acts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from runfacts.domain.actors import Actor, ActorType
from runfacts.domain.cancellation.controllers import Controllers, ExecutionController, Monotonic
from runfacts.domain.cancellation.dispatcher import Dispatcher
from runfacts.domain.cancellation.supervisor import (
    Counters,
    Diagnostic,
    Diagnostics,
    Part,
    Stopping,
    Supervisor,
    SupervisorReport,
)
from runfacts.domain.errors import AlreadyStarted, RunfactsError
from runfacts.domain.measures import CYCLE_COUNTS, CYCLE_DURATION
from runfacts.domain.projecting import Projected
from runfacts.domain.recovery.claims import Purpose
from runfacts.domain.recovery.evidence import EvidenceProvider
from runfacts.domain.recovery.gate import GateAnswer
from runfacts.infrastructure.database.clocks import WallClockWatch, elapsed_s
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.forks import part_at_forks
from runfacts.infrastructure.evidence import HangingProvider
from runfacts.infrastructure.lifecycle import LifecycleRunner
from runfacts.infrastructure.own_run import OwnRuns, drain_of
from runfacts.infrastructure.presence import WorkerPresence
from runfacts.infrastructure.recovering import Recovering
from runfacts.infrastructure.tokens import new_worker_id

if TYPE_CHECKING:
    from runfacts.infrastructure.ledger import Ledger
    from runfacts.infrastructure.processes.held import HeldPidfds

log: Final = logging.getLogger("runfacts")

_OWN_SHARE_OF_INTERVAL: Final = 10
_SAME_AGAIN_S: Final = 10.0
_PROJECTING_S: Final = 0.25


class Duty(StrEnum):
    """The parts of a cycle, in the order in which they run."""

    COMPLETION = "completion"
    """Record the receipts of this machine's commands (R10.2)."""
    DEADLINES = "deadlines"
    """Ask Runs to stop whose time is over (R10.4)."""
    CANCELLATION = "cancellation"
    """Deliver cancellations (R7, R8)."""
    RECOVERY = "recovery"
    """Find out what became of Runs that nobody looks after (R11)."""
    STOP = "stop"
    """Confirm that Runs have stopped which were asked to (R12.2)."""
    RETRY = "retry"
    """Decide on lost Runs, and queue retries that are due (R12.1)."""
    PROJECT = "projections"
    """Bring projections up to date (R1.4)."""


def log_diagnostic(diagnostic: Diagnostic) -> None:
    """Write a diagnostic to the library's log."""
    about = "" if diagnostic.run_id is None else f" (run {diagnostic.run_id})"
    words = f": {diagnostic.detail}" if diagnostic.detail else ""
    log.warning("%s failed%s: %s%s", diagnostic.part, about, diagnostic.error, words)


class Seldom:
    """Tells of the same failure once in ten seconds: a host tries many times a second, for as long as it takes."""

    def __init__(self, tell: Callable[[Diagnostic], None], clock: Monotonic = elapsed_s) -> None:
        """Nothing has been told yet."""
        self._tell = tell
        self._clock = clock
        self._told: dict[Diagnostic, float] = {}

    def __call__(self, diagnostic: Diagnostic) -> None:
        """Tell of a failure, unless that has just been done."""
        now_s = self._clock()
        self._told = {told: at_s for told, at_s in self._told.items() if now_s - at_s < _SAME_AGAIN_S}
        if diagnostic not in self._told:
            self._told[diagnostic] = now_s
            self._tell(diagnostic)


class Supervision:
    """Serves one ledger's Runs besides hosting them. Cycles are run by one thread at a time."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        controllers: Iterable[ExecutionController] = (),
        providers: Iterable[EvidenceProvider] = (),
        local: bool = True,
        duties: Iterable[Duty] = tuple(Duty),
        interval_ms: int,
        held: HeldPidfds | None = None,
        on_cycle: Callable[[SupervisorReport], None] | None = None,
        on_diagnostic: Callable[[Diagnostic], None] = log_diagnostic,
    ) -> None:
        """See ``Ledger.supervise``. ``held``: descriptors of what this process hosts itself (R8.5)."""
        settings = ledger.settings
        self._ledger = ledger
        self._on_cycle = on_cycle
        self._diagnostics = Diagnostics(on_diagnostic)
        wanted = frozenset(Duty(duty) for duty in duties)
        found = list(controllers)
        if local:
            _import_what_cycles_use()
            found.append(local_controller(ledger, held))
        self._controllers = Controllers(found)
        self._providers = tuple(providers)
        self._local = local
        self._begin_incarnation()
        parts: dict[Duty, Callable[[Stopping], Counters]] = {
            Duty.DEADLINES: self._request_due_deadlines,
            Duty.CANCELLATION: lambda stopping: self._dispatcher.cycle(stopping).as_dict(),
            Duty.RECOVERY: lambda stopping: self._recovering.run(Purpose.RECOVERY, stopping),
            Duty.STOP: lambda stopping: self._recovering.run(Purpose.STOP, stopping),
            Duty.RETRY: lambda stopping: self._recovering.run(Purpose.RETRY, stopping),
            Duty.PROJECT: self._project,
        }
        if local:
            # Receipts are this machine's own executor's.
            parts[Duty.COMPLETION] = self._collect_receipts
        self._supervisor = Supervisor(
            [Part(duty.value, self._timed(duty, parts[duty])) for duty in Duty if duty in wanted & parts.keys()],
            self._diagnostics,
        )
        # On PostgreSQL this machine's clocks decide nothing (R5.1).
        database = ledger.database
        self._wall = WallClockWatch(database.clock) if database.dialect == SQLITE else None
        self._runner = LifecycleRunner(
            self._run,
            pause_ms=lambda: interval_ms,
            drain_ms=settings.drain_ms,
            diagnostics=self._diagnostics,
            bell=ledger.cancellation_bell,
            name="runfacts-supervision",
        )
        part_at_forks(self)

    def forked(self) -> list[object]:
        """Be another worker in a child: what its parent has claimed is its parent's."""
        self._begin_incarnation()
        return []

    def _begin_incarnation(self) -> None:
        self.owner = new_worker_id()
        """This incarnation of a worker, drawn anew for each, in every process (R7.3)."""
        self._actor = Actor(ActorType.SUPERVISOR, self.owner)
        ledger = self._ledger
        self._dispatcher = dispatcher_of(ledger, self._controllers, self.owner, self._diagnostics)
        self._recovering = Recovering(
            ledger,
            controllers=self._controllers,
            providers=self._providers,
            local=self._local,
            owner=self.owner,
            actor=self._actor,
            diagnostics=self._diagnostics,
        )
        self._presence = WorkerPresence(ledger.database, self.owner, ledger.machine()) if self._local else None

    @property
    def running(self) -> bool:
        """Whether it is started, and not stopped since."""
        return self._runner.running

    def cycle(self) -> SupervisorReport:
        """Run one cycle now, in this thread (``AlreadyStarted``: one of its own runs them)."""
        if not self._runner.idle:
            raise AlreadyStarted
        return self._cycle()

    def admit(self, stopping: Stopping = lambda: False) -> GateAnswer:
        """Say whether new Runs may be admitted while old ones are looked into (R11.9).

        Runs at most ``startup_passes`` cycles of recovery, also beside a started thread of its own. A clean ledger is
        only read.
        """
        self._say_it_is_there()
        return self._recovering.admit(stopping)

    def hanging(self) -> tuple[HangingProvider, ...]:
        """Name the evidence providers whose answers are late (R11.3)."""
        return self._recovering.hanging()

    def start(self) -> None:
        """Run cycle after cycle in a thread that keeps no process alive (``AlreadyStarted``)."""
        self._runner.start()

    def wake(self) -> None:
        """Run the next cycle now."""
        self._runner.wake()

    def stop(self, drain_ms: int | None = None) -> bool:
        """Run no further cycle, wait at most ``drain_ms`` for the one under way, and tell whether it has ended."""
        return self._runner.stop(drain_ms)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, stopping: Stopping) -> None:
        report = self._cycle(stopping)
        if self._on_cycle is not None:
            self._on_cycle(report)

    def _cycle(self, stopping: Stopping = lambda: False) -> SupervisorReport:
        if self._wall is not None and (set_by_ms := self._wall.set_by_ms()):
            words = f"by {set_by_ms} ms: leases are kept by the boot clock and do not change, waits and deadlines do"
            self._diagnostics.tell(Diagnostic("clock", "WallClockSet", words, None))
        self._say_it_is_there()
        report = self._supervisor.cycle(stopping)
        for part, counters in report.counters.items():
            for counter, count in counters.items():
                if count:
                    self._ledger.measures.record(CYCLE_COUNTS, count, part=part, counter=counter)
        return report

    def _say_it_is_there(self) -> None:
        # Whoever cannot say so has more to report in a moment.
        if self._presence is not None:
            try:
                self._presence.beat()
            except RunfactsError as error:
                self._diagnostics.report("presence", error)

    def _timed(self, duty: Duty, run: Callable[[Stopping], Counters]) -> Callable[[Stopping], Counters]:
        def timed(stopping: Stopping) -> Counters:
            began_s = time.monotonic()
            try:
                return run(stopping)
            finally:
                took_ms = int((time.monotonic() - began_s) * 1_000)
                self._ledger.measures.record(CYCLE_DURATION, took_ms, part=duty.value)

        return timed

    def _collect_receipts(self, stopping: Stopping) -> Counters:
        del stopping
        counted = asdict(self._ledger.collect_receipts(actor=self._actor))
        return {"seen": counted.pop("found"), "claimed": 0, **counted}

    def _project(self, stopping: Stopping) -> Counters:
        # Nothing waits for a view, but the next cycle's deliveries would.
        deadline_s = time.monotonic() + _PROJECTING_S
        found = self._ledger.project(lambda: stopping() or time.monotonic() >= deadline_s)
        done = sum(found.values(), Projected())
        applied = done.seen - done.set_aside - done.unknown
        counted = {"projected": applied, "set_aside": done.set_aside, "unknown": done.unknown}
        return {"seen": done.seen, "claimed": 0, **{name: count for name, count in counted.items() if count}}

    def _request_due_deadlines(self, stopping: Stopping) -> Counters:
        del stopping
        requested = self._ledger.request_due_deadlines(actor=self._actor)
        return {"seen": requested, "claimed": 0, "requested": requested}


def _import_what_cycles_use() -> None:
    """Import before there is a thread: a child that was forked while one imports would wait for the same module."""
    for name in ("collect", "keeper_evidence", "local_receipts", "on_a_ledger"):
        import_module(f"runfacts.infrastructure.processes.{name}")


def local_controller(ledger: Ledger, held: HeldPidfds | None) -> ExecutionController:
    """Make the controller of this machine's own executor (``UnsupportedPlatform``)."""
    from runfacts.infrastructure.processes.local_controller import LocalController

    settings = ledger.settings
    return LocalController(
        ledger.machine(),
        grace_ms=settings.grace_ms,
        poll_ms=settings.poll_ms,
        held=held,
        steps=ledger.database.steps,
        measures=ledger.measures,
    )


def dispatcher_of(ledger: Ledger, controllers: Controllers, owner: str, diagnostics: Diagnostics) -> Dispatcher:
    """Make a dispatcher within the ledger's settings (``InvalidSetting``: the lease is too short, R8.7)."""
    settings = ledger.settings
    return Dispatcher(
        ledger,
        controllers,
        owner=owner,
        lease_ms=settings.cancel_lease_ms,
        page=settings.cancel_page,
        pages=settings.cancel_pages,
        # A lease goes on while the machine sleeps, and so does its holder's own deadline (R8.4).
        monotonic=elapsed_s,
        on_error=lambda run_id, error: diagnostics.report(Duty.CANCELLATION.value, error, run_id),
        measures=ledger.measures,
    )


def own_runs_of(ledger: Ledger, held: HeldPidfds, *, worker_id: str) -> OwnRuns:
    """Make what looks after the Runs that this process hosts; ``held`` is shared with its hosts (R9.5)."""
    settings = ledger.settings
    diagnostics = Diagnostics(Seldom(log_diagnostic))
    controllers = Controllers([local_controller(ledger, held)])
    interval_ms = settings.interval_ms
    if ledger.database.dialect == SQLITE:
        # Other processes ring no bell there, and one look costs next to nothing.
        interval_ms //= _OWN_SHARE_OF_INTERVAL
    return OwnRuns(
        ledger,
        dispatcher_of(ledger, controllers, worker_id, diagnostics),
        actor=Actor.worker(worker_id),
        interval_ms=interval_ms,
        drain_ms=drain_of(controllers.worst_case_ms),
        bell=ledger.cancellation_bell,
        diagnostics=diagnostics,
        presence=WorkerPresence(ledger.database, worker_id, ledger.machine()),
    )

"""
The ledger: the one object that a program opens, and the one place that wires adapters to ports.

``Ledger.open(url)`` connects to a SQLite file or a PostgreSQL database; every command is one short transaction, every
answer a type. A ledger may be used from several threads at once. Nothing is created when this module is imported, and
no thread runs while a ledger is open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self
from weakref import WeakSet

from runfacts.domain.errors import InvalidSetting, InvalidValue
from runfacts.domain.limits import Settings
from runfacts.domain.measures import (
    CANCELLATION_QUEUE,
    NO_MEASURES,
    PROJECTION_QUEUE,
    RECOVERY_QUEUE,
    Measures,
    Place,
    QueueState,
)
from runfacts.infrastructure.api.archives import Archives
from runfacts.infrastructure.api.arguments import checks_arguments
from runfacts.infrastructure.api.cancellation_delivery import CancellationDelivery
from runfacts.infrastructure.api.cancellation_requests import CancellationRequests
from runfacts.infrastructure.api.feed import Feed
from runfacts.infrastructure.api.projecting import Projecting
from runfacts.infrastructure.api.receipts import Receipts
from runfacts.infrastructure.api.recovery import Recovery
from runfacts.infrastructure.api.recovery_operators import RecoveryOperators
from runfacts.infrastructure.api.replays import Replays
from runfacts.infrastructure.api.work import Work
from runfacts.infrastructure.database.clocks import Clock
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.processes.machine import lasting_machine_id
from runfacts.infrastructure.steps import NO_STEPS, Steps
from runfacts.infrastructure.stores.cancellation_queue import read_cancellation_queue
from runfacts.infrastructure.stores.projection_reports import read_lags
from runfacts.infrastructure.stores.recovery_depth import read_recovery_depth

if TYPE_CHECKING:
    from runfacts.domain.cancellation.controllers import ExecutionController
    from runfacts.domain.cancellation.supervisor import Diagnostic, SupervisorReport
    from runfacts.domain.recovery.evidence import EvidenceProvider
    from runfacts.domain.recovery.gate import GateAnswer
    from runfacts.infrastructure.database.connections import Database
    from runfacts.infrastructure.supervision import Duty, Supervision
    from runfacts.infrastructure.working import Working


@checks_arguments
class Ledger(
    Work,
    CancellationRequests,
    CancellationDelivery,
    Receipts,
    Recovery,
    RecoveryOperators,
    Feed,
    Replays,
    Archives,
    Projecting,
):
    """What happened to every Run and Attempt, and the commands that make it happen.

    Every method looks at the types of its arguments before it does anything: a wrong one is ``InvalidValue``, which
    names the argument.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        machine_id: str | None = None,
        measures: Measures = NO_MEASURES,
    ) -> None:
        """Work on ``database`` within ``settings``; ``machine_id`` names this machine where it is configured."""
        super().__init__(database, settings, machine_id, measures)
        self._supervisions: WeakSet[Supervision | Working] = WeakSet()
        self._end_watches = (
            measures.watch(CANCELLATION_QUEUE, self._cancellation_queue),
            measures.watch(RECOVERY_QUEUE, self._recovery_queue),
            measures.watch(PROJECTION_QUEUE, self._projection_lags),
        )

    @classmethod
    def open(
        cls,
        url: str,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        machine_id: str | None = None,
        steps: Steps = NO_STEPS,
        measures: Measures = NO_MEASURES,
        create: bool = True,
        create_directory: bool = False,
        **overrides: int | str,
    ) -> Self:
        """Open the ledger at ``url``: ``sqlite:///FILE``, ``sqlite:////ABSOLUTE/FILE`` or ``postgresql://…``.

        A SQLite file is made if it is not there (unless ``create`` is false) and its schema brought up to date; on
        PostgreSQL ``runfacts migrate`` does that. Limits come from ``settings`` or, where none are given, from
        ``overrides`` by name, the environment (``RUNFACTS_<NAME>``) and the defaults (R15). ``machine_id`` names this
        machine where ``/etc/machine-id`` does not (R5.2). ``measures`` are told what is counted and timed (R7.7), until
        the ledger is closed. ``clock`` and ``steps`` are for tests.

        Raises ``MalformedUrl``, ``InvalidSetting``, and ``DatabaseError`` with its kinds: ``SchemaTooOld``,
        ``SchemaTooNew``, ``ForeignMachine``, ``DatabaseUnreachable`` and the others.
        """
        if settings is None:
            settings = Settings.from_sources(overrides, os.environ)
        elif overrides:
            raise InvalidSetting(next(iter(overrides))[:64], "is given beside settings that were made before")
        database = open_database(
            url,
            clock=clock,
            steps=steps,
            machine_id=lasting_machine_id(machine_id),
            create=create,
            create_directory=create_directory,
            busy_timeout_ms=settings.busy_timeout_ms,
            wal_limit_bytes=settings.wal_limit_bytes,
        )
        return cls(database, settings, machine_id, measures)

    def supervise(
        self,
        *,
        controllers: Iterable[ExecutionController] = (),
        providers: Iterable[EvidenceProvider] = (),
        local: bool = True,
        duties: Iterable[Duty] | None = None,
        interval_ms: int | None = None,
        on_cycle: Callable[[SupervisorReport], None] | None = None,
        on_diagnostic: Callable[[Diagnostic], None] | None = None,
    ) -> Supervision:
        """Give a worker that does all that a ledger needs besides hosting (R9, R11, R12).

        It delivers cancellations, enforces deadlines, records receipts, recovers Runs that nobody looks after, confirms
        stops, queues retries and brings projections up to date. It serves what ``controllers`` serve, asks
        ``providers`` for evidence of what became of their executors' Attempts and, unless ``local`` is false, serves
        this machine's own commands (``UnsupportedPlatform`` elsewhere than on Linux). ``duties`` are its parts, all if
        left out. Nothing runs until its ``cycle`` or ``start`` is called; between two cycles it waits ``interval_ms``
        unless a request wakes it. ``on_cycle`` is told what each cycle of the thread counted, ``on_diagnostic`` what
        failed; by default that is logged. A lease that does not outlast the controllers is refused (``InvalidSetting``,
        R8.7).
        """
        from runfacts.infrastructure.supervision import Duty, Supervision, log_diagnostic

        supervision = Supervision(
            self,
            controllers=controllers,
            providers=providers,
            local=local,
            duties=tuple(Duty) if duties is None else duties,
            interval_ms=self._within("interval_ms", interval_ms),
            on_cycle=on_cycle,
            on_diagnostic=on_diagnostic or log_diagnostic,
        )
        self._supervisions.add(supervision)
        return supervision

    def work(
        self,
        *,
        concurrency: int = 1,
        controllers: Iterable[ExecutionController] = (),
        providers: Iterable[EvidenceProvider] = (),
        gate: bool = False,
        duties: Iterable[Duty] | None = None,
        interval_ms: int | None = None,
        on_cycle: Callable[[SupervisorReport], None] | None = None,
        on_diagnostic: Callable[[Diagnostic], None] | None = None,
    ) -> Working:
        """Give a worker that hosts queued Runs on this machine, ``concurrency`` at a time, and supervises (R12.1).

        Any number may share a ledger: a Run is hosted by the one that claims it. Nothing runs until ``start`` or
        ``once`` is called; with ``gate`` no queued Run is taken before the startup gate lets it (R11.9). The other
        arguments are those of ``supervise``; the reports also say what was ``hosted``.
        """
        from runfacts.infrastructure.supervision import Duty, log_diagnostic
        from runfacts.infrastructure.working import CONCURRENCY_MAX, Working

        if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
            raise InvalidValue("concurrency", f"is not a whole number between 1 and {CONCURRENCY_MAX}")
        working = Working(
            self,
            concurrency=concurrency,
            controllers=controllers,
            providers=providers,
            gate=gate,
            duties=tuple(Duty) if duties is None else duties,
            interval_ms=self._within("interval_ms", interval_ms),
            on_cycle=on_cycle,
            on_diagnostic=on_diagnostic or log_diagnostic,
        )
        self._supervisions.add(working)
        return working

    def admit(
        self,
        *,
        controllers: Iterable[ExecutionController] = (),
        providers: Iterable[EvidenceProvider] = (),
        local: bool = True,
    ) -> GateAnswer:
        """Say whether new Runs may be admitted while old ones are looked into: the startup gate (R11.9).

        Workers run before it. Candidates that nobody has looked into are recovered first, in at most
        ``startup_passes`` cycles; what then waits for an operator or for its next look is counted and let through. An
        embedding application runs its own reconcilers between two calls. A clean ledger is only read. The arguments are
        those of ``supervise``.
        """
        return self.supervise(controllers=controllers, providers=providers, local=local).admit()

    def close(self) -> None:
        """Stop who supervises, end who follows and close every connection.

        What is asked of it afterwards is ``DatabaseUnreachable``; closing again does nothing.
        """
        for supervision in tuple(self._supervisions):
            supervision.stop()
        for end in self._end_watches:
            end()
        self._ordered.close()
        self._database.close_for_good()

    def _cancellation_queue(self) -> Mapping[Place, QueueState]:
        with self._database.reading() as reading:
            return read_cancellation_queue(reading)

    def _recovery_queue(self) -> Mapping[Place, QueueState]:
        with self._database.reading() as reading:
            return read_recovery_depth(reading)

    def _projection_lags(self) -> Mapping[Place, QueueState]:
        with self._database.reading() as reading:
            return read_lags(reading)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""What all groups of the ledger's commands share: the database, the settings and how a call is checked."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.answers import AttemptClaim, Repeated
from runfacts.domain.errors import InvalidValue, RunNotFound
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.domain.ids import canonical_id
from runfacts.domain.limits import Settings
from runfacts.domain.measures import NO_MEASURES, REFUSALS, REQUEST_TO_STOP, Measures, proven_stop_ms
from runfacts.domain.texts import is_plain_name
from runfacts.infrastructure.commands import Call, Caller, Commands
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.forks import ForkedLock
from runfacts.infrastructure.database.transactions import Change, Reading
from runfacts.infrastructure.database.wakeups import CANCELLATIONS
from runfacts.infrastructure.stores.executions import LeaseTimes
from runfacts.infrastructure.stores.facts import read_history
from runfacts.infrastructure.stores.ordered import OrderedReader
from runfacts.infrastructure.stores.recovery_rows import PlacedRun, stop_sooner

log: Final = logging.getLogger("runfacts")


class LedgerCore:
    """The parts that every command needs."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        machine_id: str | None = None,
        measures: Measures = NO_MEASURES,
    ) -> None:
        """Work on ``database`` within ``settings``; ``machine_id`` names this machine where it is configured."""
        self._database = database
        self._settings = settings
        self._machine_id = machine_id
        self._measures = measures
        self._commands = Commands(database, settings.decide_retries, self._measure_stop)
        self._ordered = OrderedReader(database)
        # Somebody waits for each of these: none is left out because there was one just before (R9.4).
        self._cancellations = database.wakeups(CANCELLATIONS)
        # Where the page of overdue Runs begins that is looked at next (R10.4).
        self._overdue_from_ms = 0
        self._refused: Counter[str] = Counter()
        self._refused_lock = ForkedLock()

    @property
    def database(self) -> Database:
        """The database: ``engine`` begins a caller's transactions (R4.5), the rest is for tools that look after it."""
        return self._database

    @property
    def settings(self) -> Settings:
        """The limits of this ledger (R15)."""
        return self._settings

    @property
    def measures(self) -> Measures:
        """Where this ledger's measures go, for those who work on it."""
        return self._measures

    @property
    def refused(self) -> dict[str, int]:
        """How often this object refused something on sight, by what: ``token`` counts wrong tokens (R2.7)."""
        with self._refused_lock:
            return dict(self._refused)

    def _count_refused(self, what: str, attempt_id: str) -> None:
        with self._refused_lock:
            self._refused[what] += 1
        self._measures.record(REFUSALS, what=what)
        log.warning("refused a %s for attempt %s", what, attempt_id)

    def _measure_stop(self, history: History, facts: tuple[Fact, ...]) -> None:
        stop_ms = proven_stop_ms(history, facts)
        if stop_ms is not None:
            self._measures.record(REQUEST_TO_STOP, stop_ms)

    def _call(
        self,
        run_id: str,
        actor: Actor,
        *,
        expected_version: int | None = None,
        dedupe_key: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
        attempt_id: str | None = None,
    ) -> Call:
        return Call(
            canonical_id("run id", run_id),
            actor,
            expected_version,
            dedupe_key,
            correlation_id,
            causation_id,
            connection,
            attempt_id,
        )

    def _call_on(
        self,
        claim: AttemptClaim,
        actor: Actor,
        correlation_id: str | None,
        causation_id: str | None,
        connection: Caller | None,
    ) -> Call:
        """Check a call of whoever executes the claimed Attempt."""
        return self._call(
            claim.run_id,
            actor,
            correlation_id=correlation_id,
            causation_id=causation_id,
            connection=connection,
            attempt_id=canonical_id("attempt id", claim.attempt_id),
        )

    def _look_for_the_end(self, run: PlacedRun, now_ms: int) -> Change:
        """Let a stop be confirmed when its host has had its time to report: nothing more is delivered (R12.2)."""
        return stop_sooner(run, now_ms + self._settings.stop_report_grace_ms, now_ms)

    def _lease(self, now_ms: int, lease_ms: int) -> LeaseTimes:
        """Say when a lease that begins now ends (R5.1, R5.2)."""
        expires_at_ms = now_ms + lease_ms
        if self._database.dialect != SQLITE:
            return LeaseTimes(expires_at_ms, None, None)
        clock = self._database.clock
        return LeaseTimes(expires_at_ms, clock.boot_id(), clock.boot_ms() + lease_ms)

    def _lease_ms(self, lease_ms: int | None) -> int:
        """Check the length of an execution lease."""
        return self._within("execution_lease_ms", lease_ms, "lease_ms")

    def _within(self, setting: str, value: int | None, name: str | None = None) -> int:
        """Give a setting, or a value in its place that must keep the setting's own bounds (R15, ``InvalidValue``)."""
        if value is None:
            return int(getattr(self._settings, setting))
        _, lowest, highest = Settings.bounds()[setting]
        if type(value) is not int or not lowest <= value <= highest:
            raise InvalidValue(name or setting, f"is not a whole number between {lowest} and {highest}")
        return value


def history_of(reading: Reading, run_id: str) -> History:
    """Read a Run whole (``RunNotFound``)."""
    history = read_history(reading, run_id)
    if history is None:
        raise RunNotFound(run_id)
    return history


def repeated(history: History) -> Repeated:
    """Answer that nothing was written because it is done."""
    return Repeated(history.run_id, history.run.status, history.version)


def plain(name: str, value: str, longest: int) -> str:
    """Check a name that is stored as it is given (``InvalidValue``)."""
    if not is_plain_name(value, longest):
        raise InvalidValue(name, f"is not a text of 1 to {longest} printable characters")
    return value

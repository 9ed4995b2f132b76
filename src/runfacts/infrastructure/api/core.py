"""What all groups of the ledger's commands share: the database, the settings and how a call is checked."""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.answers import Repeated
from runfacts.domain.errors import InvalidValue, RunNotFound
from runfacts.domain.history import History
from runfacts.domain.ids import canonical_id
from runfacts.domain.limits import Settings
from runfacts.domain.texts import is_plain_name
from runfacts.infrastructure.commands import Call, Caller, Commands
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.executions import LeaseTimes
from runfacts.infrastructure.stores.facts import read_history
from runfacts.infrastructure.stores.ordered import OrderedReader

log: Final = logging.getLogger("runfacts")


class LedgerCore:
    """The parts that every command needs."""

    def __init__(self, database: Database, settings: Settings, machine_id: str | None = None) -> None:
        """Work on ``database`` within ``settings``; ``machine_id`` names this machine where it is configured."""
        self._database = database
        self._settings = settings
        self._machine_id = machine_id
        self._commands = Commands(database, settings.decide_retries)
        self._ordered = OrderedReader(database)
        self._refused: Counter[str] = Counter()
        self._refused_lock = Lock()

    @property
    def database(self) -> Database:
        """The database: ``engine`` begins a caller's transactions (R4.5), the rest is for tools that look after it."""
        return self._database

    @property
    def settings(self) -> Settings:
        """The limits of this ledger (R15)."""
        return self._settings

    @property
    def refused(self) -> dict[str, int]:
        """How often this object refused something on sight, by what: ``token`` counts wrong tokens (R2.7)."""
        with self._refused_lock:
            return dict(self._refused)

    def _count_refused(self, what: str, attempt_id: str) -> None:
        with self._refused_lock:
            self._refused[what] += 1
        log.warning("refused a %s for attempt %s", what, attempt_id)

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

    def _lease(self, now_ms: int, lease_ms: int) -> LeaseTimes:
        """Say when a lease that begins now ends (R5.1, R5.2)."""
        expires_at_ms = now_ms + lease_ms
        if self._database.dialect != SQLITE:
            return LeaseTimes(expires_at_ms, None, None)
        clock = self._database.clock
        return LeaseTimes(expires_at_ms, clock.boot_id(), clock.boot_ms() + lease_ms)

    def _lease_ms(self, lease_ms: int | None) -> int:
        """Check a lease's length: the setting where none is given, and never beyond the setting's own bounds (R15)."""
        if lease_ms is None:
            return self._settings.execution_lease_ms
        _, lowest, highest = Settings.bounds()["execution_lease_ms"]
        if type(lease_ms) is not int or not lowest <= lease_ms <= highest:
            raise InvalidValue("lease_ms", f"is not a whole number between {lowest} and {highest}")
        return lease_ms


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

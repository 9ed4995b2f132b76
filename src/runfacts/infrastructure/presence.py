"""
Presence: a worker, or a host, says that it is there (R8.3).

On PostgreSQL every process that looks after processes keeps a row of the machine and boot on which it runs. From those
rows it is known when one machine id names two machines. On SQLite there is one machine, and nothing is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.forks import ForkedLock
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.stores.workers import see_worker

BEAT_MS: Final = 30_000
"""How long a worker's last sign of life may be ago before it gives the next one."""


class WorkerPresence:
    """One incarnation of a worker or host. ``beat`` is to be called before its first work and in every cycle."""

    def __init__(
        self,
        database: Database,
        worker_id: str,
        machine: MachineIdentity,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write nothing yet."""
        self._database = database
        self._worker_id = worker_id
        self._machine = machine
        self._monotonic = monotonic
        self._next_at_s: float | None = None
        self._lock = ForkedLock()

    def beat(self) -> bool:
        """Say that the worker is there, at most every 30 s; tell whether that was written (``DatabaseError``).

        What could not be written is written by the next call.
        """
        if self._database.dialect == SQLITE:
            return False
        with self._lock:
            began_s = self._monotonic()
            if self._next_at_s is not None and began_s < self._next_at_s:
                return False
            with self._database.transaction() as transaction:
                see_worker(
                    transaction,
                    worker_id=self._worker_id,
                    machine_id=self._machine.machine_id,
                    boot_id=self._machine.boot_id,
                    scope=self._machine.scope,
                )
            self._next_at_s = began_s + BEAT_MS / 1_000
            return True

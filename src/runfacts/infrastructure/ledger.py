"""
The ledger: the one object that a program opens, and the one place that wires adapters to ports.

``Ledger.open(url)`` connects to a SQLite file or a PostgreSQL database; every command is one short transaction, every
answer a type. A ledger may be used from several threads at once. Nothing is created when this module is imported, and
no thread runs while a ledger is open.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from runfacts.domain.errors import InvalidSetting
from runfacts.domain.limits import Settings
from runfacts.infrastructure.api.feed import Feed
from runfacts.infrastructure.api.receipts import Receipts
from runfacts.infrastructure.api.run_commands import RunCommands
from runfacts.infrastructure.database.clocks import Clock
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.processes.machine import lasting_machine_id
from runfacts.infrastructure.steps import NO_STEPS, Steps


class Ledger(RunCommands, Receipts, Feed):
    """What happened to every Run and Attempt, and the commands that make it happen."""

    @classmethod
    def open(
        cls,
        url: str,
        *,
        settings: Settings | None = None,
        clock: Clock | None = None,
        machine_id: str | None = None,
        steps: Steps = NO_STEPS,
        create: bool = True,
        create_directory: bool = False,
        **overrides: int | str,
    ) -> Self:
        """Open the ledger at ``url``: ``sqlite:///FILE``, ``sqlite:////ABSOLUTE/FILE`` or ``postgresql://…``.

        A SQLite file is made if it is not there (unless ``create`` is false) and its schema brought up to date; on
        PostgreSQL ``runfacts migrate`` does that. Limits come from ``settings`` or, where none are given, from
        ``overrides`` by name, the environment (``RUNFACTS_<NAME>``) and the defaults (R15). ``machine_id`` names this
        machine where ``/etc/machine-id`` does not (R5.2). ``clock`` and ``steps`` are for tests.

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
        return cls(database, settings, machine_id)

    def close(self) -> None:
        """Close every connection and end who follows. What is asked of it afterwards is ``DatabaseUnreachable``."""
        self._ordered.close()
        self._database.close_for_good()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""
The recorders that ``eventsourcing`` brings, saving only: one event of a new version of its aggregate, one transaction.

It reads nothing, keeps no current state beside the events and computes no hash; the event's state is as long as a
fact's canonical text. On PostgreSQL the library locks its table and notifies inside the transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit
from uuid import UUID, uuid4

from eventsourcing.persistence import ApplicationRecorder, StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from benchmarks.ledger_sides import BUSY_TIMEOUT_MS, STEPS_PER_RUN

_STATE: Final = b"x" * 420
_PORT: Final = 5432
_PATIENCE_S: Final = BUSY_TIMEOUT_MS // 1_000


@dataclass(slots=True)
class Saving:
    """The side."""

    datastore: SQLiteDatastore | PostgresDatastore
    recorder: ApplicationRecorder

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        return self._steps([uuid4() for _ in range(-(-steps // STEPS_PER_RUN))])

    def _steps(self, aggregates: list[UUID]) -> Iterator[int]:
        for aggregate in aggregates:
            for version in range(1, STEPS_PER_RUN + 1):
                self.recorder.insert_events([StoredEvent(aggregate, version, "run.waiting_approval", _STATE)])
                yield 1

    def close(self) -> None:
        """See ``Side``."""
        self.datastore.close()


def saving(url: str) -> Saving:
    """Open the side."""
    if url.startswith("sqlite"):
        files = SQLiteDatastore(url.removeprefix("sqlite:///"), lock_timeout=_PATIENCE_S)
        return Saving(files, SQLiteApplicationRecorder(files))
    parts = urlsplit(url)
    host = parse_qs(parts.query)["host"][0]
    server = PostgresDatastore(parts.path.removeprefix("/"), host, _PORT, parts.username or "", "none")
    return Saving(server, PostgresApplicationRecorder(server))


def create_tables(url: str) -> None:
    """Create the library's tables, once: its own way races between processes."""
    side = saving(url)
    side.recorder.create_table()  # type: ignore[attr-defined]  # both recorders have it, their interface has not
    side.close()

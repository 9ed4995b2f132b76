"""
Ledgers to throw away: real ones, on a real database, with a clock that the test moves.

``ThrowAwayLedgers`` opens any number of ledgers on one database, all on one ``ManualClock``, and closes them at the
end; two of them are two users of one database, each with connections of its own. The plugin's fixtures
``ledger_factory`` and ``ledger`` are such, on SQLite, PostgreSQL 16 and PostgreSQL 18. Without pytest,
``sqlite_ledgers()`` needs nothing but a temporary folder.

``contents_of`` reads every row of every table, to show that something left no trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from sqlalchemy import select

from runfacts.domain.limits import Settings
from runfacts.domain.measures import NO_MEASURES, Measures
from runfacts.infrastructure.database.dialects import POSTGRESQL
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import metadata
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.steps import NO_STEPS, Steps
from runfacts.testing.clock import ManualClock, TestServerClock


class ThrowAwayLedgers:
    """Opens ledgers on one test database."""

    def __init__(self, url: str, clock: ManualClock | None = None) -> None:
        """Use the database at ``url``: a SQLite file, or a PostgreSQL database whose clock tests can move."""
        self.url = url
        self.clock = clock or ManualClock()
        self._open: list[Ledger] = []
        self._server_clock: TestServerClock | None = None
        if url.startswith(POSTGRESQL):
            self._server_clock = TestServerClock(url)
            self.clock.drive(self._server_clock)

    def __call__(
        self,
        *,
        url: str | None = None,
        steps: Steps = NO_STEPS,
        measures: Measures = NO_MEASURES,
        **settings: int | str,
    ) -> Ledger:
        """Open one more ledger, with these settings (R15); ``url`` where it shall be another user of the database."""
        # Not from the environment: a developer's own RUNFACTS_… must not change what a test sees.
        chosen = Settings.from_sources(settings)
        ledger = Ledger.open(url or self.url, settings=chosen, clock=self.clock, steps=steps, measures=measures)
        self._open.append(ledger)
        return ledger

    def close(self) -> None:
        """Close every ledger that was opened."""
        while self._open:
            self._open.pop().close()
        if self._server_clock is not None:
            self.clock.release(self._server_clock)
            self._server_clock.close()
            self._server_clock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def sqlite_ledgers(clock: ManualClock | None = None) -> Iterator[ThrowAwayLedgers]:
    """Give ledgers on a SQLite file in a temporary folder, which goes away with the block."""
    with (
        TemporaryDirectory(prefix="runfacts-") as folder,
        ThrowAwayLedgers(f"sqlite:///{Path(folder) / 'ledger.db'}", clock) as ledgers,
    ):
        yield ledgers


_CONTENTS = {
    name: Statement(f"contents_of_{name}", select(table).order_by(*table.primary_key))
    for name, table in metadata.tables.items()
}


def contents_of(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """Give every committed row of every table of the ledger, by table, in the order of the primary key."""
    with ledger.database.reading() as reading:
        return {name: reading.rows(statement) for name, statement in _CONTENTS.items()}

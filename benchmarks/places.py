"""
Places: a disk and a RAM disk, what a flush costs there, and databases on them.

Every database here is as durable as a real one: SQLite with ``synchronous=FULL``, PostgreSQL with ``fsync`` and
``full_page_writes`` on. On the RAM disk a flush is free, so that only code counts.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

from runfacts.infrastructure.database.opening import migrate
from runfacts.infrastructure.ledger import Ledger
from runfacts.testing.postgres import PostgresServer

Dialect = Literal["sqlite", "postgresql"]
RAM_DISK: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it, readable by nobody else
_FLUSHES: Final = 50
_FLUSHED: Final = 4_096


@dataclass(slots=True)
class Place:
    """A folder of our own on a disk or a RAM disk; the server there starts when it is first wanted."""

    name: str
    folder: Path
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _server: PostgresServer | None = None
    _made: int = 0

    @classmethod
    @contextmanager
    def opened(cls, name: str, parent: Path | None = None) -> Iterator[Self]:
        """Make the folder below ``parent`` (the system's own temporary folder), and remove it at the end."""
        with tempfile.TemporaryDirectory(prefix="rf-bench-", dir=parent) as folder, ExitStack() as stack:
            yield cls(name, Path(folder), stack)

    def empty_database(self, dialect: Dialect) -> str:
        """Give the URL of a new database without tables."""
        if dialect == "sqlite":
            self._made += 1
            return f"sqlite:///{self.folder / f'{self._made}.db'}"
        if self._server is None:
            self._server = self._stack.enter_context(PostgresServer.start(18, parent=self.folder, durable=True))
        return self._server.create_database()

    def ledger_database(self, dialect: Dialect) -> str:
        """Give the URL of a new database with the ledger's tables, made by the product's own migration."""
        url = self.empty_database(dialect)
        if dialect == "postgresql":
            migrate(url)
        else:
            Ledger.open(url).close()
        return url

    def remove(self, url: str) -> None:
        """Remove a database of this place, which nobody uses any more."""
        if not url.startswith("sqlite"):
            if self._server is not None:
                self._server.drop_database(url)
            return
        path = Path(url.removeprefix("sqlite:///"))
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()

    def flush_us(self) -> float:
        """Measure how long the flush of a small append takes, in microseconds (median)."""
        times = []
        descriptor = os.open(self.folder / "flushed", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            for _ in range(_FLUSHES):
                os.write(descriptor, b"x" * _FLUSHED)
                started = time.perf_counter()
                os.fdatasync(descriptor)
                times.append(time.perf_counter() - started)
        finally:
            os.close(descriptor)
        return statistics.median(times) * 1e6

"""Bytes: what a fact costs when it is written, and what a thousand Runs keep."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import ledger_sides, sql_sides
from benchmarks.figures import Figure
from benchmarks.places import Dialect, Place
from benchmarks.turns import Side

_THOUSAND = 1_000


def measure(place: Place, dialect: Dialect, runs: int) -> Iterator[Figure]:
    """Give bytes written for each fact, by the ledger and by hand, and the size of whole Runs."""
    url = place.ledger_database(dialect)
    before = _kept(url)
    side: Side = ledger_sides.lives(url)
    for _ in side.prepare(runs):
        pass
    side.close()
    kept = (_kept(url) - before) * _THOUSAND / runs
    yield Figure.of("disk of 1,000 runs", dialect, "ledger", "bytes", [kept])
    for name, opener in (("ledger", ledger_sides.one_fact), ("sql", sql_sides.one_fact)):
        url = place.ledger_database(dialect)
        yield Figure.of("written for one fact", dialect, name, "bytes", [_written_per_step(opener, url, runs)])


def _written_per_step(opener: Callable[[str], Side], url: str, steps: int) -> float:
    side = opener(url)
    work = side.prepare(steps)
    before = _log(url)
    taken = sum(work)
    written = _log(url) - before
    side.close()
    return written / taken


def _kept(url: str) -> int:
    """Give the size of a database, its log emptied into it."""
    if url.startswith("sqlite"):
        import sqlite3

        path = url.removeprefix("sqlite:///")
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        return Path(path).stat().st_size
    return int(_ask(url, "SELECT pg_database_size(current_database())"))


def _log(url: str) -> int:
    """Give how much was written to the log so far: by this process (SQLite), or by the server (PostgreSQL)."""
    if url.startswith("sqlite"):
        lines = Path(f"/proc/{os.getpid()}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("wchar:"))
    return int(_ask(url, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


def _ask(url: str, query: Any) -> Any:  # noqa: ANN401 - one value of the server's
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    if row is None:
        raise RuntimeError("the server gave no answer")
    return row[0]

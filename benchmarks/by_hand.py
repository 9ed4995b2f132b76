"""
The plain driver: what hand-written SQL runs on, with nothing in between.

The session settings are those of the product's own connections. A transaction is as many calls as it has statements,
one more to commit, and one more to begin: on SQLite a statement, on PostgreSQL a round trip of the driver's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from benchmarks.ledger_sides import BUSY_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class HandConnection:
    """One connection: ``execute`` runs a statement in the transaction that ``begin`` began."""

    connection: Any
    execute: Callable[[str, dict[str, object]], Any]
    begin: Callable[[], object]
    said: Callable[[str], str]
    """Says a statement with ``:name`` parameters as the driver wants it."""

    @classmethod
    def opened(cls, url: str) -> Self:
        """Connect."""
        if not url.startswith("sqlite"):
            import psycopg

            server = psycopg.connect(url)
            # The driver sends BEGIN before the first statement.
            return cls(server, server.cursor().execute, lambda: None, _for_psycopg)
        connection = sqlite3.connect(
            url.removeprefix("sqlite:///"),
            timeout=BUSY_TIMEOUT_MS / 1_000,
            isolation_level=None,
            check_same_thread=False,
        )
        for pragma in ("foreign_keys=ON", "synchronous=FULL", "journal_size_limit=67108864"):
            connection.execute(f"PRAGMA {pragma}")
        cursor = connection.cursor()
        return cls(connection, cursor.execute, lambda: cursor.execute("BEGIN IMMEDIATE"), str)

    def commit(self) -> None:
        """End the transaction."""
        self.connection.commit()

    def close(self) -> None:
        """Disconnect."""
        self.connection.close()


def _for_psycopg(text: str) -> str:
    """Say ``:name`` as psycopg does."""
    words = text.replace(":", "%(").split("%(")
    named = [_closed(word) for word in words[1:]]
    return "%(".join([words[0], *named])


def _closed(text: str) -> str:
    end = next(index for index, character in enumerate(text) if not (character.isalnum() or character == "_"))
    return f"{text[:end]})s{text[end:]}"

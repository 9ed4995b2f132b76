"""Fresh databases whose time passes by itself, for tests that wait for real leases."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from runfacts.infrastructure.database.opening import migrate
from runfacts.testing.plugin import DATABASES
from runfacts.testing.postgres import PostgresServer, database_name


def _usually(*usual: str) -> list[object]:
    """Give the kinds of databases of the usual run and, after them, those of the long one."""
    return [*usual, *(pytest.param(name, marks=pytest.mark.long) for name in DATABASES if name not in usual)]


FILE_FIRST = _usually("sqlite")
SERVER_FIRST = _usually("postgresql-18")
SOME = _usually("sqlite", "postgresql-18")
"""For ``databases``: each test chooses what it is run with usually; the long run has all three."""


class RealTime:
    """Makes databases on one server, or as files where there is none."""

    def __init__(self, root: Path, server: PostgresServer | None) -> None:
        self._root = root
        self._server = server
        self._template = ""
        self._made: list[str] = []

    @property
    def is_sqlite(self) -> bool:
        """Whether they are files."""
        return self._server is None

    def create(self) -> str:
        """Give the URL of a new one."""
        if self._server is None:
            return f"sqlite:///{self._root / f'{uuid4().hex}.db'}"
        if not self._template:
            url = self._server.create_database()
            migrate(url)
            self._made.append(url)
            self._template = database_name(url)
        url = self._server.create_database(self._template)
        self._made.append(url)
        with psycopg.connect(url, autocommit=True) as connection:
            # A ledger of its own: by its id its files are told from those of the others.
            connection.execute("UPDATE ledger_meta SET value = %s WHERE key = 'ledger_id'", [str(uuid4())])
        return url

    def of_a_role(self, url: str) -> str:
        """Give the same database as a role of its own, which can be locked out; a file has no roles."""
        if self._server is None:
            return url
        role = f"worker_{uuid4().hex}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(sql.Identifier(role)))
        return url.replace("//postgres@", f"//{role}@")

    def drop(self) -> None:
        """Drop all of them."""
        for url in self._made:
            assert self._server is not None
            self._server.drop_database(url)

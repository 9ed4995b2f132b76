"""
Who may call: accounts of the service's own, in a table of its own beside the ledger's.

A token is an account's name, a dot and 32 random bytes as text. The table has only their digest: so many random bytes
need no slow hash, and digests are compared in constant time. ``Accounts`` is the ``Authenticator`` that
``runfacts.authenticated`` asks (R13.3); the role is the kind of actor that stands in every fact.
"""

from __future__ import annotations

import hmac
import secrets
from enum import StrEnum
from hashlib import sha256
from typing import Final

from sqlalchemy import Column, Engine, MetaData, Table, Text, delete, insert, select

from runfacts import Actor

TABLES: Final = MetaData()
ACCOUNTS: Final = Table(
    "accounts",
    TABLES,
    Column("name", Text, primary_key=True),
    Column("role", Text, nullable=False),
    Column("digest", Text, nullable=False),
)


_NOBODYS: Final = "0" * 64


class Role(StrEnum):
    """What an account may do."""

    VIEWER = "viewer"
    """Read."""
    OPERATOR = "operator"
    """Read, submit and cancel."""


class Accounts:
    """The accounts on one engine, such as the ledger's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, name: str, role: Role) -> str:
        """Make an account, or give one a new role and token; the token is to be had here only."""
        Actor.user(name)  # refuses a name that no fact could have
        secret = secrets.token_urlsafe(32)
        TABLES.create_all(self._engine)
        with self._engine.begin() as connection:
            connection.execute(delete(ACCOUNTS).where(ACCOUNTS.c.name == name))
            connection.execute(insert(ACCOUNTS).values(name=name, role=role.value, digest=_digest(secret)))
        return f"{name}.{secret}"

    def remove(self, name: str) -> None:
        """Remove an account; what it did stays in the facts."""
        TABLES.create_all(self._engine)
        with self._engine.begin() as connection:
            connection.execute(delete(ACCOUNTS).where(ACCOUNTS.c.name == name))

    def authenticate(self, credential: str) -> Actor | None:
        """Give the actor whose token this is; None where it is nobody's."""
        name, _, secret = credential.rpartition(".")
        # Only reads: on SQLite it then waits for no writer, and none for it.
        with self._engine.connect().execution_options(runfacts_reading=True) as connection:
            found = connection.execute(
                select(ACCOUNTS.c.role, ACCOUNTS.c.digest).where(ACCOUNTS.c.name == name)
            ).one_or_none()
        # Compared also where there is no such account, so that the time does not tell.
        matches = hmac.compare_digest(_digest(secret), _NOBODYS if found is None else found.digest)
        if found is None or not matches:
            return None
        return Actor.operator(name) if found.role == Role.OPERATOR else Actor.user(name)


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()

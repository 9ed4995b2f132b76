"""
What the drivers raise, in our words: one function, matched on constraints and codes.

* A unique constraint of ours, a deadlock or a serialization failure is a ``LostRace``: somebody else was first. The
  command that lost re-reads and decides again, a bounded number of times (R4.3, R4.4).
* What the database cannot do right now, or at all, is a ``DatabaseError`` of the domain: busy, full, read-only,
  unreachable, corrupt.
* Everything else, a violated CHECK or a wrong statement, is a mistake of ours and goes up unchanged.

PostgreSQL names the constraint; SQLite names its columns. Both come out as the constraint's name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NoReturn, cast

from sqlalchemy import Index, PrimaryKeyConstraint, UniqueConstraint
from sqlalchemy import exc as sqlalchemy_errors

from runfacts.domain.errors import (
    DatabaseBusy,
    DatabaseCorrupt,
    DatabaseError,
    DatabaseFull,
    DatabaseReadOnly,
    DatabaseUnreachable,
    RunfactsError,
)
from runfacts.infrastructure.database.all_tables import metadata

if TYPE_CHECKING:
    import psycopg


class LostRace(RunfactsError):
    """Somebody else was first. Internal: the command re-reads and decides again (R4.3)."""

    def __init__(self, constraint: str) -> None:
        """Name the unique constraint that was violated, or ``deadlock`` or ``serialization``."""
        self.constraint = constraint
        super().__init__(f"somebody else was first ({constraint})")


def _unique_constraints() -> Mapping[str, str]:
    """Return the name of every unique constraint, by that name and by how SQLite names its columns."""
    found: dict[str, str] = {}
    for table in metadata.tables.values():
        rules: list[UniqueConstraint | PrimaryKeyConstraint | Index] = [rule for rule in table.indexes if rule.unique]
        rules += [rule for rule in table.constraints if isinstance(rule, UniqueConstraint | PrimaryKeyConstraint)]
        for rule in rules:
            name = str(rule.name)
            found[name] = name
            found[", ".join(f"{table.name}.{column.name}" for column in rule.columns)] = name
    return MappingProxyType(found)


RACES: Final = _unique_constraints()
"""Every unique constraint of the tables: by its name (PostgreSQL) and by its columns (SQLite)."""

_SQLITE_UNIQUE: Final = "UNIQUE constraint failed: "
_SQLITE_NO_TEXT: Final = "Could not decode to UTF-8"
_SQLITE_NO_TABLE: Final = "no such table: "
_SQLITE_STALE: Final = sqlite3.SQLITE_BUSY_SNAPSHOT

_SQLITE_CODES: Final[Mapping[int, tuple[type[DatabaseError], str]]] = MappingProxyType(
    {
        sqlite3.SQLITE_BUSY: (
            DatabaseBusy,
            "another process is writing to the ledger for longer than the busy timeout",
        ),
        sqlite3.SQLITE_LOCKED: (DatabaseBusy, "another connection of this process holds a table of the ledger"),
        sqlite3.SQLITE_FULL: (DatabaseFull, "the disk of the ledger is full"),
        sqlite3.SQLITE_IOERR_SHMSIZE: (DatabaseFull, "the disk of the ledger is full"),
        sqlite3.SQLITE_READONLY: (DatabaseReadOnly, "the ledger's file cannot be written"),
        sqlite3.SQLITE_PERM: (DatabaseReadOnly, "access to the ledger's file is refused"),
        sqlite3.SQLITE_CANTOPEN: (DatabaseUnreachable, "the ledger's file cannot be opened"),
        sqlite3.SQLITE_IOERR: (DatabaseUnreachable, "the ledger's file cannot be read or written: disk I/O error"),
        sqlite3.SQLITE_PROTOCOL: (DatabaseBusy, "the lock of the ledger's file is contended"),
        sqlite3.SQLITE_CORRUPT: (DatabaseCorrupt, "the ledger's file is damaged"),
        sqlite3.SQLITE_NOTADB: (DatabaseCorrupt, "the file is not a SQLite database"),
    }
)

# By SQLSTATE, or by its class where the class says enough.
_SQLSTATES: Final[Mapping[str, tuple[type[DatabaseError], str]]] = MappingProxyType(
    {
        "55P03": (DatabaseBusy, "a lock was not granted within the lock timeout"),
        "57014": (DatabaseBusy, "a statement ran into the statement timeout"),
        "25P03": (DatabaseBusy, "the transaction was idle for longer than the server allows and was rolled back"),
        "25P04": (DatabaseBusy, "the transaction took longer than the server allows and was rolled back"),
        "53300": (DatabaseBusy, "the server has no connection left"),
        "53100": (DatabaseFull, "the disk of the database server is full"),
        "25006": (DatabaseReadOnly, "the database is read-only (a standby, or default_transaction_read_only)"),
        "42501": (DatabaseReadOnly, "this role lacks a privilege on the ledger; see `runfacts migrate --app-role`"),
        "42P01": (DatabaseCorrupt, "a table of the ledger is missing"),
        "53": (DatabaseBusy, "the database server is short of resources"),
        "57P": (DatabaseUnreachable, "the database server is shutting down or starting"),
        "08": (DatabaseUnreachable, "the connection to the database server broke"),
        "XX": (DatabaseCorrupt, "the database server reports damaged data"),
        "58": (DatabaseUnreachable, "the database server cannot read or write its files"),
    }
)

_RACES_BY_SQLSTATE: Final[Mapping[str, str]] = MappingProxyType({"40001": "serialization", "40P01": "deadlock"})


def translate(error: BaseException) -> RunfactsError | None:
    """
    Say in our words what a driver (or SQLAlchemy around it) raised; ``None`` where it is no word of ours.

    Raise the answer ``from`` the cause; raise the cause itself again when there is none.
    """
    if isinstance(error, sqlalchemy_errors.DBAPIError) and error.orig is not None:
        return translate(error.orig)
    if isinstance(error, sqlalchemy_errors.TimeoutError):
        return DatabaseBusy("every connection of the pool is in use")
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error)
    if type(error).__module__.partition(".")[0] == "psycopg":
        return _from_psycopg(cast("psycopg.Error", error))
    return None


@contextmanager
def translated() -> Iterator[None]:
    """Raise what a driver raises in this block in our words."""
    try:
        yield
    except (sqlalchemy_errors.SQLAlchemyError, sqlite3.Error) as error:
        raise_translated(error)


def raise_translated(error: Exception) -> NoReturn:
    """Raise what ``translate`` says, from its cause, or the cause itself."""
    ours = translate(error)
    if ours is None:
        raise error
    raise ours from error


def is_stale_snapshot(error: BaseException) -> bool:
    """Whether a SQLite transaction can no longer write because it has read a state that others have changed since."""
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", None) == _SQLITE_STALE


def _from_sqlite(error: sqlite3.Error) -> RunfactsError | None:
    message = str(error)
    # The trigger that guards against REPLACE speaks the words of the constraint, but not with its code.
    if message.startswith(_SQLITE_UNIQUE):
        constraint = RACES.get(message.removeprefix(_SQLITE_UNIQUE))
        return None if constraint is None else LostRace(constraint)
    if message.startswith(_SQLITE_NO_TABLE):
        return DatabaseCorrupt("a table of the ledger is missing")
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        # The driver itself found it, so there is no code. SQLite stores any bytes as text; we only write UTF-8.
        damaged = message.startswith(_SQLITE_NO_TEXT)
        return (
            DatabaseCorrupt("the ledger holds bytes that are no text; `runfacts verify` names them")
            if damaged
            else None
        )
    # The exact code where it says more: shared memory that cannot grow means a full disk.
    known = _SQLITE_CODES.get(code) or _SQLITE_CODES.get(code & 0xFF)
    return None if known is None else known[0](known[1])


def _from_psycopg(error: psycopg.Error) -> RunfactsError | None:
    import psycopg

    state = error.sqlstate
    if state is None:
        if isinstance(error, psycopg.OperationalError):
            return DatabaseUnreachable(f"the database server cannot be reached: {_first_line(error)}")
        return None
    if state == "23505":
        constraint = RACES.get(error.diag.constraint_name or "")
        return None if constraint is None else LostRace(constraint)
    if state in _RACES_BY_SQLSTATE:
        return LostRace(_RACES_BY_SQLSTATE[state])
    known = _SQLSTATES.get(state) or _SQLSTATES.get(state[:3]) or _SQLSTATES.get(state[:2])
    if known is not None:
        return known[0](known[1])
    if isinstance(error, psycopg.OperationalError):
        return DatabaseUnreachable(_first_line(error))
    return None


def _first_line(error: BaseException) -> str:
    """Return a driver's message as one line; libpq's errors name host, port, database and user, never the password."""
    return " ".join(str(error).split()) or type(error).__name__

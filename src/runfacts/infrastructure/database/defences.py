"""
What the database defends, seen in force: append-only facts, durable commits, and what reading facts in order needs.

Each check asks the database itself, not what a migration once did: somebody may have dropped a trigger, granted too
much, or restored a dump without its privileges. ``runfacts doctor`` prints them; the ordered reader refuses to start
without those it stands on (R3.9).
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from runfacts.infrastructure.database.connections import Database, Reading
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE
from runfacts.infrastructure.database.engines import sqlite_path
from runfacts.infrastructure.database.statements import Statement


@dataclass(frozen=True, slots=True)
class Defence:
    """One thing that should be in force, and whether it is."""

    name: str
    ok: bool
    detail: str
    """What was found, in words."""


ORDERED_READING: Final = frozenset({"primary", "isolation", "positions"})
"""The defences without which facts cannot be read in order (R3.9)."""

_SQLITE_TRIGGERS: Final = frozenset(
    {"facts_refuse_update", "facts_refuse_delete", "facts_refuse_replace", "facts_refuse_gap"}
)
_POSTGRESQL_TRIGGERS: Final = frozenset({"facts_refuse_change", "facts_refuse_truncate"})
_SYNCHRONOUS_FULL: Final = 2


def _statement(name: str, dialect: str, text: str) -> Statement:
    return Statement(f"defences_{name}", {dialect: text})


_PRAGMAS: Final[Mapping[str, Statement]] = MappingProxyType(
    {name: _statement(name, SQLITE, f"PRAGMA {name}") for name in ("journal_mode", "synchronous", "foreign_keys")}
)
_TRIGGERS_SQLITE: Final = _statement(
    "triggers", SQLITE, "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'facts'"
)
_SETTINGS: Final = _statement(
    "settings",
    POSTGRESQL,
    "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit',"
    " 'default_transaction_isolation', 'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')",
)
_PRIMARY: Final = _statement("primary", POSTGRESQL, "SELECT NOT pg_is_in_recovery()")
# 'A': also where session_replication_role turns ordinary triggers off.
_TRIGGERS_POSTGRESQL: Final = _statement(
    "triggers",
    POSTGRESQL,
    "SELECT tgname FROM pg_trigger WHERE tgrelid = CAST('facts' AS regclass) AND tgenabled = 'A'",
)
_POSITIONS: Final = _statement(
    "positions",
    POSTGRESQL,
    "SELECT attribute.attidentity = 'a', sequence.seqcache, sequence.seqcycle, sequence.seqincrement"
    " FROM pg_attribute AS attribute"
    " JOIN pg_depend AS dependency ON dependency.refobjid = attribute.attrelid"
    " AND dependency.refobjsubid = attribute.attnum AND dependency.deptype = 'i'"
    " JOIN pg_sequence AS sequence ON sequence.seqrelid = dependency.objid"
    " WHERE attribute.attrelid = CAST(:relation AS regclass) AND attribute.attname = 'position'",
)
_PRIVILEGES: Final = _statement(
    "privileges",
    POSTGRESQL,
    "SELECT privilege FROM unnest(CAST(ARRAY['UPDATE', 'DELETE', 'TRUNCATE'] AS text[])) AS privilege"
    " WHERE has_table_privilege('facts', privilege)",
)
_TIME: Final = _statement(
    "time",
    POSTGRESQL,
    "SELECT abs(runfacts_now_ms() - floor(extract(epoch FROM statement_timestamp()) * 1000)) < 1000",
)


def defences(database: Database) -> tuple[Defence, ...]:
    """Return every defence of this database and whether it is in force. Reads only."""
    with database.reading() as reading:
        return defences_seen(database, reading)


def defences_seen(database: Database, reading: Reading) -> tuple[Defence, ...]:
    """Return the defences as one connection of the database sees them."""
    found = _sqlite if database.dialect == SQLITE else _postgresql
    return tuple(found(database, reading))


def _sqlite(database: Database, reading: Reading) -> Iterator[Defence]:
    journal = _value(reading, _PRAGMAS["journal_mode"])
    yield Defence("journal", journal == "wal", f"journal_mode is {journal}")
    synchronous = _value(reading, _PRAGMAS["synchronous"])
    waits = isinstance(synchronous, int) and synchronous >= _SYNCHRONOUS_FULL
    yield Defence("durability", waits, f"synchronous is {synchronous}; commits wait for the disk from 2 on")
    keys = _value(reading, _PRAGMAS["foreign_keys"])
    yield Defence("foreign_keys", keys == 1, f"foreign_keys is {keys}")
    yield _triggers(reading, _TRIGGERS_SQLITE, _SQLITE_TRIGGERS)
    mode = stat.S_IMODE(sqlite_path(database.engine.url).stat().st_mode)
    yield Defence("file_mode", not mode & 0o077, f"the file's mode is {mode:04o}; others need no access")


def _postgresql(_database: Database, reading: Reading) -> Iterator[Defence]:
    settings = {str(name): str(value) for name, value in reading.rows(_SETTINGS)}
    durable = ("fsync", "full_page_writes", "synchronous_commit")
    weak = [name for name in durable if settings.get(name) not in {"on", "remote_apply"}]
    yield Defence("durability", not weak, _words("commits wait for the disk", "weakened by", weak))
    isolation = settings.get("default_transaction_isolation", "unknown")
    yield Defence("isolation", isolation == "read committed", f"transactions are {isolation}")
    timeouts = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    unbounded = [name for name in timeouts if settings.get(name) in {None, "0"}]
    yield Defence("timeouts", not unbounded, _words("every wait is bounded", "unbounded:", unbounded))
    primary = _value(reading, _PRIMARY) is True
    yield Defence("primary", primary, "this server is the primary" if primary else "this server is a standby")
    yield _triggers(reading, _TRIGGERS_POSTGRESQL, _POSTGRESQL_TRIGGERS)
    yield positions_drawn_one_by_one(reading, "facts")
    excess = [str(name) for (name,) in reading.rows(_PRIVILEGES)]
    yield Defence("privileges", not excess, _words("this role can only read and append facts", "this role may", excess))
    real = _value(reading, _TIME) is True
    yield Defence("time", real, "runfacts_now_ms() is the server's time" if real else "runfacts_now_ms() was replaced")


def positions_drawn_one_by_one(reading: Reading, relation: str) -> Defence:
    """Look how a table on PostgreSQL gives out its positions; reading it in order stands on that (R3.9)."""
    ok = reading.row(_POSITIONS, {"relation": relation}) == (True, 1, False, 1)
    return Defence(
        "positions",
        ok,
        "positions are an identity that only an INSERT draws from, one by one"
        if ok
        else "positions must be GENERATED ALWAYS AS IDENTITY, CACHE 1, NO CYCLE, INCREMENT 1",
    )


def _value(reading: Reading, statement: Statement) -> object:
    row = reading.row(statement)
    return None if row is None else row[0]


def _triggers(reading: Reading, statement: Statement, expected: frozenset[str]) -> Defence:
    missing = sorted(expected - {str(name) for (name,) in reading.rows(statement)})
    return Defence("append_only", not missing, _words("facts refuse change", "missing or disabled triggers:", missing))


def _words(good: str, bad: str, found: list[str]) -> str:
    return f"{bad} {', '.join(found)}" if found else good

"""What a database is and holds, in a few words: its version, and the types of its facts that are of a later release."""

from __future__ import annotations

from typing import Final

from sqlalchemy import bindparam, func, literal_column, select

from runfacts.domain.payloads import FACT_TYPES
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts
from runfacts.infrastructure.database.transactions import Reading

# One step in the index for each type, however many facts there are.
_NEXT_TYPE: Final = Statement("next_type", select(func.min(facts.c.type)).where(facts.c.type > bindparam("after")))
_COUNT_TYPE: Final = Statement(
    "count_type", select(func.count()).select_from(facts).where(facts.c.type == bindparam("type"))
)
_LATER_VERSIONS: Final = Statement(
    "later_versions",
    select(facts.c.type, facts.c.schema_version, func.count())
    .where(facts.c.schema_version > literal_column("1"))
    .group_by(facts.c.type, facts.c.schema_version),
)
_VERSION: Final = Statement(
    "server_version", {SQLITE: "SELECT sqlite_version()", POSTGRESQL: "SELECT current_setting('server_version')"}
)


def server_version(reading: Reading) -> str:
    """Name the database engine and its version."""
    row = reading.row(_VERSION)
    name = "SQLite" if reading.dialect == SQLITE else "PostgreSQL"
    return name if row is None else f"{name} {row[0]}"


def count_unknown_types(reading: Reading) -> dict[str, int]:
    """Count the facts of each type that this release does not know, or not in that version (R3.7)."""
    found: dict[str, int] = {}
    after = ""
    while (row := reading.row(_NEXT_TYPE, {"after": after})) is not None and row[0] is not None:
        after = str(row[0])
        if after not in FACT_TYPES:
            counted = reading.row(_COUNT_TYPE, {"type": after})
            found[after] = 0 if counted is None else int(counted[0])
    for name, version, count in reading.rows(_LATER_VERSIONS):
        known = FACT_TYPES.get(name)
        if known is not None and version > known.VERSION:
            found[name] = found.get(name, 0) + int(count)
    return found

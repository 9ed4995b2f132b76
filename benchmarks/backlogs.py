"""
Backlogs: Runs that nobody looks after any more, by the thousand.

They are copies of one running Run, with all of its rows and facts, under leases that have expired; the database makes
them itself. The facts are sound but for their hashes, which are those of the Run that was copied: whoever recovers the
copies replays them, ``verify`` would complain.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, Table, create_engine

from benchmarks.ledger_sides import begin_run, open_ledger
from runfacts.infrastructure.database.tables import attempts, executions, facts, runs

_TABLES: Final = (runs, attempts, executions, facts)
_NAMING: Final = frozenset({"run_id", "attempt_id", "active_attempt_id", "aggregate_id", "dedupe_key", "payload"})
"""Columns in which ids stand, alone or in a text."""
_SERIES: Final = {
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})",
    "postgresql": "WITH s(n) AS (SELECT generate_series(1, {count}))",
}
_ID: Final = {
    "sqlite": "printf('01900000-0000-7000-{kind}-%012x', n)",
    "postgresql": "('01900000-0000-7000-{kind}-' || lpad(to_hex(n), 12, '0'))",
}
_EXPIRED: Final = """
UPDATE executions SET lease_expires_at_ms = seen_at_ms, recover_at_ms = seen_at_ms{boot}
WHERE closed_at_ms IS NULL AND recover_at_ms = lease_expires_at_ms
"""
_ANOTHER_BOOT: Final = ", lease_boot_id = '00000000-0000-0000-0000-000000000000'"


def fill(url: str, count: int) -> None:
    """Put ``count`` abandoned Runs into a ledger, and leave the database as one that has had time to tidy up."""
    with open_ledger(url) as ledger:
        claim = begin_run(ledger)
    sqlite = url.startswith("sqlite")
    engine = create_engine(url if sqlite else url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        if count > 1:
            for table in _TABLES:
                connection.exec_driver_sql(
                    _copies(table, engine.dialect.name, count - 1, claim.run_id, claim.attempt_id)
                )
        expire(connection)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in ["PRAGMA wal_checkpoint(TRUNCATE)"] if sqlite else ["VACUUM (ANALYZE)", "CHECKPOINT"]:
            connection.exec_driver_sql(statement)
    engine.dispose()


def expire(connection: Connection) -> None:
    """Let the leases of all Attempts under way be over, that nobody has claimed for recovery."""
    boot = _ANOTHER_BOOT if connection.dialect.name == "sqlite" else ""
    connection.exec_driver_sql(_EXPIRED.format(boot=boot))


def _copies(table: Table, dialect: str, count: int, run_id: str, attempt_id: str) -> str:
    columns = [column.name for column in table.c if column.name != "position"]
    new_run, new_attempt = (_ID[dialect].format(kind=kind) for kind in ("9000", "9001"))
    values = [
        f"replace(replace({name}, '{run_id}', {new_run}), '{attempt_id}', {new_attempt})" if name in _NAMING else name
        for name in columns
    ]
    order = " ORDER BY n, position" if table is facts else ""
    return (
        f"{_SERIES[dialect].format(count=count)} INSERT INTO {table.name} ({', '.join(columns)})"  # noqa: S608 - names and numbers of ours
        f" SELECT {', '.join(values)} FROM {table.name}, s WHERE run_id = '{run_id}'{order}"
    )

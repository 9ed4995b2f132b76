"""
Crowds: finished Runs by the thousand, for the tables to be full of.

They are copies of one Run that was asked to stop, was delivered to and ended: its rows in every table of state, and its
last fact. The database makes them itself; nobody could replay them, and nobody looks at them, which is the point.
Their ids lie before those of every new Run, as those of older ones do.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Table, create_engine

from benchmarks.delivery_sides import OWNER, RESULT, SERVED, ask_runs_to_stop
from benchmarks.ledger_sides import ACTOR, open_ledger
from runfacts.domain.answers import Finished
from runfacts.domain.cancellation.terms import DispatchClaimed
from runfacts.domain.outcomes import Outcome
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.infrastructure.database.tables import attempts, executions, facts, runs

_TABLES: Final = (runs, attempts, executions, cancellation_dispatches, recovery_claims, facts)
_SERIES: Final = {
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < {count})",
    "postgresql": "WITH s(n) AS (SELECT generate_series(1, {count}))",
}
_ID: Final = {
    "sqlite": "printf('01900000-0000-7000-{kind}-%012x', n)",
    "postgresql": "('01900000-0000-7000-{kind}-' || lpad(to_hex(n), 12, '0'))",
}
_KINDS: Final = {"run_id": "8000", "aggregate_id": "8000", "item_id": "8000", "attempt_id": "8001"}


def fill(url: str, count: int) -> None:
    """Put ``count`` finished Runs into a ledger, and leave the database as one that has had time to tidy up."""
    last_fact = _finish_one(url)
    sqlite = url.startswith("sqlite")
    engine = create_engine(url if sqlite else url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        for table in _TABLES:
            connection.exec_driver_sql(_copies(table, engine.dialect.name, count, last_fact))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in ["PRAGMA wal_checkpoint(TRUNCATE)"] if sqlite else ["VACUUM (ANALYZE)", "CHECKPOINT"]:
            connection.exec_driver_sql(statement)
    engine.dispose()


def _finish_one(url: str) -> int:
    """Finish the Run that is copied; the position of its last fact."""
    with open_ledger(url) as ledger:
        (asked,) = ask_runs_to_stop(ledger, 1)
        run_id, attempt_id = asked.claim.run_id, asked.claim.attempt_id
        claim = ledger.claim_dispatch(
            run_id, attempt_id, asked.requested_at_ms, owner=OWNER, served=frozenset({SERVED})
        )
        if not isinstance(claim, DispatchClaimed):
            raise TypeError(f"a claim of the bench was answered by {claim}")
        ledger.settle_dispatch(claim, RESULT)
        finished = ledger.finish(asked.claim, Outcome.succeeded(), actor=ACTOR)
        if not isinstance(finished, Finished):
            raise TypeError(f"finished is {finished}")
        position = [fact for fact in ledger.history(run_id) if not fact.of_attempt][-1].position
    if position is None:
        raise RuntimeError("a recorded fact of the bench has no position")
    return position


def _copies(table: Table, dialect: str, count: int, last_fact: int) -> str:
    columns = [column.name for column in table.c if column.name != "position"]
    values = [_ID[dialect].format(kind=_KINDS[name]) if _copied_as_id(table, name) else name for name in columns]
    which = f" WHERE position = {last_fact}" if table is facts else ""
    series = _SERIES[dialect].format(count=count)
    return (
        f"{series} INSERT INTO {table.name} ({', '.join(columns)})"  # noqa: S608 - names and numbers of ours
        f" SELECT {', '.join(values)} FROM (SELECT * FROM {table.name}{which} LIMIT 1) AS one, s"
    )


def _copied_as_id(table: Table, name: str) -> bool:
    # A fact of the Run's own names no Attempt.
    return name in _KINDS and not (table is facts and name == "attempt_id")

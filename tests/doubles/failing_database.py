"""A database that fails by itself, in the middle of what a command writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text

from runfacts import Ledger
from stages import one_writer


@contextmanager
def failing(ledger: Ledger, table: str, operation: str, fact_type: str = "") -> Iterator[None]:
    """Let the database fail, with the word ``injected``, after it has written such a row; of facts, one of a type."""
    condition = f"WHEN (NEW.type = '{fact_type}')" if fact_type else ""
    head = f"CREATE TRIGGER injected AFTER {operation} ON {table} FOR EACH ROW {condition}"
    if one_writer(ledger):
        make = [f"{head} BEGIN SELECT RAISE(ABORT, 'injected'); END"]
        drop = "DROP TRIGGER injected"
    else:
        raising = "CREATE OR REPLACE FUNCTION injected() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'injected'; END $$"
        make = [f"{raising} LANGUAGE plpgsql", f"{head} EXECUTE FUNCTION injected()"]
        drop = f"DROP TRIGGER injected ON {table}"
    with ledger.database.engine.begin() as connection:
        for statement in make:
            connection.execute(text(statement))
    yield
    with ledger.database.engine.begin() as connection:
        connection.execute(text(drop))

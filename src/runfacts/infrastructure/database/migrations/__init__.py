"""The history of the schema: Alembic revisions, each running SQL that was frozen when it was released."""

from __future__ import annotations

from importlib.resources import files

from sqlalchemy import Connection

from runfacts.infrastructure.database.schema import run_script


def run_frozen(connection: Connection, revision: str) -> None:
    """Run ``frozen/<revision>.<dialect>.sql`` in the transaction of ``connection``."""
    file = files(__name__) / "frozen" / f"{revision}.{connection.dialect.name}.sql"
    run_script(connection, file.read_text(encoding="utf-8"))

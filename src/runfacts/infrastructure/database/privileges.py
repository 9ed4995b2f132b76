"""
What the product's own role may do in PostgreSQL: what it needs, and no more (R1.1).

The role that owns the tables can do anything; the product should not run as it. ``runfacts migrate --app-role ROLE``
gives another role SELECT and INSERT on facts, and SELECT, INSERT and UPDATE on current state; what a Run was to run
is also deleted, when it ends (R12.1), and so are views that were rebuilt (R14.1). An identity column needs no privilege
on its sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection, text

from runfacts.domain.errors import InvalidValue
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.database.projection_tables import (
    projections,
    set_aside_facts,
    statistics,
    statistics_runs,
    stop_proofs,
)
from runfacts.infrastructure.database.recovery_tables import commands, recovery_claims, workers
from runfacts.infrastructure.database.tables import attempts, executions, facts, ledger_meta, runs

NEEDED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        facts.name: ("SELECT", "INSERT"),
        runs.name: ("SELECT", "INSERT", "UPDATE"),
        attempts.name: ("SELECT", "INSERT", "UPDATE"),
        executions.name: ("SELECT", "INSERT", "UPDATE"),
        cancellation_dispatches.name: ("SELECT", "INSERT", "UPDATE"),
        recovery_claims.name: ("SELECT", "INSERT", "UPDATE"),
        workers.name: ("SELECT", "INSERT", "UPDATE"),
        commands.name: ("SELECT", "INSERT", "DELETE"),
        **{
            view.name: ("SELECT", "INSERT", "UPDATE", "DELETE")
            for view in (projections, set_aside_facts, statistics_runs, statistics, stop_proofs)
        },
        ledger_meta.name: ("SELECT",),
        "runfacts_schema": ("SELECT",),
    }
)
"""The privileges of the product's role, by table."""


def grant(connection: Connection, role: str) -> None:
    """Give ``role`` exactly ``NEEDED``; what it had on our tables before is taken back first. The role must exist."""
    known = connection.execute(
        text("SELECT rolsuper FROM pg_roles WHERE rolname = :role"), {"role": role}
    ).one_or_none()
    if known is None:
        raise InvalidValue("app role", f"{role!r} does not exist in this database server")
    if known.rolsuper:
        raise InvalidValue("app role", f"{role!r} is a superuser, whom no privilege binds")
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema = quote(str(connection.execute(text("SELECT current_schema()")).scalar_one()))
    grantee = quote(role)
    connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {grantee}")
    for function in ("runfacts_now_ms", "runfacts_lost_race"):
        connection.exec_driver_sql(f"GRANT EXECUTE ON FUNCTION {schema}.{function}() TO {grantee}")
    for table, privileges in NEEDED.items():
        connection.exec_driver_sql(f"REVOKE ALL ON {schema}.{quote(table)} FROM {grantee}")
        connection.exec_driver_sql(f"GRANT {', '.join(privileges)} ON {schema}.{quote(table)} TO {grantee}")

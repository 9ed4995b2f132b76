"""``runfacts migrate``: create, upgrade or only compare the schema."""

from __future__ import annotations

import click

from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.failures import SCHEMA
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation


@click.command("migrate", cls=EverywhereCommand, short_help="Create or upgrade the schema.")
@click.option("--check", is_flag=True, help="Change nothing; exit code 6 if there is something to do.")
@click.option("--app-role", metavar="ROLE", help="PostgreSQL: give this role what programs need, and no more.")
@click.option("--adopt", is_flag=True, help="SQLite: bind the ledger to this machine; nobody else may use it any more.")
@pass_invocation
def command(invocation: Invocation, *, check: bool, app_role: str | None, adopt: bool) -> int:
    """Create or upgrade the schema. On SQLite this happens by itself."""
    from runfacts.infrastructure.database import opening
    from runfacts.infrastructure.processes.machine import lasting_machine_id

    if check and (app_role is not None or adopt):
        raise click.UsageError("--check changes nothing, so it does not go with --app-role or --adopt")
    if check:
        found = opening.compare(invocation.url)
        current = found.revision
    else:
        found = opening.migrate(
            invocation.url,
            app_role=app_role,
            adopt=adopt,
            machine_id=lasting_machine_id(invocation.machine_id),
            create_directory=invocation.uses_own_database,
        )
        current = found.head
    applied = found.applied
    up_to_date = current == found.head
    if invocation.json:
        output.write_json({"revision": current, "head": found.head, "applied": list(applied)})
    elif applied:
        output.write(f"The schema is now {current}; applied: {', '.join(applied)}.")
    elif up_to_date:
        output.write(f"The schema is {current}; nothing is to be done.")
    else:
        output.write(
            f"The schema is {current or 'not there'}, this release needs {found.head}: run `runfacts migrate`."
        )
    return 0 if up_to_date else SCHEMA

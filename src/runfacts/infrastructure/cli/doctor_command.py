"""``runfacts doctor``: is everything as it should be, and if not, what."""

from __future__ import annotations

import click

from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.checks import look
from runfacts.infrastructure.cli.failures import REFUSED
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation


@click.command("doctor", cls=EverywhereCommand, short_help="Check the database, the clocks and this machine.")
@pass_invocation
def command(invocation: Invocation) -> int:
    """Check the database, its durability, the clocks and what this machine can prove."""
    checks = look(invocation)
    if invocation.json:
        shapes = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks]
        output.write_json({"checks": shapes})
    else:
        output.table(
            ("check", "result", "detail"),
            [(check.name, "ok" if check.ok else "not ok", check.detail) for check in checks],
        )
    return 0 if all(check.ok for check in checks) else REFUSED

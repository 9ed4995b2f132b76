"""``runfacts manual``: what no program can decide about Runs whose owner vanished (R13.1)."""

from __future__ import annotations

import click

from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.operator_queues import paged, write_manual


@click.command("manual", cls=EverywhereCommand, short_help="Runs of which no worker knows what became.")
@paged
@pass_invocation
def command(invocation: Invocation, limit: int | None, after: str | None) -> None:
    """Runs of which no worker can tell what became of them, oldest first, and what can be done.

    Then those that nobody serves. The version is what `release` and `attest-not-running` take; `confirm-stopped`
    takes the run's.
    """
    with invocation.ledger() as ledger:
        page = ledger.manual(limit=limit, after=after)
    write_manual(invocation, page)

"""``runfacts unproven``: Runs of which it is not proven that they have stopped (R6.2)."""

from __future__ import annotations

import click

from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.operator_queues import paged, write_queue


@click.command("unproven", cls=EverywhereCommand, short_help="Runs asked to stop whose end is not proven.")
@paged
@pass_invocation
def command(invocation: Invocation, limit: int | None, after: str | None) -> None:
    """Runs that were asked to stop and of which no end is proven.

    First those still under way, then those that ended on an operator's word. The version is what `confirm-stopped`
    takes.
    """
    with invocation.ledger() as ledger:
        page = ledger.unproven(limit=limit, after=after)
    write_queue(invocation, page, empty="No run was asked to stop whose end is not proven.")

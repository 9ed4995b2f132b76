"""``runfacts blocked``: cancellations that wait for an operator (R13.1)."""

from __future__ import annotations

import click

from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.operator_queues import paged, write_queue


@click.command("blocked", cls=EverywhereCommand, short_help="Cancellations that no worker can deliver.")
@paged
@pass_invocation
def command(invocation: Invocation, limit: int | None, after: str | None) -> None:
    """Cancellations that no worker can deliver, oldest first, and what can be done.

    The version is what `rearm` and `abandon` take.
    """
    with invocation.ledger() as ledger:
        page = ledger.blocked(limit=limit, after=after)
    write_queue(invocation, page, empty="No cancellation waits for an operator.")

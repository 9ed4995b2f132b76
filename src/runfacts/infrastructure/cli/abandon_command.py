"""``runfacts abandon``: end the delivery of a cancellation (R13.2)."""

from __future__ import annotations

import click

from runfacts.domain.ids import canonical_id
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.verbs import verb, write_outcome


@click.command("abandon", cls=EverywhereCommand, short_help="Deliver a cancellation no more.")
@verb("`runfacts blocked`, or of the delivery in `runfacts show`")
@pass_invocation
def command(invocation: Invocation, run_id: str, because: str, version: int) -> None:
    """Send no more signals for a run; it still ends by its own report, its receipt or `confirm-stopped`.

    Your name is recorded as you give it, with --as or by your login; nobody checks it.
    """
    run_id = canonical_id("run id", run_id)
    with invocation.ledger() as ledger:
        answer = ledger.abandon(run_id, actor=invocation.operator, because=because, version=version)
    write_outcome(invocation, run_id, "abandoned", answer.version, {})

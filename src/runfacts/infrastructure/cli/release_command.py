"""``runfacts release``: let workers look again at what waits for an operator (R13.2)."""

from __future__ import annotations

import click

from runfacts.domain.ids import canonical_id
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.verbs import verb, write_outcome


@click.command("release", cls=EverywhereCommand, short_help="Let workers look at such a run again.")
@verb("`runfacts manual`, or of the recovery in `runfacts show`")
@pass_invocation
def command(invocation: Invocation, run_id: str, because: str, version: int) -> None:
    """Let workers look again, at once, at a run that waits for an operator.

    Your name is recorded as you give it, with --as or by your login; nobody checks it.
    """
    run_id = canonical_id("run id", run_id)
    with invocation.ledger() as ledger:
        answer = ledger.release(run_id, actor=invocation.operator, because=because, version=version)
    write_outcome(invocation, run_id, "released", answer.version, {"purpose": answer.purpose.value})

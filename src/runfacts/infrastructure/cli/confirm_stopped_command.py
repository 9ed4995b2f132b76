"""``runfacts confirm-stopped``: end a Run that was asked to stop, on an operator's word (R13.2)."""

from __future__ import annotations

import click

from runfacts.domain.ids import canonical_id
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.verbs import local_provider, verb, write_outcome


@click.command("confirm-stopped", cls=EverywhereCommand, short_help="End a run, because you know that it has stopped.")
@verb("`runfacts unproven`, which is the run's, as `runfacts manual` shows it too")
@click.option("--force", is_flag=True, help="Also where its process is seen to run; that is recorded.")
@pass_invocation
def command(invocation: Invocation, run_id: str, because: str, version: int, *, force: bool) -> None:
    """End a run that was asked to stop, because you know that nothing of it is left.

    Where it runs on this machine, its process is looked for first, and the verb refused while something of it lives.
    Your name is recorded as you give it, with --as or by your login; nobody checks it.
    """
    run_id = canonical_id("run id", run_id)
    with invocation.ledger() as ledger:
        answer = ledger.confirm_stopped(
            run_id,
            actor=invocation.operator,
            because=because,
            version=version,
            provider=local_provider(ledger),
            force=force,
        )
    write_outcome(invocation, run_id, "confirmed", answer.version, {"status": answer.status.value})

"""``runfacts attest-not-running``: declare a Run lost on an operator's word (R13.2)."""

from __future__ import annotations

import click

from runfacts.domain.ids import canonical_id
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.verbs import local_provider, verb, write_outcome


@click.command(
    "attest-not-running", cls=EverywhereCommand, short_help="Declare a run lost, because you know it is gone."
)
@verb("`runfacts manual`, or of the recovery in `runfacts show`")
@click.option("--force", is_flag=True, help="Also where its process is seen to run; that is recorded.")
@pass_invocation
def command(invocation: Invocation, run_id: str, because: str, version: int, *, force: bool) -> None:
    """Declare a run lost whose worker vanished, because you know that nothing of it is left.

    Whether it is tried again is decided as after any loss. Where it ran on this machine, its process is looked for
    first, and the verb refused while something of it lives. If it turns out to be alive after all, `unproven` says so.
    Your name is recorded as you give it, with --as or by your login; nobody checks it.
    """
    run_id = canonical_id("run id", run_id)
    with invocation.ledger() as ledger:
        answer = ledger.attest_not_running(
            run_id,
            actor=invocation.operator,
            because=because,
            version=version,
            provider=local_provider(ledger),
            force=force,
        )
    more = {"attempt_id": answer.attempt_id, "status": answer.status.value}
    write_outcome(invocation, run_id, "attested", answer.version, more)

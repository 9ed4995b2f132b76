"""``runfacts rearm``: let a cancellation be delivered anew (R13.2)."""

from __future__ import annotations

import click

from runfacts.domain.ids import canonical_id
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.seconds import Seconds
from runfacts.infrastructure.cli.verbs import verb, write_outcome


@click.command("rearm", cls=EverywhereCommand, short_help="Deliver a cancellation anew.")
@verb("`runfacts blocked`, or of the delivery in `runfacts show`")
@click.option("--delay", "delay_ms", type=Seconds(), metavar="S", help="Seconds until the first new try.")
@pass_invocation
def command(invocation: Invocation, run_id: str, because: str, version: int, delay_ms: int | None) -> None:
    """Deliver a blocked or delivered cancellation anew, with a new number of tries.

    Your name is recorded as you give it, with --as or by your login; nobody checks it.
    """
    run_id = canonical_id("run id", run_id)
    with invocation.ledger() as ledger:
        answer = ledger.rearm(run_id, actor=invocation.operator, because=because, version=version, delay_ms=delay_ms)
    write_outcome(invocation, run_id, "rearmed", answer.version, {"next_attempt_at_ms": answer.next_attempt_at_ms})

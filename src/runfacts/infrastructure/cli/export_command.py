"""``runfacts export``: whole facts, to be kept elsewhere."""

from __future__ import annotations

from typing import Final

import click

from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation

_SHOWN_EVERY: Final = 50


@click.command("export", cls=EverywhereCommand, short_help="Write whole facts as JSON Lines.")
@click.argument("run_ids", metavar="[RUN]...", nargs=-1)
@pass_invocation
def command(invocation: Invocation, run_ids: tuple[str, ...]) -> None:
    """Write whole facts as JSON Lines, of some runs or of all."""
    with invocation.ledger(create=invocation.uses_own_database) as ledger, output.progress("exporting") as show:

        def tell(runs: int, facts: int) -> None:
            if show is not None and runs % _SHOWN_EVERY == 0:
                show(f"{runs} runs, {facts} facts")

        for line in ledger.export_runs(run_ids, progress=tell):
            output.write_json(line)

"""``runfacts list``: the board, newest first."""

from __future__ import annotations

import click

from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.limits import Settings
from runfacts.domain.views import RunSummary
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.shapes import summary_shape
from runfacts.infrastructure.cli.standing import standing_on_board

_, LEAST, MOST = Settings.bounds()["fact_page"]


@click.command("list", cls=EverywhereCommand, short_help="The runs, newest first.")
@click.option(
    "--status", multiple=True, type=click.Choice([str(status) for status in RunStatus]), help="Only these; repeatable."
)
@click.option("--project", help="Only this project's.")
@click.option("--limit", type=click.IntRange(LEAST, MOST), help="How many at most.")
@click.option("--after", metavar="CURSOR", help="Go on where the page before ended.")
@pass_invocation
def command(
    invocation: Invocation, status: tuple[str, ...], project: str | None, limit: int | None, after: str | None
) -> None:
    """The runs, newest first."""
    with invocation.ledger() as ledger:
        page = ledger.runs(status=[RunStatus(name) for name in status], project=project, limit=limit, after=after)
    if invocation.json:
        output.write_json({"items": [summary_shape(run) for run in page.items], "next": page.next})
        return
    output.table(
        ("run", "project", "task", "status", "stop", "recovery", "created"),
        [
            (
                run.run_id,
                run.project,
                run.task,
                run.status.value,
                _stop(run),
                standing_on_board(run),
                output.moment(run.created_at_ms),
            )
            for run in page.items
        ],
        empty=_nothing(chosen=bool(status or project is not None), further=after is not None),
    )
    if page.next is not None:
        output.say(f"There are more: --after {page.next}")


def _nothing(*, chosen: bool, further: bool) -> str:
    """Say that a page is empty, and why."""
    if further:
        return "There are no more runs."
    return (
        "No run is like that." if chosen else "There are no runs yet; `runfacts submit` and `runfacts exec` make some."
    )


def _stop(run: RunSummary) -> str | None:
    """Say where the delivery of a cancellation stands, where somebody asked for one."""
    if run.intent_at_ms is None:
        return None
    return "asked" if run.dispatch is None else run.dispatch.value

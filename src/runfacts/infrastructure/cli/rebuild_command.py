"""``runfacts rebuild``: projections, made anew from facts beside what is read."""

from __future__ import annotations

import click

from runfacts.domain.projecting import ProjectionName, Rebuilt, Retried
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.failures import REFUSED
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.projection_shapes import rebuilt_shape, retried_shape
from runfacts.infrastructure.ledger import Ledger


@click.command("rebuild", cls=EverywhereCommand, short_help="Build a view anew from all facts.")
@click.argument("projection", type=click.Choice([str(name) for name in ProjectionName]), required=False)
@click.option("--all", "everything", is_flag=True, help="All projections, one after the other.")
@click.option("--set-aside", "set_aside", is_flag=True, help="Only try again what could not be applied.")
@pass_invocation
def command(invocation: Invocation, projection: str | None, *, everything: bool, set_aside: bool) -> int:
    """Build a projection anew beside the live one, then put it in its place.

    Others write and read meanwhile. With --json there is a line for each projection.
    """
    if everything == (projection is not None):
        raise click.UsageError("Name one projection, or give --all")
    names = list(ProjectionName) if projection is None else [ProjectionName(projection)]
    left = 0
    with invocation.ledger(create=invocation.uses_own_database) as ledger:
        for name in names:
            if set_aside:
                left += _tell_retried(invocation, ledger.retry_set_aside(name))
            else:
                left += _tell_rebuilt(invocation, _rebuild(ledger, name))
    return REFUSED if left else 0


def _rebuild(ledger: Ledger, name: ProjectionName) -> Rebuilt:
    with output.progress(f"rebuilding {name}") as show:

        def tell(facts: int) -> None:
            if show is not None:
                show(output.counted(facts, "fact"))

        return ledger.rebuild(name, progress=tell)


def _tell_rebuilt(invocation: Invocation, rebuilt: Rebuilt) -> int:
    if invocation.json:
        output.write_json(rebuilt_shape(rebuilt))
    else:
        facts = output.counted(rebuilt.facts, "fact")
        output.write(f"Rebuilt {rebuilt.projection} from {facts} in {rebuilt.seconds:.1f} s.")
        if rebuilt.set_aside:
            output.write(f"{output.counted(rebuilt.set_aside, 'fact')} could not be applied and were set aside.")
        if rebuilt.unknown:
            output.write(f"{output.counted(rebuilt.unknown, 'fact')} of types unknown to this release are left out.")
    return rebuilt.set_aside


def _tell_retried(invocation: Invocation, retried: Retried) -> int:
    if invocation.json:
        output.write_json(retried_shape(retried))
    else:
        applied = output.counted(retried.applied, "fact")
        output.write(f"Applied {applied} to {retried.projection}; still set aside: {retried.left}.")
    return retried.left

"""``runfacts replay``: one Run as it was."""

from __future__ import annotations

from typing import Any, Final

import click

from runfacts.domain.ids import canonical_id
from runfacts.domain.replay import PastRun
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.moment_type import Moment
from runfacts.infrastructure.cli.run_sheet import Fields, asked_to_stop, created_and_finished, which, write_run
from runfacts.infrastructure.cli.shapes import past_run_shape

_SEQUENCE_DIGITS: Final = 8
"""A number of more digits is a moment in milliseconds: no Run has so many facts."""


class _At(Moment):
    """The number of a fact, or a moment."""

    name = "sequence|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's own signature
        """See ``click.ParamType``. A sequence is given back as its negative, which no moment is."""
        text = str(value).strip()
        if text.isascii() and text.isdigit() and len(text) <= _SEQUENCE_DIGITS:
            return -int(text) or self.fail("facts are numbered from 1", param, ctx)
        return super().convert(value, param, ctx)


@click.command("replay", cls=EverywhereCommand, short_help="One run as it stood earlier.")
@click.argument("run_id", metavar="RUN")
@click.option(
    "--at",
    type=_At(),
    required=True,
    help="The number of a fact, or a moment: RFC 3339, or milliseconds (more than 8 digits).",
)
@pass_invocation
def command(invocation: Invocation, run_id: str, at: int) -> None:
    """One run as it stood after one of its facts, or at a moment."""
    run_id = canonical_id("run id", run_id)
    with invocation.ledger(create=invocation.uses_own_database) as ledger:
        run = ledger.replay(run_id, sequence=-at) if at < 0 else ledger.replay(run_id, at_ms=at)
    if invocation.json:
        output.write_json(past_run_shape(run))
        return
    write_run(run, _fields(run))


def _fields(run: PastRun) -> Fields:
    fields = which(run) | {"since": output.moment(run.updated_at_ms)} | created_and_finished(run)
    if run.cancellation is not None:
        fields |= asked_to_stop(run.cancellation)
        if run.cancellation.dispatch is not None:
            fields["delivery"] = run.cancellation.dispatch.status.value
            fields["tries"] = run.cancellation.dispatch.dispatch_count
            fields["last result"] = run.cancellation.dispatch.last_result
    if run.recovery is not None:
        fields["recovery"] = f"{run.recovery.purpose}: {run.recovery.reason or run.recovery.state.value}"
    if run.unknown_types:
        fields["not understood"] = ", ".join(run.unknown_types)
    return fields

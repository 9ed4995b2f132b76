"""``runfacts show``: one Run with its Attempts."""

from __future__ import annotations

import click

from runfacts.domain.ids import canonical_id
from runfacts.domain.recovery.claims import ClaimState
from runfacts.domain.views import DispatchView, RunView
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.attempt_output import Outputs, outputs_of
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.run_sheet import Fields, asked_to_stop, created_and_finished, which, write_run
from runfacts.infrastructure.cli.shapes import run_shape
from runfacts.infrastructure.cli.standing import standing_of


@click.command("show", cls=EverywhereCommand, short_help="One run: its attempts, and where their output lies.")
@click.argument("run_id", metavar="RUN")
@pass_invocation
def command(invocation: Invocation, run_id: str) -> None:
    """One run with its attempts, and where the output of each lies."""
    run_id = canonical_id("run id", run_id)
    with invocation.ledger() as ledger:
        run = ledger.run(run_id)
        outputs = outputs_of(ledger, run)
    if invocation.json:
        output.write_json(run_shape(run, outputs))
        return
    write_run(run, _fields(run))
    if outputs:
        output.write("")
        output.sheet(_output(run, outputs))


def _fields(run: RunView) -> Fields:
    fields = which(run) | created_and_finished(run)
    if run.idempotency_key is not None:
        fields["key"] = run.idempotency_key
    if run.retry_of_run_id is not None:
        fields["retry of"] = run.retry_of_run_id
    if run.cancellation is not None:
        fields |= asked_to_stop(run.cancellation)
        if run.cancellation.dispatch is not None:
            fields |= _delivery(run.cancellation.dispatch)
    return fields | _recovery(run)


def _output(run: RunView, outputs: Outputs) -> Fields:
    fields: Fields = {}
    for attempt in run.attempts:
        found = outputs.get(attempt.attempt_id)
        if found is None:
            continue
        paths = (("stdout", found.stdout), ("stderr", found.stderr))
        if found.stdout is None and found.stderr is None:
            fields[f"output of {attempt.number}"] = found.words
        else:
            fields |= {f"{name} of {attempt.number}": path or found.words for name, path in paths}
    return fields


def _recovery(run: RunView) -> Fields:
    words = standing_of(run)
    fields: Fields = {} if words is None else {"recovery": words}
    if run.recovery is not None and run.recovery.state is ClaimState.MANUAL:
        fields["recovery version"] = run.recovery.version
    return fields


def _delivery(dispatch: DispatchView) -> Fields:
    fields: Fields = {
        "delivery": dispatch.status.value,
        "its version": dispatch.version,
        "tries": dispatch.dispatch_count,
    }
    if dispatch.last_result is not None:
        fields["last result"] = dispatch.last_result.value
    if dispatch.next_attempt_at_ms is not None:
        fields["next try"] = output.moment(dispatch.next_attempt_at_ms)
    return fields

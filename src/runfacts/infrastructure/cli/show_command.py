"""``runfacts show``: one Run with its Attempts."""

from __future__ import annotations

import click

from runfacts.domain.ids import canonical_id
from runfacts.domain.recovery.claims import ClaimState
from runfacts.domain.views import AttemptView, DispatchView, RunView
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.attempt_output import Outputs, outputs_of
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
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
    output.sheet(_fields(run))
    if run.attempts:
        output.write("")
        output.table(
            ("attempt", "number", "status", "end", "executor", "lease", "at"),
            [
                (
                    attempt.attempt_id,
                    attempt.number,
                    attempt.status.value,
                    how_it_ended(attempt),
                    attempt.executor_type,
                    attempt.lease.value,
                    output.moment(attempt.finished_at_ms or attempt.started_at_ms or attempt.claimed_at_ms),
                )
                for attempt in run.attempts
            ],
        )
    if outputs:
        output.write("")
        output.sheet(_output(run, outputs))


def how_it_ended(attempt: AttemptView) -> str | None:
    """Give the end of an Attempt in a few words."""
    if attempt.evidence is not None:
        return f"lost: {attempt.evidence.value}"
    if attempt.signal is not None:
        return f"signal {attempt.signal}"
    if attempt.error_code is not None:
        return attempt.error_code
    return None if attempt.exit_code is None else f"exit code {attempt.exit_code}"


def _fields(run: RunView) -> dict[str, output.Cell]:
    fields: dict[str, output.Cell] = {
        "run": run.run_id,
        "project": run.project,
        "task": run.task,
        "status": run.status.value,
        "version": run.version,
        "created": output.moment(run.created_at_ms),
        "finished": output.moment(run.finished_at_ms),
    }
    if run.idempotency_key is not None:
        fields["key"] = run.idempotency_key
    if run.retry_of_run_id is not None:
        fields["retry of"] = run.retry_of_run_id
    if run.cancellation is not None:
        fields["asked to stop"] = output.moment(run.cancellation.requested_at_ms)
        fields["why"] = run.cancellation.reason or run.cancellation.kind.value
        if run.cancellation.dispatch is not None:
            fields |= _delivery(run.cancellation.dispatch)
    return fields | _recovery(run)


def _output(run: RunView, outputs: Outputs) -> dict[str, output.Cell]:
    fields: dict[str, output.Cell] = {}
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


def _recovery(run: RunView) -> dict[str, output.Cell]:
    words = standing_of(run)
    fields: dict[str, output.Cell] = {} if words is None else {"recovery": words}
    if run.recovery is not None and run.recovery.state is ClaimState.MANUAL:
        fields["recovery version"] = run.recovery.version
    return fields


def _delivery(dispatch: DispatchView) -> dict[str, output.Cell]:
    fields: dict[str, output.Cell] = {
        "delivery": dispatch.status.value,
        "its version": dispatch.version,
        "tries": dispatch.dispatch_count,
    }
    if dispatch.last_result is not None:
        fields["last result"] = dispatch.last_result.value
    if dispatch.next_attempt_at_ms is not None:
        fields["next try"] = output.moment(dispatch.next_attempt_at_ms)
    return fields

"""``runfacts replay``: one Run as it was."""

from __future__ import annotations

from typing import Any, Final

import click

from runfacts.domain.ids import canonical_id
from runfacts.domain.replay import PastAttempt, PastRun
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.moment_type import Moment
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
    output.sheet(_fields(run))
    if run.attempts:
        output.write("")
        output.table(
            ("attempt", "number", "status", "end", "executor", "at"),
            [
                (
                    attempt.attempt_id,
                    attempt.number,
                    attempt.status.value,
                    _how_it_ended(attempt),
                    attempt.executor_type,
                    output.moment(attempt.finished_at_ms or attempt.started_at_ms or attempt.claimed_at_ms),
                )
                for attempt in run.attempts
            ],
        )


def _how_it_ended(attempt: PastAttempt) -> str | None:
    if attempt.evidence is not None:
        return f"lost: {attempt.evidence.value}"
    if attempt.signal is not None:
        return f"signal {attempt.signal}"
    if attempt.error_code is not None:
        return attempt.error_code
    return None if attempt.exit_code is None else f"exit code {attempt.exit_code}"


def _fields(run: PastRun) -> dict[str, output.Cell]:
    fields: dict[str, output.Cell] = {
        "run": run.run_id,
        "project": run.project,
        "task": run.task,
        "status": run.status.value,
        "version": run.version,
        "since": output.moment(run.updated_at_ms),
        "created": output.moment(run.created_at_ms),
        "finished": output.moment(run.finished_at_ms),
    }
    if run.cancellation is not None:
        fields["asked to stop"] = output.moment(run.cancellation.requested_at_ms)
        fields["why"] = run.cancellation.reason or run.cancellation.kind.value
        if run.cancellation.dispatch is not None:
            fields["delivery"] = run.cancellation.dispatch.status.value
            fields["tries"] = run.cancellation.dispatch.dispatch_count
            fields["last result"] = run.cancellation.dispatch.last_result
    if run.recovery is not None:
        fields["recovery"] = f"{run.recovery.purpose}: {run.recovery.reason or run.recovery.state.value}"
    if run.unknown_types:
        fields["not understood"] = ", ".join(run.unknown_types)
    return fields

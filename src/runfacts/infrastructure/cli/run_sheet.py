"""One Run on a sheet with its Attempts below, as it stands (``show``) or as it stood (``replay``)."""

from __future__ import annotations

from runfacts.domain.replay import PastAttempt, PastCancellation, PastRun
from runfacts.domain.views import AttemptView, CancellationView, RecordedRun, RunView
from runfacts.infrastructure.cli import output

Fields = dict[str, output.Cell]


def write_run(run: RunView | PastRun, fields: Fields) -> None:
    """Write the fields and the Attempts; a column of leases where they are known."""
    output.sheet(fields)
    if not run.attempts:
        return
    output.write("")
    leases = ("lease",) if isinstance(run, RunView) else ()
    output.table(
        ("attempt", "number", "status", "end", "executor", *leases, "at"),
        [
            (
                attempt.attempt_id,
                attempt.number,
                attempt.status.value,
                how_it_ended(attempt),
                attempt.executor_type,
                *((attempt.lease.value,) if isinstance(attempt, AttemptView) else ()),
                output.moment(attempt.finished_at_ms or attempt.started_at_ms or attempt.claimed_at_ms),
            )
            for attempt in run.attempts
        ],
    )


def how_it_ended(attempt: AttemptView | PastAttempt) -> str | None:
    """Give the end of an Attempt in a few words."""
    if attempt.evidence is not None:
        return f"lost: {attempt.evidence.value}"
    if attempt.signal is not None:
        return f"signal {attempt.signal}"
    if attempt.error_code is not None:
        return attempt.error_code
    return None if attempt.exit_code is None else f"exit code {attempt.exit_code}"


def which(run: RecordedRun) -> Fields:
    """Say which Run it is, and its status."""
    return {
        "run": run.run_id,
        "project": run.project,
        "task": run.task,
        "status": run.status.value,
        "version": run.version,
    }


def created_and_finished(run: RecordedRun) -> Fields:
    """Say when it began and ended."""
    return {"created": output.moment(run.created_at_ms), "finished": output.moment(run.finished_at_ms)}


def asked_to_stop(cancellation: CancellationView | PastCancellation) -> Fields:
    """Say when somebody asked it to stop, and why."""
    return {
        "asked to stop": output.moment(cancellation.requested_at_ms),
        "why": cancellation.reason or cancellation.kind.value,
    }

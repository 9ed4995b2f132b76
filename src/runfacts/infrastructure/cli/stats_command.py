"""``runfacts stats``: outcomes, lengths of time and retries, added up; and what became of requests to stop."""

from __future__ import annotations

from typing import Final

import click

from runfacts.domain.limits import Settings
from runfacts.domain.projecting import Grouping, Lag, Lengths
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.moment_type import Moment
from runfacts.infrastructure.cli.projection_shapes import lag_shape, statistics_shape, stop_proof_shape
from runfacts.infrastructure.ledger import Ledger

_, LEAST, MOST = Settings.bounds()["fact_page"]
_COLUMNS: Final = (
    "group",
    "created",
    "succeeded",
    "failed",
    "cancelled",
    "timed out",
    "retries",
    "lost",
    "duration",
    "to cancel",
    "to recover",
)


@click.command("stats", cls=EverywhereCommand, short_help="Outcomes, durations, time to cancel and to recover.")
@click.option("--since", type=Moment(), default=0, help="From the day of this moment on: RFC 3339, or milliseconds.")
@click.option("--by", type=click.Choice([str(by) for by in Grouping]), help="What to add up by. [day]")
@click.option("--stops", is_flag=True, help="Requests to stop instead, one by one, and what became of each.")
@click.option("--limit", type=click.IntRange(LEAST, MOST), help="How many of those at most.")
@click.option("--after", metavar="CURSOR", help="Go on where the page of those before ended.")
@pass_invocation
def command(
    invocation: Invocation, *, since: int, by: str | None, stops: bool, limit: int | None, after: str | None
) -> None:
    """Outcomes, durations, and the time to cancel and to recover."""
    if stops and by is not None:
        raise click.UsageError("--stops lists requests one by one; it does not go with --by")
    if not stops and (limit is not None or after is not None):
        raise click.UsageError("--limit and --after go with --stops")
    with invocation.ledger() as ledger:
        if stops:
            _tell_stops(invocation, ledger, since, limit, after)
        else:
            _tell_statistics(invocation, ledger, since, by or Grouping.DAY)


def _tell_statistics(invocation: Invocation, ledger: Ledger, since: int, by: str) -> None:
    found = ledger.statistics(by=by, since_ms=since)
    if invocation.json:
        items = [statistics_shape(line) for line in found.items]
        output.write_json({"items": items, "next": None, "lag": lag_shape(found.lag)})
        return
    output.table(
        _COLUMNS,
        [
            (
                line.group,
                line.created,
                line.succeeded,
                line.failed,
                line.cancelled,
                line.timed_out,
                line.retries,
                line.lost,
                _mean(line.durations),
                _mean(line.cancellations),
                _mean(line.recoveries),
            )
            for line in found.items
        ],
        empty="Nothing is counted for that time: no fact of it is in the statistics.",
    )
    _say_lag(found.lag)


def _tell_stops(invocation: Invocation, ledger: Ledger, since: int, limit: int | None, after: str | None) -> None:
    found = ledger.stop_proofs(since_ms=since, limit=limit, after=after)
    if invocation.json:
        items = [stop_proof_shape(item) for item in found.items]
        output.write_json({"items": items, "next": found.next, "lag": lag_shape(found.lag)})
        return
    output.table(
        ("run", "project", "asked", "kind", "delivery", "result", "ended", "status", "evidence"),
        [
            (
                item.run_id,
                item.project,
                output.moment(item.requested_at_ms),
                item.kind.value,
                item.delivery,
                item.result,
                output.moment(item.ended_at_ms),
                item.status,
                item.evidence,
            )
            for item in found.items
        ],
        empty="No run of that time was asked to stop." if after is None else "There are no more requests to stop.",
    )
    if found.next is not None:
        output.say(f"There are more: --after {found.next}")
    _say_lag(found.lag)


def _mean(lengths: Lengths) -> str | None:
    return None if lengths.mean_ms is None else f"{lengths.mean_ms / 1_000:.3f} s"


def _say_lag(lag: Lag) -> None:
    if lag.facts:
        facts = output.counted(lag.facts, "fact")
        output.say(f"This lags: {facts} are not in it yet, the oldest was recorded {lag.ms / 1_000:.1f} s ago")

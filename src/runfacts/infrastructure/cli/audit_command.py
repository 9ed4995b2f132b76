"""``runfacts audit``: the audit trail, fact by fact."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Final

import click

from runfacts.domain.facts import Fact
from runfacts.domain.limits import Settings
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.moment_type import Moment
from runfacts.infrastructure.cli.shapes import fact_shape

_, LEAST, MOST = Settings.bounds()["fact_page"]
_UUID_LENGTH: Final = 36
_DASHES: Final = 4
_SHOWN_OF_ID: Final = 8


@click.command("audit", cls=EverywhereCommand)
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--attempt", "attempt_id", metavar="ATTEMPT", help="Only this attempt's.")
@click.option("--actor", "actor_id", metavar="ID", help="Only what this actor did.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only these types of facts; repeatable.")
@click.option("--project", help="Only this project's.")
@click.option("--since", type=Moment(), help="From this moment on: RFC 3339, or milliseconds.")
@click.option("--until", type=Moment(), help="Before this moment.")
@click.option("--limit", type=click.IntRange(LEAST, MOST), help="How many at most.")
@click.option("--after", metavar="CURSOR", help="Go on after this position.")
@click.option("--format", "style", type=click.Choice(["table", "jsonl", "csv"]), help="How to write it.")
@pass_invocation
def command(
    invocation: Invocation,
    *,
    run_id: str | None,
    attempt_id: str | None,
    actor_id: str | None,
    types: tuple[str, ...],
    project: str | None,
    since: int | None,
    until: int | None,
    limit: int | None,
    after: str | None,
    style: str | None,
) -> None:
    """The audit trail, oldest first: of one run or of all."""
    if invocation.json and style not in {None, "jsonl"}:
        raise click.UsageError(f"--json is --format jsonl and does not go with --format {style}")
    with invocation.ledger() as ledger:
        page = ledger.facts(
            run_id=run_id,
            attempt_id=attempt_id,
            actor_id=actor_id,
            types=types,
            project=project,
            since_ms=since,
            until_ms=until,
            limit=limit,
            after=after,
        )
    match "jsonl" if invocation.json else style or "table":
        case "jsonl":
            for fact in page.items:
                output.write_json(fact_shape(fact))
        case "csv":
            _write_csv(page.items)
        case _:
            _write_table(page.items, of_one_run=run_id is not None)
    if page.next is not None:
        output.say(f"There are more: --after {page.next}")


def _write_csv(facts: Sequence[Fact]) -> None:
    if sys.stdout is None:
        return
    names = (
        "position",
        "run_id",
        "sequence",
        "type",
        "schema_version",
        "project",
        "attempt_id",
        "actor_type",
        "actor_id",
        "recorded_at_ms",
        "payload",
    )
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for fact in facts:
        writer.writerow([(fact_shape(fact) | {"payload": fact.payload_text})[name] for name in names])


def _write_table(facts: Sequence[Fact], *, of_one_run: bool) -> None:
    columns = ("at", "run", "seq", "type", "actor", "payload")
    rows = [
        (
            output.moment(fact.recorded_at_ms),
            fact.run_id,
            fact.sequence,
            fact.type,
            _actor(fact),
            _words(fact_shape(fact)["payload"]),
        )
        for fact in facts
    ]
    if of_one_run:
        output.table((columns[0], *columns[2:]), [(row[0], *row[2:]) for row in rows])
    else:
        output.table(columns, rows)


def _actor(fact: Fact) -> str:
    name = fact.actor.id
    return str(fact.actor.type) if name is None else f"{fact.actor.type}:{_short(name)}"


def _words(payload: object) -> str:
    """Give a payload for people; what is nested in it stands in the other formats."""
    if not isinstance(payload, dict):
        return str(payload)
    return " ".join(f"{name}={_word(value)}" for name, value in payload.items())


def _word(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case dict() | list():
            return "…"
        case _:
            return _short(str(value))


def _short(text: str) -> str:
    """Of an id that is drawn, its end is enough to tell two apart."""
    return "…" + text[-_SHOWN_OF_ID:] if len(text) == _UUID_LENGTH and text.count("-") == _DASHES else text

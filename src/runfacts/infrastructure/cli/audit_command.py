"""``runfacts audit``: the audit trail, fact by fact."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

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


@click.command("audit", cls=EverywhereCommand, short_help="The audit trail, oldest first.")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--attempt", "attempt_id", metavar="ATTEMPT", help="Only this attempt's.")
@click.option("--actor", "actor_id", metavar="ID", help="Only what this actor did.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only these types of facts; repeatable.")
@click.option("--project", help="Only this project's.")
@click.option("--since", type=Moment(), help="From this moment on: RFC 3339, or milliseconds.")
@click.option("--until", type=Moment(), help="Before this moment.")
@click.option("--limit", type=click.IntRange(LEAST), help="How many at most; a table takes up to 500.")
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
    style = "jsonl" if invocation.json else style or "table"
    if style == "table" and limit is not None and limit > MOST:
        raise click.UsageError(f"a table has at most {MOST} rows; --format jsonl and csv take any number")
    with invocation.ledger() as ledger, output.progress("reading") as show:
        write = _WRITERS[style](of_one_run=run_id is not None)
        left = ledger.settings.fact_page if limit is None else limit
        written = 0
        while left:
            page = ledger.facts(
                run_id=run_id,
                attempt_id=attempt_id,
                actor_id=actor_id,
                types=types,
                project=project,
                since_ms=since,
                until_ms=until,
                limit=min(left, MOST),
                after=after,
            )
            write(page.items)
            written += len(page.items)
            left -= len(page.items)
            after = page.next
            if after is None:
                break
            if show is not None:
                show(f"{written} facts")
    if after is not None and not left:
        output.say(f"There are more: --after {after}")


class _Writer(Protocol):
    def __call__(self, facts: Sequence[Fact]) -> None: ...


class _JsonLines:
    """Writes a fact a line."""

    def __init__(self, *, of_one_run: bool) -> None:
        del of_one_run

    def __call__(self, facts: Sequence[Fact]) -> None:
        for fact in facts:
            output.write_json(fact_shape(fact))


class _Csv:
    """Writes a row a fact, below the names of the columns."""

    NAMES = (
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

    def __init__(self, *, of_one_run: bool) -> None:
        del of_one_run
        # Where nobody reads stdout there is none.
        self._writer = None if sys.stdout is None else csv.writer(sys.stdout, lineterminator="\n")
        if self._writer is not None:
            self._writer.writerow(self.NAMES)

    def __call__(self, facts: Sequence[Fact]) -> None:
        if self._writer is not None:
            for fact in facts:
                shape = fact_shape(fact) | {"payload": fact.payload_text}
                self._writer.writerow([shape[name] for name in self.NAMES])


class _Table:
    """Writes a table for people; of one page only, for its columns are as wide as what stands in them."""

    def __init__(self, *, of_one_run: bool) -> None:
        self._of_one_run = of_one_run

    def __call__(self, facts: Sequence[Fact]) -> None:
        if facts:
            _write_table(facts, of_one_run=self._of_one_run)
        else:
            output.write("There are no such facts.")


_WRITERS: Final[dict[str, Callable[..., _Writer]]] = {"jsonl": _JsonLines, "csv": _Csv, "table": _Table}


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

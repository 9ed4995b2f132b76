"""``runfacts import``: Runs of an archive, taken in whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import BinaryIO, Final

import click

from runfacts.domain.archives import AlreadyImported, Imported, NotImported
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.failures import Failure, ImportRefused
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation

_SHOWN_EVERY: Final = 50
_NAMED: Final = 100


@dataclass
class _Count:
    """What came of an import so far. Of those that were refused, only the first are named."""

    imported: int = 0
    facts: int = 0
    there: int = 0
    refused: int = 0
    named: list[NotImported] = field(default_factory=list)

    def add(self, answer: Imported | AlreadyImported | NotImported) -> None:
        match answer:
            case Imported():
                self.imported += 1
                self.facts += answer.version
            case AlreadyImported():
                self.there += 1
            case NotImported():
                self.refused += 1
                if len(self.named) < _NAMED:
                    self.named.append(answer)

    def shape(self) -> dict[str, object]:
        return {
            "runs": self.imported,
            "facts": self.facts,
            "already_there": self.there,
            "refused": self.refused,
            "refusals": [{"run_id": item.run_id, "line": item.line, "reason": item.reason} for item in self.named],
        }


@click.command("import", cls=EverywhereCommand, short_help="Take in what `runfacts export` wrote.")
@click.argument("archive", metavar="FILE", type=click.File("rb"))
@click.option(
    "--as-archive",
    is_flag=True,
    help="Take also runs that have not ended: their facts are kept, and nobody here executes them.",
)
@pass_invocation
def command(invocation: Invocation, archive: BinaryIO, *, as_archive: bool) -> int:
    """Take in what `runfacts export` wrote: each run whole, or not at all."""
    count = _Count()
    with invocation.ledger() as ledger, output.progress("importing") as show:
        for number, answer in enumerate(
            ledger.import_runs(archive, actor=invocation.actor, as_archive=as_archive), start=1
        ):
            count.add(answer)
            if show is not None and number % _SHOWN_EVERY == 0:
                show(f"{count.imported} runs, {count.facts} facts")
    refusal = Failure.of(ImportRefused(count.named[0], count.refused)) if count.named else None
    if invocation.json:
        error = {} if refusal is None else {"error": {"code": refusal.code, "message": refusal.message}}
        output.write_json(count.shape() | error)
    else:
        if count.named:
            output.table(("line", "run", "reason"), [(item.line, item.run_id, item.reason) for item in count.named])
        there = f", {output.counted(count.there, 'run')} already there" if count.there else ""
        output.write(
            f"Imported {output.counted(count.imported, 'run')} and {output.counted(count.facts, 'fact')}{there}."
        )
    if refusal is None:
        return 0
    output.say(f"runfacts: {output.visible(refusal.message)}")
    return refusal.exit_code

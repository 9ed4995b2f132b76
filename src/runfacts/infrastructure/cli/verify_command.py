"""``runfacts verify``: everything that can be recomputed, recomputed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final, TextIO

import click

from runfacts.domain.ids import canonical_id
from runfacts.domain.views import Difference, Head, VerifyReport
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.failures import REFUSED
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.shapes import head_shape, report_shape
from runfacts.infrastructure.ledger import Ledger

_HASH_DIGITS: Final = 64
_VERSION_BOUND: Final = 1 << 53
_LONGEST_LINE: Final = 1_024
_SHOWN_EVERY: Final = 50


@click.command("verify", cls=EverywhereCommand, short_help="Compute everything again, and report differences.")
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--heads", is_flag=True, help="Only print id, version and hash of every run, as JSON Lines.")
@click.option("--against", type=click.File(encoding="utf-8"), help="Compare also with heads that were printed earlier.")
@pass_invocation
def command(invocation: Invocation, run_id: str | None, *, heads: bool, against: TextIO | None) -> int:
    """Compute everything again from the facts, and report each difference."""
    if heads and against is not None:
        raise click.UsageError("--heads prints what --against compares; give one of them")
    if run_id is not None:
        run_id = canonical_id("run id", run_id)
    with invocation.ledger(create=invocation.uses_own_database) as ledger:
        if heads:
            for head in ledger.heads(run_id):
                output.write_json(head_shape(head))
            return 0
        known = _Counted(() if against is None else _heads_in(against, run_id))
        report, differences = _verify(ledger, run_id, known)
    if invocation.json:
        output.write_json(report_shape(report, differences))
    else:
        _tell(report, differences, None if against is None else known.number)
    return REFUSED if differences else 0


class _Counted:
    """Heads as they are read: there may be more of them than fit into memory."""

    def __init__(self, heads: Iterable[Head]) -> None:
        self._heads = heads
        self.number = 0

    def __iter__(self) -> Iterator[Head]:
        for head in self._heads:
            self.number += 1
            yield head


def _verify(ledger: Ledger, run_id: str | None, known: _Counted) -> tuple[VerifyReport, list[Difference]]:
    with output.progress("verifying") as show:

        def tell(runs: int, facts: int) -> None:
            if show is not None and runs % _SHOWN_EVERY == 0:
                show(f"{runs} runs, {facts} facts")

        # First, so that a file that is none is refused before the long part.
        rewritten = list(ledger.compare_heads(known))
        report = ledger.verify(run_id, progress=tell)
        return report, [*report.differences, *rewritten]


def _heads_in(file: TextIO, run_id: str | None) -> Iterator[Head]:
    """Read the heads that ``--heads`` printed: those of one Run, or all."""
    found = False
    try:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), start=1):
            if not line.strip():
                continue
            head = _head(line)
            if head is None:
                raise click.UsageError(f"line {number} of {file.name} is none that `runfacts verify --heads` prints")
            if run_id is None or head.run_id == run_id:
                found = True
                yield head
    except UnicodeDecodeError:
        raise click.UsageError(f"{file.name} is no text") from None
    if run_id is not None and not found:
        raise click.UsageError(f"{file.name} has no head of run {run_id}")


def _head(line: str) -> Head | None:
    try:
        read = json.loads(line)
        run_id, version, digest = canonical_id("run id", read["run_id"]), read["version"], read["hash"]
    except (ValueError, TypeError, KeyError):
        return None
    if isinstance(version, bool) or not isinstance(version, int) or not 0 < version < _VERSION_BOUND:
        return None
    if not isinstance(digest, str) or len(digest) != _HASH_DIGITS:
        return None
    return Head(run_id, version, digest)


def _tell(report: VerifyReport, differences: list[Difference], known: int | None) -> None:
    if differences:
        output.table(
            ("run", "kind", "field", "seq", "recorded", "recomputed"),
            [
                (item.run_id, item.kind, item.field, item.sequence, item.recorded, item.recomputed)
                for item in differences
            ],
        )
    looked_at = f"{output.counted(report.runs, 'run')} and {output.counted(report.facts, 'fact')}"
    if known is not None:
        looked_at += f", {output.counted(known, 'earlier head')}"
    found = "nothing differs" if not differences else output.counted(len(differences), "difference")
    output.write(f"Verified {looked_at}: {found}.")
    if report.unknown_types:
        names = ", ".join(f"{name} ({count})" for name, count in sorted(report.unknown_types.items()))
        output.write(f"Of types that this release does not know: {output.visible(names)}.")

"""``runfacts timeline``: the life of one Run, drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import click

from runfacts.domain.facts import Fact
from runfacts.domain.ids import canonical_id
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation

_STYLES: Final = {
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "timed_out": "yellow",
    "lost": "magenta",
    "running": "cyan",
}
_MS: Final = 1_000
_MINUTE: Final = 60_000
_HOUR: Final = 3_600_000
_DAY: Final = 86_400_000
# Said by the line already, or of no use to a person.
_LEFT_OUT: Final = ("number", "attempt_id", "policy")


@click.command("timeline", cls=EverywhereCommand, short_help="The life of one run, fact by fact.")
@click.argument("run_id", metavar="RUN")
@pass_invocation
def command(invocation: Invocation, run_id: str) -> None:
    """The life of one run, fact by fact, with what each step took."""
    if invocation.json:
        raise click.UsageError(
            "timeline draws for people and has no --json; `runfacts audit RUN --json` gives the facts"
        )
    run_id = canonical_id("run id", run_id)
    with invocation.ledger(create=invocation.uses_own_database) as ledger:
        draw = _pretty if output.is_terminal(sys.stdout) else _plain
        head = ledger.replay(run_id)
        output.write(f"run {head.run_id}  {output.visible(head.task)}  {head.status.value}")
        numbers: dict[str, int] = {}
        begun: int | None = None
        for fact in ledger.facts_of(run_id):
            begun = fact.recorded_at_ms if begun is None else begun
            if fact.attempt_id is not None:
                numbers.setdefault(fact.attempt_id, len(numbers) + 1)
            draw(fact, fact.recorded_at_ms - begun, numbers.get(fact.attempt_id or ""))


def elapsed(ms: int) -> str:
    """Give a length of time in the two units that matter."""
    if ms < _MINUTE:
        return f"+{ms // _MS}.{ms % _MS:03d}s"
    if ms < _HOUR:
        return f"+{ms // _MINUTE}m {ms % _MINUTE // _MS:02d}s"
    if ms < _DAY:
        return f"+{ms // _HOUR}h {ms % _HOUR // _MINUTE:02d}m"
    return f"+{ms // _DAY}d {ms % _DAY // _HOUR:02d}h"


def _plain(fact: Fact, since_ms: int, attempt: int | None) -> None:
    cells = (
        str(output.moment(fact.recorded_at_ms)).ljust(24),
        elapsed(since_ms).rjust(9),
        str(fact.sequence).rjust(4),
        ("-" if attempt is None else f"#{attempt}").ljust(3),
        output.visible(fact.type).ljust(28),
        _who(fact),
        " ".join(_said(fact)),
    )
    output.write("  ".join(cells).rstrip())


def _pretty(fact: Fact, since_ms: int, attempt: int | None) -> None:
    from rich.text import Text

    style = _STYLES.get(fact.type.rpartition(".")[2], "")
    mark = "?" if not fact.known else "●" if fact.type.startswith("run.") else "○"
    line = Text.assemble(
        (elapsed(since_ms).rjust(9), "dim"),
        "  ",
        ("   " if attempt is None else f"#{attempt}".ljust(3), "dim"),
        "  " if fact.of_attempt else "",
        (mark, style),
        " ",
        (output.visible(fact.type), f"bold {style}".strip()),
        "  ",
        (_who(fact), "dim"),
        "  ",
        " ".join(_said(fact)),
    )
    line.rstrip()
    output.draw(line)


def _who(fact: Fact) -> str:
    return str(fact.actor.type) if fact.actor.id is None else output.visible(f"{fact.actor.type}:{fact.actor.id}")


def _said(fact: Fact) -> Iterator[str]:
    """Give what the payload says in words; nested values and what the line shows anyway are left out."""
    if not fact.known:
        yield "(of a type or version that this release does not know)"
        return
    said: dict[str, Any] = fact.payload.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    for name, value in said.items():
        if name in _LEFT_OUT or name.endswith(("_sha256", "_length")):
            continue
        if name.endswith("_at_ms") and isinstance(value, int):
            yield f"{name.removesuffix('_at_ms')}={output.moment(value)}"
        elif isinstance(value, bool):
            yield f"{name}={'yes' if value else 'no'}"
        else:
            yield output.visible(f"{name}={value}")

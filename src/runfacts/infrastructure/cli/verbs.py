"""
What operators' verbs have in common on the command line (R13.2, R13.3).

Each needs a reason and the version of what the operator has looked at, so that nobody acts on something that has
changed meanwhile. Who the operator is, is their own word: the command says so each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import click

from runfacts.domain.errors import UnsupportedPlatform
from runfacts.domain.recovery.evidence import EvidenceProvider
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.failures import ReasonRequired, VersionRequired
from runfacts.infrastructure.cli.invocation import Invocation

if TYPE_CHECKING:
    from runfacts.infrastructure.ledger import Ledger

_VERSION_BOUND: Final = 1 << 53

Function = TypeVar("Function", bound=Callable[..., None])


def verb(where: str) -> Callable[[Function], Function]:
    """Give a verb its argument and the options that each has; the version stands ``where``."""

    def decorate(function: Function) -> Function:
        for add in (
            click.option(
                "--version",
                type=click.IntRange(0, _VERSION_BOUND),
                metavar="N",
                callback=lambda _ctx, _parameter, value: _version(value, where),
                help=f"The version that you have seen: that of {where}.",
            ),
            click.option("--because", metavar="TEXT", callback=_reason, help="Why; kept in the audit trail."),
            click.argument("run_id", metavar="RUN"),
        ):
            function = add(function)
        return function

    return decorate


def write_outcome(invocation: Invocation, run_id: str, outcome: str, version: int, more: Mapping[str, object]) -> None:
    """Write what a verb did, and on whose word."""
    if invocation.json:
        output.write_json({"run_id": run_id, "outcome": outcome, "version": version, **more})
        return
    name = output.visible(invocation.operator.id)
    output.say(f"Recorded on the word of {name}, as --as or the login name says; nobody has checked who that is.")
    shown: dict[str, output.Cell] = {"run": run_id, "outcome": outcome, "version": version}
    for field, value in more.items():
        if field.endswith("_at_ms") and isinstance(value, int):
            shown[field.removesuffix("_at_ms").replace("_", " ")] = output.moment(value)
        else:
            shown[field] = str(value)
    output.sheet(shown)


def local_provider(ledger: Ledger) -> EvidenceProvider | None:
    """Give who can look for local processes; nobody where there are none."""
    try:
        return ledger.local_evidence()
    except UnsupportedPlatform:
        return None


def _version(value: int | None, where: str) -> int:
    if value is None:
        raise VersionRequired(where)
    return value


def _reason(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    if value is None or not value.strip():
        raise ReasonRequired
    return value

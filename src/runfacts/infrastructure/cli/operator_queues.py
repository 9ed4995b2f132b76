"""What the commands of operators' queues have in common: options, pages, and what is shown (R13.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import click

from runfacts.domain.cancellation.operators import BlockedDispatch, UnprovenStop
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.operators import ManualRecovery
from runfacts.domain.views import Page
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import Invocation
from runfacts.infrastructure.cli.shapes import manual_shape, queued_shape

_, LEAST, MOST = Settings.bounds()["fact_page"]

Function = TypeVar("Function", bound=Callable[..., None])
Queue = Page[BlockedDispatch] | Page[UnprovenStop]


def paged(function: Function) -> Function:
    """Give a command the options by which pages are turned."""
    limit = click.option("--limit", type=click.IntRange(LEAST, MOST), help="How many at most.")
    after = click.option("--after", metavar="CURSOR", help="Go on where the page before ended.")
    return limit(after(function))


def write_queue(invocation: Invocation, page: Queue, *, empty: str) -> None:
    """Write a page of a queue; on a table, what each reason means stands below it."""
    if invocation.json:
        output.write_json({"items": [queued_shape(item) for item in page.items], "next": page.next})
        return
    output.table(
        ("run", "reason", "since", "version"),
        [(item.run_id, item.reason, output.moment(item.since_ms), item.version) for item in page.items],
        empty=empty,
    )
    _explain({(item.reason, item.diagnosis): None for item in page.items})
    _go_on(page.next)


def write_manual(invocation: Invocation, page: Page[ManualRecovery]) -> None:
    """Write a page of what waits for an operator in recovery; the same reason may mean another thing to a stop."""
    if invocation.json:
        output.write_json({"items": [manual_shape(item) for item in page.items], "next": page.next})
        return
    output.table(
        ("run", "for", "reason", "since", "version", "run version"),
        [
            (
                item.run_id,
                item.purpose.value,
                item.reason,
                output.moment(item.since_ms),
                item.version,
                item.run_version,
            )
            for item in page.items
        ],
        empty="No run waits for an operator to say what became of it.",
    )
    _explain({(f"{item.purpose.value}, {item.reason}", item.diagnosis): None for item in page.items})
    _go_on(page.next)


def _explain(diagnoses: Iterable[tuple[str, str]]) -> None:
    for what, diagnosis in diagnoses:
        output.write(f"\n{output.visible(what)}: {diagnosis}")


def _go_on(cursor: str | None) -> None:
    if cursor is not None:
        output.say(f"There are more: --after {cursor}")

"""What the commands of operators' queues have in common: options, pages, and what is shown (R13.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from runfacts.domain.cancellation.operators import BlockedDispatch, UnprovenStop
from runfacts.domain.limits import Settings
from runfacts.domain.views import Page
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import Invocation
from runfacts.infrastructure.cli.shapes import queued_shape

_, LEAST, MOST = Settings.bounds()["fact_page"]

Function = TypeVar("Function", bound=Callable[..., None])
Queue = Page[BlockedDispatch] | Page[UnprovenStop]


def paged(function: Function) -> Function:
    """Give a command the options by which pages are turned."""
    limit = click.option("--limit", type=click.IntRange(LEAST, MOST), help="How many at most.")
    after = click.option("--after", metavar="CURSOR", help="Go on where the page before ended.")
    return limit(after(function))


def write_queue(invocation: Invocation, page: Queue) -> None:
    """Write a page of a queue; on a table, what each reason means stands below it."""
    if invocation.json:
        output.write_json({"items": [queued_shape(item) for item in page.items], "next": page.next})
        return
    output.table(
        ("run", "reason", "since", "version"),
        [(item.run_id, item.reason, output.moment(item.since_ms), item.version) for item in page.items],
    )
    for reason, diagnosis in {item.reason: item.diagnosis for item in page.items}.items():
        output.write(f"\n{output.visible(reason)}: {diagnosis}")
    if page.next is not None:
        output.say(f"There are more: --after {page.next}")

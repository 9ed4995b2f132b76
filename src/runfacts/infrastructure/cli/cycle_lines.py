"""What workers write about their cycles."""

from __future__ import annotations

from typing import Final

from runfacts.domain.cancellation.supervisor import SupervisorReport
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import Invocation

NOTHING: Final = "There was nothing to do."
"""What is said of a single cycle in which nothing happened."""


def write_cycle(invocation: Invocation, report: SupervisorReport, *, only: bool = False) -> None:
    """Write what a cycle counted; without ``--json`` the parts in which something happened.

    Where nothing did, that is said of the ``only`` cycle, and of others nothing.
    """
    if invocation.json:
        output.write_json({part: dict(counters) for part, counters in report.counters.items()})
    else:
        counted = {
            part: ", ".join(f"{name} {count}" for name, count in counters.items() if count)
            for part, counters in report.counters.items()
        }
        for part, words in counted.items():
            if words:
                output.write(f"{part}: {words}")
        if only and not any(counted.values()):
            output.write(NOTHING)
    output.flush()

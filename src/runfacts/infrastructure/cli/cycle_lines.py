"""What workers write about their cycles."""

from __future__ import annotations

from runfacts.domain.cancellation.supervisor import SupervisorReport
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import Invocation


def write_cycle(invocation: Invocation, report: SupervisorReport, *, always: bool = False) -> None:
    """Write what a cycle counted; without ``--json`` only where there is something, unless ``always`` is said."""
    if invocation.json:
        output.write_json({part: dict(counters) for part, counters in report.counters.items()})
    else:
        for part, counters in report.counters.items():
            counted = ", ".join(f"{name} {count}" for name, count in counters.items() if count)
            if counted or always:
                output.write(f"{part}: {counted or 'nothing'}")
    output.flush()

"""
``runfacts supervise``: a worker that does all that a ledger needs besides hosting (R9, R11, R12).

Cycles run in a thread of their own; the main thread writes what they counted and waits for SIGTERM or Ctrl-C, which
ends the worker after the cycle under way.
"""

from __future__ import annotations

from collections.abc import Mapping
from queue import SimpleQueue
from types import MappingProxyType
from typing import Final

import click

from runfacts.domain.cancellation.supervisor import SupervisorReport
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.admission import GATE_AGAIN_S, say_admission
from runfacts.infrastructure.cli.cycle_lines import write_cycle
from runfacts.infrastructure.cli.failures import REFUSED
from runfacts.infrastructure.cli.interruption import Interruption
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.log_lines import log_shown
from runfacts.infrastructure.cli.seconds import Seconds
from runfacts.infrastructure.cli.trouble import Troubles
from runfacts.infrastructure.supervision import Duty, Supervision

DUTIES: Final[Mapping[str, tuple[Duty, ...]]] = MappingProxyType(
    {
        "cancel": (Duty.DEADLINES, Duty.CANCELLATION),
        "complete": (Duty.COMPLETION,),
        "recover": (Duty.RECOVERY,),
        "stop": (Duty.STOP,),
        "retry": (Duty.RETRY,),
        "project": (Duty.PROJECT,),
    }
)
"""What ``--only`` names."""


@click.command("supervise", cls=EverywhereCommand, short_help="Deliver cancellations, recover runs, queue retries.")
@click.option("--once", is_flag=True, help="Run one cycle and end.")
@click.option("--only", type=click.Choice(sorted(DUTIES)), help="Do only this.")
@click.option("--gate", is_flag=True, help="Say when new Runs may be admitted; with --once fail if they may not.")
@click.option("--interval", "interval_ms", type=Seconds(), metavar="S", help="Seconds between two cycles.")
@pass_invocation
def command(invocation: Invocation, *, once: bool, only: str | None, gate: bool, interval_ms: int | None) -> int:
    """Look after Runs until SIGTERM or Ctrl-C.

    Deliver cancellations, enforce deadlines, record receipts, recover Runs whose host is gone, confirm stops, queue
    retries and bring projections up to date.

    With --json each cycle is a line of counters; without it, only what happened is shown.
    """
    duties = None if only is None else DUTIES[only]
    with invocation.ledger(measured=True) as ledger, log_shown(debug=invocation.debug):
        reports: SimpleQueue[SupervisorReport | None] = SimpleQueue()
        troubles = Troubles()
        supervision = ledger.supervise(
            duties=duties, interval_ms=interval_ms, on_cycle=reports.put, on_diagnostic=troubles
        )
        if once:
            refused = gate and not say_admission(supervision.admit())
            only_report = supervision.cycle()
            write_cycle(invocation, only_report, only=True)
            troubles.raise_the_first()
            return REFUSED if only_report.failed or refused else 0
        with Interruption() as interruption:
            interruption.tell(lambda: reports.put(None))
            output.say(f"runfacts: supervising as {supervision.owner}")
            supervision.start()
            try:
                if gate:
                    _pass_gate(supervision, interruption)
                while (report := reports.get()) is not None:
                    write_cycle(invocation, report)
            finally:
                ended = supervision.stop()
            return _end(invocation, reports, supervision, ended=ended)


def _pass_gate(supervision: Supervision, interruption: Interruption) -> None:
    """Ask until new Runs may be admitted, and say so; the cycles go on meanwhile (R11.9)."""
    while not interruption.times and not say_admission(supervision.admit(lambda: interruption.times > 0)):
        interruption.wait(GATE_AGAIN_S)


def _end(
    invocation: Invocation,
    reports: SimpleQueue[SupervisorReport | None],
    supervision: Supervision,
    *,
    ended: bool,
) -> int:
    while not reports.empty():
        report = reports.get()
        if report is not None:
            write_cycle(invocation, report)
    if not ended:
        output.say(f"runfacts: the cycle of {supervision.owner} did not end in time; others take over what it held")
        return REFUSED
    return 0

"""
``runfacts work``: a worker that hosts queued Runs, and supervises beside it (R9.5, R12.1).

Cycles and commands have threads of their own; the main thread writes what was counted and waits for SIGTERM or Ctrl-C.
The first takes nothing new and lets what runs come to its end within ``drain_ms``; what does not is left running, and
so is all of it at the second. A worker that goes ends no command.
"""

from __future__ import annotations

import os
from queue import SimpleQueue

import click

from runfacts.domain.cancellation.supervisor import SupervisorReport
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.cycle_lines import write_cycle
from runfacts.infrastructure.cli.failures import REFUSED
from runfacts.infrastructure.cli.interruption import Interruption
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.log_lines import log_shown
from runfacts.infrastructure.cli.seconds import Seconds
from runfacts.infrastructure.cli.trouble import Troubles
from runfacts.infrastructure.hosting import PART
from runfacts.infrastructure.working import CONCURRENCY_MAX, Working


@click.command("work", cls=EverywhereCommand, short_help="Run queued commands, and supervise.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, CONCURRENCY_MAX),
    metavar="N",
    help="Run so many commands at a time; as many as there are CPUs if left out.",
)
@click.option("--once", is_flag=True, help="Run one cycle, then what is queued until nothing is left, and end.")
@click.option("--gate", is_flag=True, help="Begin nothing before what became of old runs is known.")
@click.option("--interval", "interval_ms", type=Seconds(), metavar="S", help="Seconds between two cycles.")
@pass_invocation
def command(invocation: Invocation, *, concurrency: int | None, once: bool, gate: bool, interval_ms: int | None) -> int:
    """Run queued commands, and do all that `supervise` does, until SIGTERM or Ctrl-C.

    Then nothing new is begun, and commands have drain_ms to end; what runs on after that, or after a second signal, is
    left running, and any worker of this machine records how it ends. With --json each cycle is a line of counters;
    without it, only what happened is shown.
    """
    with invocation.ledger(measured=True) as ledger, log_shown(debug=invocation.debug):
        reports: SimpleQueue[SupervisorReport | None] = SimpleQueue()
        places = concurrency or min(CONCURRENCY_MAX, os.cpu_count() or 1)
        troubles = Troubles()
        working = ledger.work(
            concurrency=places, gate=gate, interval_ms=interval_ms, on_cycle=reports.put, on_diagnostic=troubles
        )
        with Interruption() as interruption:

            def interrupted() -> None:
                if interruption.times > 1:
                    working.leave()
                else:
                    reports.put(None)

            interruption.tell(interrupted)
            if once:
                report = working.once(lambda: interruption.times > 0)
                write_cycle(invocation, report, only=True)
                code = _end(
                    report[PART].get("detached", 0), ended=not working.hosting, failed=report.failed + _left(working)
                )
                troubles.raise_the_first()
                return code
            output.say(f"runfacts: working as {working.owner}, {output.counted(places, 'command')} at a time")
            working.start()
            detached = 0
            try:
                while (told := reports.get()) is not None:
                    write_cycle(invocation, told)
            finally:
                _say_what_is_waited_for(working)
                ended = working.stop()
            while not reports.empty():
                told = reports.get()
                if told is not None:
                    write_cycle(invocation, told)
                    detached += told[PART].get("detached", 0)
            return _end(detached, ended=ended)


def _left(working: Working) -> int:
    """Say why queued Runs were left where they are, and count the reasons."""
    if not working.admitted:
        output.say("runfacts: nothing was begun: what became of old runs is not known yet")
    if working.in_trouble:
        output.say("runfacts: hosting failed; what is still queued was left")
    return (not working.admitted) + working.in_trouble


def _say_what_is_waited_for(working: Working) -> None:
    if working.hosting:
        output.say(
            f"runfacts: waiting for {output.counted(working.hosting, 'command')} to end; once more leaves them alone"
        )


def _end(detached: int, *, ended: bool, failed: int = 0) -> int:
    """Say what has to be said about the end, and give the exit code."""
    if detached:
        output.say(
            f"runfacts: {output.counted(detached, 'command')} left running; any worker of this machine records the end"
        )
    if not ended:
        output.say("runfacts: not all of this worker's threads ended in time; others take over what it held")
    return REFUSED if failed or not ended else 0

"""
``runfacts exec``: one command under the ledger, in the foreground.

stdout and the exit code are the command's own. What ``runfacts`` has to say goes to stderr, the Run's id first, so
that whoever loses the terminal can find the Run again. Ctrl-C and SIGTERM cancel the Run, and the host waits for its
end; a second one ends the host and leaves the command to its keeper and to supervisors.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import click

from runfacts.domain.actors import Actor
from runfacts.domain.answers import AlreadyCreated, Finished, LateCallback, Repeated, StopNotProven
from runfacts.domain.errors import RunfactsError
from runfacts.domain.lifecycle import TERMINAL_RUN, IntentKind, RunStatus
from runfacts.domain.views import RunView
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.descriptors import Descriptor
from runfacts.infrastructure.cli.failures import CONFLICT, EXEC_FAILED
from runfacts.infrastructure.cli.interruption import SIGNALLED, Interruption
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.log_lines import log_held_back
from runfacts.infrastructure.cli.seconds import Seconds
from runfacts.infrastructure.cli.shapes import run_shape
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.own_run import OwnRuns
from runfacts.infrastructure.processes.held import HeldPidfds
from runfacts.infrastructure.processes.host import (
    Command,
    Detached,
    Ended,
    HostedOutcome,
    KeeperLost,
    LocalHost,
    NeverRan,
    NotHosted,
    NotStarted,
)
from runfacts.infrastructure.processes.launcher import Launcher
from runfacts.infrastructure.supervision import own_runs_of
from runfacts.infrastructure.tokens import new_worker_id

TIMED_OUT: Final = 124
"""The exit code of a command that was stopped because its time was over."""
CANCELLED: Final = SIGNALLED + signal.SIGTERM
"""The exit code of a cancelled run whose command says nothing else, or 0: it must not look like success."""

_STOPPED: Final = {RunStatus.CANCELLED: "the run was cancelled", RunStatus.TIMED_OUT: "its time was over"}
_FOLLOW_EVERY_S: Final = 0.25
_LEAVE_WITHIN_MS: Final = 1_000


class ExecCommand(EverywhereCommand):
    """A command whose failures all end with 125, since the other exit codes belong to what it runs."""

    def invoke(self, ctx: click.Context) -> object:
        """See ``click.Command``."""
        ctx.ensure_object(Invocation).hosts = True
        return super().invoke(ctx)


@click.command("exec", cls=ExecCommand, context_settings={"allow_interspersed_args": False})
@click.option("--project", default="default", show_default=True, help="The project that the run belongs to.")
@click.option("--task", default="command", show_default=True, help="What the run is about.")
@click.option("--key", help="Run it once: a run of the project that has this key is shown instead.")
@click.option("--timeout", "timeout_ms", type=Seconds(), metavar="S", help="Stop it after so many seconds.")
@click.option("--stdin", is_flag=True, help="Let the command read stdin; else it has /dev/null.")
@click.argument("arguments", metavar="-- CMD ...", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_invocation
def command(
    invocation: Invocation,
    *,
    project: str,
    task: str,
    key: str | None,
    timeout_ms: int | None,
    stdin: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run a command under the ledger, in the foreground, and exit with its code.

    Ctrl-C stops the command; a second one leaves it running. 128+n says that signal n ended it, 124 that its time was
    over, 127 that it was not found, 126 that it cannot be executed, 125 that runfacts itself failed.
    """
    if not arguments[0]:
        raise click.UsageError("The command is empty")
    directory = _working_directory()
    with invocation.ledger() as ledger, log_held_back(debug=invocation.debug) as show_log:
        machine = ledger.machine()
        ledger.places().make()
        worker_id, held = new_worker_id(), HeldPidfds()
        own = own_runs_of(ledger, held, worker_id=worker_id)
        collected = ledger.collect_receipts()
        with Interruption() as interruption:
            created = ledger.create(
                actor=invocation.actor, task=task, project=project, idempotency_key=key, timeout_ms=timeout_ms
            )
            run = created.run
            output.say(f"run {run.run_id}")
            show_log()
            if collected.quarantined:
                output.say(f"{output.counted(collected.quarantined, 'receipt')} could not be believed; set aside")
            if isinstance(created, AlreadyCreated):
                return _existing(invocation, run)
            ledger.queue(run.run_id, actor=invocation.actor)
            stderr = Descriptor.of(sys.stderr)
            host = LocalHost(
                ledger,
                Launcher(machine, gate_timeout_ms=ledger.settings.gate_timeout_ms, steps=ledger.database.steps),
                ledger.places(),
                worker_id=worker_id,
                lease_ms=ledger.settings.execution_lease_ms,
                poll_ms=ledger.settings.poll_ms,
                stdout=Descriptor.of(sys.stdout),
                stderr=stderr,
                held=held,
                stops=own,
                steps=ledger.database.steps,
            )
            if interruption.times:
                # Nothing is there to stop yet: the request ends the Run (R6.3).
                ledger.request_cancellation(run.run_id, actor=invocation.actor, reason=_reason(interruption))
                output.say(f"run {run.run_id} was not started")
                _show(invocation, ledger.run(run.run_id))
                return interruption.exit_code
            with _looking_after(own, interruption):
                _obey(interruption, own, host, run.run_id, invocation.actor)
                try:
                    outcome = host.run(
                        run.run_id, Command(arguments, cwd=directory, stdin=stdin), actor=Actor.worker(worker_id)
                    )
                except RunfactsError:
                    output.say(f"run {run.run_id} is left as it is; if its command runs, its outcome will be recorded")
                    raise
                finally:
                    if stderr is not None:
                        stderr.end_line()
                if not isinstance(outcome, NotHosted):
                    # What a delivery under way still records belongs to what is shown.
                    _leave(own, interruption)
                return _end(invocation, ledger, run.run_id, outcome, interruption)


@contextmanager
def _looking_after(own: OwnRuns, interruption: Interruption) -> Iterator[None]:
    """Deliver the Run's cancellation within the block."""
    own.start()
    try:
        yield
    finally:
        _leave(own, interruption)


def _leave(own: OwnRuns, interruption: Interruption) -> None:
    """Wait for a delivery under way, unless nobody wants to wait."""
    own.stop(_LEAVE_WITHIN_MS if interruption.times > 1 else None)


def _obey(interruption: Interruption, own: OwnRuns, host: LocalHost, run_id: str, actor: Actor) -> None:
    """Cancel the Run at the first interruption, leave it alone at the second (R10.5)."""

    def interrupted() -> None:
        if interruption.times > 1 or host.showing_the_rest:
            host.detach()
            return
        own.ask_to_stop(run_id, actor=actor, kind=IntentKind.USER, reason=_reason(interruption))
        _say_at_once(f"\nrunfacts: stopping run {run_id}; once more leaves it alone\n")

    interruption.tell(interrupted)


def _say_at_once(text: str) -> None:
    """Say something within a signal handler: not by the stream, which that may have interrupted.

    Where the reader stalls it is left unsaid. The host would wait for the reader, and look after its run no more.
    """
    with suppress(OSError, ValueError, AttributeError):
        poll = select.poll()
        poll.register(sys.stderr.fileno(), select.POLLOUT)
        if poll.poll(0):
            os.write(sys.stderr.fileno(), text.encode())


def _reason(interruption: Interruption) -> str:
    return f"{'Ctrl-C' if interruption.signal is signal.SIGINT else 'SIGTERM'} at the host"


def _working_directory() -> str:
    """Where the command will run; asked for before anything is recorded."""
    try:
        return os.getcwd()  # noqa: PTH109 - as the launcher has it, links kept
    except FileNotFoundError:
        raise click.UsageError("The working directory is not there any more") from None


def exit_code_of(run: RunView) -> int:
    """Give the exit code that stands for a Run that has ended."""
    last = run.attempts[-1] if run.attempts else None
    if run.status is RunStatus.TIMED_OUT:
        return TIMED_OUT
    if last is not None and last.signal is not None:
        return SIGNALLED + last.signal
    if run.status is RunStatus.CANCELLED:
        return (last.exit_code if last is not None else None) or CANCELLED
    if last is None:
        return EXEC_FAILED
    if run.status is RunStatus.SUCCEEDED:
        return last.exit_code or 0
    # A failure without a code of its own, or with 0, must not look like success.
    return last.exit_code or EXEC_FAILED


def _existing(invocation: Invocation, run: RunView) -> int:
    """Answer with the Run that has the key."""
    ended = run.status in TERMINAL_RUN
    output.say(f"the run of this key is {run.status}" + ("" if ended else "; it is not run a second time"))
    _show(invocation, run)
    return exit_code_of(run) if ended else CONFLICT


def _end(
    invocation: Invocation, ledger: Ledger, run_id: str, outcome: HostedOutcome, interruption: Interruption
) -> int:
    """Say what has to be said about an end, and give its exit code."""
    match outcome:
        case Ended(outcome=ended, answer=answer):
            if ended.error_summary is not None:
                output.say(f"runfacts: {output.visible(ended.error_summary)}")
            code = ended.exit_code if ended.signal is None else SIGNALLED + ended.signal
            code = _code_of_end(_status_of(answer), EXEC_FAILED if code is None else code)
            if (said := _STOPPED.get(_status_of(answer))) is not None:
                output.say(f"runfacts: {said}")
        case Detached():
            output.say(_left_alone(ledger, run_id))
            code = interruption.exit_code
        case NotHosted():
            return _follow(invocation, ledger, run_id, interruption)
        case NotStarted(answer=refused):
            output.say(f"runfacts: the command was not started: {refused.reason}")
            code = _code_of_end(refused.run_status, EXEC_FAILED)
        case NeverRan(detail=detail, answer=told):
            output.say(f"runfacts: the command never ran: {detail}")
            code = EXEC_FAILED if told is None else _code_of_end(_status_of(told), EXEC_FAILED)
        case KeeperLost(reason=reason):
            output.say(f"runfacts: nobody knows how the command ended: {reason}")
            code = EXEC_FAILED
    try:
        _show(invocation, ledger.run(run_id) if invocation.json else None)
    except RunfactsError as error:
        # The command's own code is known and counts for more.
        output.say(f"runfacts: the run cannot be shown: {error}")
    return code


def _left_alone(ledger: Ledger, run_id: str) -> str:
    """Say what becomes of a Run whose host goes."""
    with suppress(RunfactsError):
        if ledger.run(run_id).cancellation is not None:
            return f"run {run_id} is left alone; `runfacts supervise` goes on with stopping it"
    return f"run {run_id} goes on; its outcome is recorded by `runfacts supervise` or the next `runfacts exec`"


def _status_of(answer: Finished | Repeated | LateCallback | StopNotProven) -> RunStatus:
    return answer.status if isinstance(answer, Repeated) else answer.run_status


def _code_of_end(status: RunStatus, code: int) -> int:
    """Give the exit code of a command that ended with ``code`` in a Run that has this status now."""
    if status is RunStatus.TIMED_OUT:
        return TIMED_OUT
    if status is RunStatus.CANCELLED and code in {0, EXEC_FAILED}:
        return CANCELLED
    return code


def _follow(invocation: Invocation, ledger: Ledger, run_id: str, interruption: Interruption) -> int:
    """Wait for the end of a Run that somebody else has claimed."""
    run = ledger.run(run_id)
    if run.status not in TERMINAL_RUN:
        output.say(f"run {run_id} was claimed by another worker; following it")
    while run.status not in TERMINAL_RUN:
        if interruption.times > 1:
            output.say(f"run {run_id} is left alone, with its worker")
            _show(invocation, run)
            return interruption.exit_code
        interruption.wait(_FOLLOW_EVERY_S)
        run = ledger.run(run_id)
    _show(invocation, run)
    return exit_code_of(run)


def _show(invocation: Invocation, run: RunView | None) -> None:
    """Write the last line of stderr, for programs."""
    if invocation.json and run is not None:
        output.say(output.as_json(run_shape(run)))

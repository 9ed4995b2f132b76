"""
``runfacts exec``: one command under the ledger, in the foreground.

stdout and the exit code are the command's own. What ``runfacts`` has to say goes to stderr, the Run's id first, so
that whoever loses the terminal can find the Run again. Ctrl-C and SIGTERM cancel the Run, and the host waits for its
end; a second one ends the host and leaves the command to its keeper and to supervisors.

Where the Run may have several Attempts its command is kept as that of ``submit`` is, so that a worker can host the
next one should this host be gone (R12.1). The first is this host's: it queues and claims the Run in one moment.
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
from runfacts.domain.answers import AlreadyCreated
from runfacts.domain.errors import RunfactsError
from runfacts.domain.lifecycle import TERMINAL_RUN, IntentKind
from runfacts.domain.stored_commands import StoredCommand
from runfacts.domain.views import RunView
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.attempt_output import outputs_of
from runfacts.infrastructure.cli.descriptors import Descriptor
from runfacts.infrastructure.cli.exec_endings import exit_code_after, exit_code_of, say_how_it_ended
from runfacts.infrastructure.cli.failures import CONFLICT
from runfacts.infrastructure.cli.foreground import Followed, Foreground, HostedHere
from runfacts.infrastructure.cli.interruption import Interruption
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.log_lines import log_held_back
from runfacts.infrastructure.cli.run_options import RunOptions, run_options, say_whose_key, working_directory
from runfacts.infrastructure.cli.shapes import run_shape
from runfacts.infrastructure.hosting import local_host
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.own_run import OwnRuns
from runfacts.infrastructure.processes.held import HeldPidfds
from runfacts.infrastructure.processes.host import LocalHost
from runfacts.infrastructure.processes.hosted import Command
from runfacts.infrastructure.supervision import own_runs_of
from runfacts.infrastructure.tokens import new_worker_id

_LEAVE_WITHIN_MS: Final = 1_000


class ExecCommand(EverywhereCommand):
    """A command whose failures all end with 125, since the other exit codes belong to what it runs."""

    def invoke(self, ctx: click.Context) -> object:
        """See ``click.Command``."""
        ctx.ensure_object(Invocation).hosts = True
        return super().invoke(ctx)


@click.command(
    "exec",
    cls=ExecCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Run a command in the foreground; exit with its code.",
)
@run_options
@click.option("--stdin", is_flag=True, help="Let the command read stdin; else it has /dev/null.")
@click.argument("arguments", metavar="-- CMD ...", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_invocation
def command(invocation: Invocation, *, options: RunOptions, stdin: bool, arguments: tuple[str, ...]) -> int:
    """Run a command under the ledger, in the foreground, and exit with its code.

    Ctrl-C stops the command; a second one leaves it running. 128+n says that signal n ended it, 124 that its time was
    over, 127 that it was not found, 126 that it cannot be executed, 125 that runfacts itself failed.
    """
    if not arguments[0]:
        raise click.UsageError("The command is empty")
    several = options.policy.max_attempts > 1
    if several and stdin:
        raise click.UsageError("--stdin can be read once only, so it does not go with several --attempts")
    directory = working_directory()
    # A Run of one Attempt is never hosted by anybody else.
    kept = StoredCommand.of(arguments, directory) if several else None
    with invocation.ledger() as ledger, log_held_back(debug=invocation.debug) as show_log:
        ledger.machine()
        ledger.places().make()
        worker_id, held = new_worker_id(), HeldPidfds()
        own = own_runs_of(ledger, held, worker_id=worker_id)
        collected = ledger.collect_receipts()
        with Interruption() as interruption:
            created = ledger.create(
                actor=invocation.actor,
                task=options.task,
                project=options.project,
                policy=options.policy,
                idempotency_key=options.key,
                timeout_ms=options.timeout_ms,
                command=kept,
            )
            run = created.run
            output.say(f"run {run.run_id}")
            show_log()
            if collected.quarantined:
                output.say(f"{output.counted(collected.quarantined, 'receipt')} could not be believed; set aside")
            if isinstance(created, AlreadyCreated):
                say_whose_key(options.key, run, created.differs or _differs(ledger, run, arguments, directory))
                _show(invocation, ledger, run)
                return exit_code_of(run) if run.status in TERMINAL_RUN else CONFLICT
            if interruption.times:
                # Nothing is there to stop yet: the request ends the Run (R6.3).
                ledger.request_cancellation(run.run_id, actor=invocation.actor, reason=_reason(interruption))
                output.say(f"run {run.run_id} was not started")
                _show(invocation, ledger, ledger.run(run.run_id))
                return interruption.exit_code
            stderr = Descriptor.of(sys.stderr)
            host = local_host(
                ledger, worker_id=worker_id, held=held, stops=own, stdout=Descriptor.of(sys.stdout), stderr=stderr
            )
            foreground = Foreground(
                ledger,
                host,
                interruption,
                run_id=run.run_id,
                command=Command(arguments, cwd=directory, stdin=stdin),
                actor=Actor.worker(worker_id),
                end_line=None if stderr is None else stderr.end_line,
            )
            with _looking_after(own, interruption):
                _obey(interruption, own, host, run.run_id, invocation.actor)
                try:
                    end = foreground.run()
                except RunfactsError:
                    output.say(f"run {run.run_id} is left as it is; if its command runs, its outcome will be recorded")
                    raise
                # What a delivery under way still records belongs to what is shown.
                _leave(own, interruption)
                return _end(invocation, ledger, end, interruption)


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
        shown = host.showing_the_rest
        if interruption.times > 1 or shown:
            host.detach()
        if interruption.times > 1:
            return
        # Where only output is waited for the Attempt has ended, but another one may follow.
        own.ask_to_stop(run_id, actor=actor, kind=IntentKind.USER, reason=_reason(interruption))
        if not shown:
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


def _differs(ledger: Ledger, run: RunView, arguments: tuple[str, ...], directory: str) -> str | None:
    """Say in what the command that is kept for a Run is another one; None where it is not, or none is kept."""
    kept = ledger.command_of(run.run_id)
    if kept is None or (kept.argv, kept.cwd) == (arguments, directory):
        return None
    return "directory" if kept.argv == arguments else "command"


def _end(invocation: Invocation, ledger: Ledger, end: HostedHere | Followed, interruption: Interruption) -> int:
    """Say what has to be said about an end, and give its exit code."""
    if isinstance(end, Followed):
        ended = end.run.status in TERMINAL_RUN
        if not ended:
            output.say(f"run {end.run.run_id} is left alone, with whoever hosts it")
        _show(invocation, ledger, end.run)
        return exit_code_of(end.run) if ended else interruption.exit_code
    say_how_it_ended(ledger, end.outcome)
    try:
        _show(invocation, ledger, ledger.run(end.outcome.run_id) if invocation.json else None)
    except RunfactsError as error:
        # The command's own code is known and counts for more.
        output.say(f"runfacts: the run cannot be shown: {error}")
    return exit_code_after(end.outcome, interruption)


def _show(invocation: Invocation, ledger: Ledger, run: RunView | None) -> None:
    """Write the last line of stderr, for programs."""
    if invocation.json and run is not None:
        output.say(output.as_json(run_shape(run, outputs_of(ledger, run))))

"""
``runfacts exec``: one command under the ledger, in the foreground.

stdout and the exit code are the command's own. What ``runfacts`` has to say goes to stderr, the Run's id first, so
that whoever loses the terminal can find the Run again. Ctrl-C and SIGTERM end the host and leave the command to its
keeper: its outcome arrives by its receipt.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from types import FrameType
from typing import Final, Self, TextIO

import click

from runfacts.domain.actors import Actor
from runfacts.domain.answers import AlreadyCreated
from runfacts.domain.errors import RunfactsError
from runfacts.domain.lifecycle import TERMINAL_RUN, RunStatus
from runfacts.domain.views import RunView
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.descriptors import Descriptor
from runfacts.infrastructure.cli.failures import CONFLICT, EXEC_FAILED
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.shapes import run_shape
from runfacts.infrastructure.ledger import Ledger
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
from runfacts.infrastructure.tokens import new_id

TIMED_OUT: Final = 124
"""The exit code of a command that was stopped because its time was over."""
SIGNALLED: Final = 128
"""Added to the number of the signal that ended a command."""

_FOLLOW_EVERY_S: Final = 0.25
_LOG_LINES_KEPT: Final = 1_000


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
@click.option("--stdin", is_flag=True, help="Let the command read stdin; else it has /dev/null.")
@click.argument("arguments", metavar="-- CMD ...", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_invocation
def command(
    invocation: Invocation, *, project: str, task: str, key: str | None, stdin: bool, arguments: tuple[str, ...]
) -> int:
    """Run a command under the ledger, in the foreground, and exit with its code.

    After Ctrl-C the command runs on. 128+n says that signal n ended it, 127 that it was not found, 126 that it cannot
    be executed, 125 that runfacts itself failed.
    """
    if not arguments[0]:
        raise click.UsageError("The command is empty")
    directory = _working_directory()
    with invocation.ledger() as ledger, _logging_held_back(debug=invocation.debug) as show_log:
        machine = ledger.machine()
        ledger.places().make()
        collected = ledger.collect_receipts()
        with _Interruption() as interruption:
            created = ledger.create(actor=invocation.actor, task=task, project=project, idempotency_key=key)
            run = created.run
            output.say(f"run {run.run_id}")
            show_log()
            if collected.quarantined:
                output.say(f"{output.counted(collected.quarantined, 'receipt')} could not be believed; set aside")
            if isinstance(created, AlreadyCreated):
                return _existing(invocation, run)
            ledger.queue(run.run_id, actor=invocation.actor)
            stderr = Descriptor.of(sys.stderr)
            worker_id = new_id()
            host = LocalHost(
                ledger,
                Launcher(machine, gate_timeout_ms=ledger.settings.gate_timeout_ms, steps=ledger.database.steps),
                ledger.places(),
                worker_id=worker_id,
                lease_ms=ledger.settings.execution_lease_ms,
                poll_ms=ledger.settings.poll_ms,
                stdout=Descriptor.of(sys.stdout),
                stderr=stderr,
                steps=ledger.database.steps,
            )
            if interruption.happened.is_set():
                output.say(f"run {run.run_id} was not started")
                _show(invocation, ledger.run(run.run_id))
                return interruption.exit_code
            interruption.tell(host.detach)
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
            return _end(invocation, ledger, run.run_id, outcome, interruption)


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
    if last is None:
        return EXEC_FAILED
    if last.signal is not None:
        return SIGNALLED + last.signal
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
    invocation: Invocation, ledger: Ledger, run_id: str, outcome: HostedOutcome, interruption: _Interruption
) -> int:
    """Say what has to be said about an end, and give its exit code."""
    match outcome:
        case Ended(outcome=ended):
            if ended.error_summary is not None:
                output.say(f"runfacts: {output.visible(ended.error_summary)}")
            code = ended.exit_code if ended.signal is None else SIGNALLED + ended.signal
            code = EXEC_FAILED if code is None else code
        case Detached():
            output.say(f"run {run_id} goes on; its outcome is recorded by the next `runfacts exec` on this ledger")
            code = interruption.exit_code
        case NotHosted():
            return _follow(invocation, ledger, run_id, interruption)
        case NotStarted(answer=answer):
            output.say(f"runfacts: the command was not started: {answer.reason}")
            code = EXEC_FAILED
        case NeverRan(detail=detail):
            output.say(f"runfacts: the command never ran: {detail}")
            code = EXEC_FAILED
        case KeeperLost(reason=reason):
            output.say(f"runfacts: nobody knows how the command ended: {reason}")
            code = EXEC_FAILED
    try:
        _show(invocation, ledger.run(run_id) if invocation.json else None)
    except RunfactsError as error:
        # The command's own code is known and counts for more.
        output.say(f"runfacts: the run cannot be shown: {error}")
    return code


def _follow(invocation: Invocation, ledger: Ledger, run_id: str, interruption: _Interruption) -> int:
    """Wait for the end of a Run that somebody else has claimed."""
    output.say(f"run {run_id} was claimed by another worker; following it")
    while (run := ledger.run(run_id)).status not in TERMINAL_RUN:
        if interruption.happened.wait(_FOLLOW_EVERY_S):
            output.say(f"run {run_id} goes on with its worker")
            _show(invocation, run)
            return interruption.exit_code
    _show(invocation, run)
    return exit_code_of(run)


def _show(invocation: Invocation, run: RunView | None) -> None:
    """Write the last line of stderr, for programs."""
    if invocation.json and run is not None:
        output.say(output.as_json(run_shape(run)))


class _Interruption:
    """Ctrl-C and SIGTERM, kept for the one who can act on them. A context manager, for the main thread."""

    def __init__(self) -> None:
        self.happened = threading.Event()
        self._number = signal.SIGINT
        self._listeners: list[Callable[[], None]] = []
        self._before: dict[int, signal._HANDLER] = {}

    @property
    def exit_code(self) -> int:
        """The exit code that shells give for the signal."""
        return SIGNALLED + self._number

    def tell(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when it happens, and now if it has happened."""
        self._listeners.append(listener)
        if self.happened.is_set():
            listener()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            # Whoever started this process with a signal ignored (nohup, a shell's "&") wants it ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._keep)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _keep(self, number: int, _frame: FrameType | None) -> None:
        self._number = signal.Signals(number)
        self.happened.set()
        for listener in self._listeners:
            listener()


@contextmanager
def _logging_held_back(*, debug: bool) -> Iterator[Callable[[], None]]:
    """Show the library's log on stderr, but nothing before the function that is given is called."""
    shown: logging.StreamHandler[TextIO] = logging.StreamHandler(sys.stderr)
    shown.setFormatter(logging.Formatter("runfacts: %(message)s"))
    held = MemoryHandler(_LOG_LINES_KEPT, flushLevel=logging.CRITICAL + 1, target=shown)
    log = logging.getLogger("runfacts")
    before = log.level
    log.setLevel(logging.DEBUG if debug else logging.WARNING)
    log.addHandler(held)

    def show() -> None:
        held.flushLevel = logging.NOTSET
        held.flush()

    try:
        yield show
    finally:
        show()
        log.removeHandler(held)
        log.setLevel(before)
        held.close()

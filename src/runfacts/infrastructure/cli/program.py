"""
The command as a whole: its parts, and how every call ends.

Whatever goes wrong leaves here as one line on stderr, with ``--json`` as one object, and as one exit code; a traceback
is shown with ``--debug`` only. A reader of stdout that has gone away ends the call quietly, and so does Ctrl-C.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from types import MappingProxyType
from typing import Final

import click
from click.exceptions import NoArgsIsHelpError
from click.shell_completion import shell_complete

from runfacts.infrastructure.cli import INTERRUPTED, output
from runfacts.infrastructure.cli.failures import EXEC_FAILED, USAGE, Failure
from runfacts.infrastructure.cli.invocation import Invocation, everywhere

NAME: Final = "runfacts"
COMPLETION_VARIABLE: Final = "_RUNFACTS_COMPLETE"
"""By this variable a shell asks for completions."""
READER_GONE: Final = 141
"""The exit code when nobody reads stdout any more, as shells have it: 128 and the number of SIGPIPE."""

COMMANDS: Final = MappingProxyType(
    {
        "exec": "exec_command",
        "submit": "submit_command",
        "work": "work_command",
        "supervise": "supervise_command",
        "list": "list_command",
        "show": "show_command",
        "cancel": "cancel_command",
        "unproven": "unproven_command",
        "blocked": "blocked_command",
        "rearm": "rearm_command",
        "abandon": "abandon_command",
        "confirm-stopped": "confirm_stopped_command",
        "manual": "manual_command",
        "release": "release_command",
        "attest-not-running": "attest_not_running_command",
        "audit": "audit_command",
        "timeline": "timeline_command",
        "replay": "replay_command",
        "export": "export_command",
        "import": "import_command",
        "stats": "stats_command",
        "rebuild": "rebuild_command",
        "verify": "verify_command",
        "facts": "facts_command",
        "migrate": "migrate_command",
        "doctor": "doctor_command",
        "completion": "completion_command",
    }
)
"""The commands, in the order in which they are shown, and the module of each."""


class Program(click.Group):
    """All commands; a module is loaded when its command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """See ``click.Group``."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """See ``click.Group``."""
        del ctx
        module = COMMANDS.get(cmd_name)
        if module is None:
            return None
        found: click.Command = import_module(f"runfacts.infrastructure.cli.{module}").command
        return found


def program() -> Program:
    """Make the command with all its parts."""
    made = Program(
        NAME,
        help="What happened to every run: append-only facts, and one fenced holder at a time.",
        epilog="The exit codes: 0 done, 1 refused, 2 usage, 3 not found, 4 conflict, 5 database, 6 schema.",
        params=everywhere(),
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    return click.version_option(version(NAME), prog_name=NAME, message="%(prog)s %(version)s")(made)


def run(arguments: Sequence[str]) -> int:
    """Run one call of the command to its exit code."""
    output.prepare_streams()
    before_dashes = list(arguments)[: arguments.index("--")] if "--" in arguments else list(arguments)
    # Known even where the arguments cannot be understood.
    invocation = Invocation(json="--json" in before_dashes, debug="--debug" in before_dashes)
    try:
        code = _run(list(arguments), invocation)
        output.flush()
    except BrokenPipeError:
        output.let_go_of_stdout()
        return READER_GONE
    except (KeyboardInterrupt, click.Abort):
        output.let_go_of_stdout()
        return INTERRUPTED
    except NoArgsIsHelpError as nothing:
        output.say(nothing.ctx.get_help())
        return USAGE
    except Exception as error:  # noqa: BLE001 - the one place where every error becomes a line
        return _fail(error, invocation)
    return code


def _run(arguments: list[str], invocation: Invocation) -> int:
    made = program()
    instruction = os.environ.get(COMPLETION_VARIABLE)
    if instruction:
        return shell_complete(made, {}, NAME, COMPLETION_VARIABLE, instruction)
    try:
        with made.make_context(NAME, arguments, obj=invocation) as context:
            code = made.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    return code if isinstance(code, int) else 0


def _fail(error: Exception, invocation: Invocation) -> int:
    failure = Failure.of(error)
    hosts = invocation.hosts or _is_of_exec(error)
    if invocation.debug:
        output.say("".join(traceback.format_exception(error)).rstrip())
    output.say(f"{NAME}: {output.visible(failure.message)}")
    if invocation.json:
        line = output.as_json({"error": {"code": failure.code, "message": failure.message}})
        if hosts:
            output.say(line)
        else:
            with suppress(OSError):
                output.write(line)
    try:
        output.flush()
    except OSError:
        # What could not be written is still buffered; the interpreter would try again and complain.
        output.let_go_of_stdout()
    return EXEC_FAILED if hosts else failure.exit_code


def _is_of_exec(error: Exception) -> bool:
    """Whether the arguments of ``exec`` could not be understood."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    return context is not None and context.info_name == "exec" and context.parent is not None

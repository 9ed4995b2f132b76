"""
``runfacts submit``: a command for the workers.

The Run, its command and its place in the queue are recorded at once. Its environment will be that of the worker, its
directory the one in which it was submitted.
"""

from __future__ import annotations

import click

from runfacts.domain.answers import AlreadyCreated
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.invocation import EverywhereCommand, Invocation, pass_invocation
from runfacts.infrastructure.cli.run_options import RunOptions, run_options, say_whose_key, working_directory


@click.command(
    "submit",
    cls=EverywhereCommand,
    context_settings={"allow_interspersed_args": False},
    short_help="Queue a command for the workers.",
)
@run_options
@click.argument("arguments", metavar="-- CMD ...", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_invocation
def command(invocation: Invocation, *, options: RunOptions, arguments: tuple[str, ...]) -> None:
    """Queue a command for the workers, and print the id of its run.

    `runfacts work` runs it, in this directory and with the worker's environment. Do not put secrets into arguments.
    """
    if not arguments[0]:
        raise click.UsageError("The command is empty")
    directory = working_directory()
    with invocation.ledger() as ledger:
        created = ledger.submit(
            arguments,
            cwd=directory,
            actor=invocation.actor,
            task=options.task,
            project=options.project,
            policy=options.policy,
            idempotency_key=options.key,
            timeout_ms=options.timeout_ms,
        )
    run = created.run
    already = isinstance(created, AlreadyCreated)
    differs = created.differs if isinstance(created, AlreadyCreated) else None
    if already:
        say_whose_key(options.key, run, differs)
    if invocation.json:
        output.write_json(
            {"run_id": run.run_id, "status": run.status.value, "created": not already, "differs": differs}
        )
    else:
        output.write(run.run_id)

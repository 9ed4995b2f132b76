"""What is said of a Run that is made on the command line: ``exec`` and ``submit`` take the same options."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from runfacts.domain.lifecycle import TERMINAL_RUN
from runfacts.domain.retry import MAX_ATTEMPTS, RetryPolicy, Safety
from runfacts.domain.views import RunView
from runfacts.infrastructure.cli import output
from runfacts.infrastructure.cli.seconds import Seconds


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a new Run."""

    project: str
    task: str
    key: str | None
    timeout_ms: int | None
    policy: RetryPolicy


def run_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command's function the options of a new Run as ``options``."""

    @wraps(function)
    def with_options(
        *arguments: Any,  # noqa: ANN401 - whatever the command takes
        project: str,
        task: str,
        key: str | None,
        timeout_ms: int | None,
        attempts: int,
        retry_lost: bool,
        retry_failed: bool,
        replay_safe: str | None,
        **given: Any,  # noqa: ANN401 - as above
    ) -> Any:  # noqa: ANN401 - as above
        policy = _policy(attempts, replay_safe, retry_lost=retry_lost, retry_failed=retry_failed)
        return function(*arguments, options=RunOptions(project, task, key, timeout_ms, policy), **given)

    made: Callable[..., Any] = with_options
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


_OPTIONS = (
    click.option("--project", default="default", show_default=True, help="The project that the run belongs to."),
    click.option("--task", default="command", show_default=True, help="What the run is about."),
    click.option("--key", help="Run it once: a run of the project that has this key is shown instead."),
    click.option("--timeout", "timeout_ms", type=Seconds(), metavar="S", help="Stop an attempt after so many seconds."),
    click.option(
        "--attempts",
        type=click.IntRange(1, MAX_ATTEMPTS),
        default=1,
        show_default=True,
        help="Run it so many times at most, if it has to be tried again.",
    ),
    click.option("--retry-failed", is_flag=True, help="Try again when the command fails."),
    click.option(
        "--retry-lost",
        is_flag=True,
        help="Try again when nobody knows how the command ended. Needs --replay-safe.",
    ),
    click.option(
        "--replay-safe",
        type=click.Choice([safety.value for safety in Safety if safety is not Safety.UNKNOWN]),
        help="Declare that running the command twice does no harm, and why.",
    ),
)


def _policy(attempts: int, replay_safe: str | None, *, retry_lost: bool, retry_failed: bool) -> RetryPolicy:
    if retry_lost and replay_safe is None:
        raise click.UsageError(
            "--retry-lost needs --replay-safe: a command that was lost may have done half of its work"
        )
    retries = " and ".join(
        name for name, given in (("--retry-failed", retry_failed), ("--retry-lost", retry_lost)) if given
    )
    if retries and attempts == 1:
        raise click.UsageError(f"{retries} would change nothing without --attempts of 2 or more")
    if attempts > 1 and not retries:
        raise click.UsageError("--attempts would change nothing without --retry-failed or --retry-lost")
    return RetryPolicy(
        max_attempts=attempts,
        retry_on_failure=retry_failed,
        retry_on_lost=retry_lost,
        safety=Safety.UNKNOWN if replay_safe is None else Safety(replay_safe),
    )


def working_directory() -> str:
    """Give where the command will run; asked for before anything is recorded."""
    try:
        return os.getcwd()  # noqa: PTH109 - as the launcher has it, links kept
    except FileNotFoundError:
        raise click.UsageError("The working directory is not there any more") from None


def say_whose_key(key: str | None, run: RunView, differs: str | None) -> None:
    """Say that a key belongs to an older run, so that the command that was given now does not run (R2.11)."""
    words = f"runfacts: the key {output.visible(key)} belongs to run {run.run_id}, which is {run.status}"
    if differs is not None:
        other = "another command" if differs == "command" else "the same command in another directory"
        output.say(f"{words} and has {other}: yours was neither kept nor run")
    elif run.status in TERMINAL_RUN:
        output.say(f"{words}; yours was not run, and not compared with its command, which is not kept")
    else:
        output.say(f"{words}; it is not run a second time")

"""
One call of the command: what was said for all commands alike, and what follows from it.

The options of this module are taken before the name of a command and after it; what stands nearer to the end counts.
Environment variables count where nothing was said.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from runfacts.domain.actors import Actor
    from runfacts.domain.limits import Settings
    from runfacts.infrastructure.ledger import Ledger

DATABASE: Final = "RUNFACTS_DB"
ACTOR: Final = "RUNFACTS_AS"
MACHINE_ID: Final = "RUNFACTS_MACHINE_ID"


@dataclass
class Invocation:
    """What one call was told."""

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    database: str | None = field(default=None, repr=False)
    name: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    json: bool = False
    debug: bool = False
    hosts: bool = False
    """Whether stdout and the exit code belong to a command that is run: ``exec``."""

    @property
    def url(self) -> str:
        """The database that was named, or the user's own."""
        if self.database == "":
            # An unset variable in a script must not lead to another ledger than was meant.
            raise click.UsageError("--db is empty")
        return self.database or self.environment.get(DATABASE) or _own_database(self.environment)

    @property
    def uses_own_database(self) -> bool:
        """Whether no database was named."""
        return self.database is None and not self.environment.get(DATABASE)

    @property
    def machine_id(self) -> str | None:
        """The id of this machine, where it is configured (R8.3)."""
        return self.environment.get(MACHINE_ID) or None

    @property
    def actor(self) -> Actor:
        """Who this is, by their own word: as said, else the login name."""
        from runfacts.domain.actors import Actor

        return Actor.user(self.name or self.environment.get(ACTOR) or _login_name())

    @property
    def operator(self) -> Actor:
        """Who this is, as an operator and by their own word (R13.3)."""
        from runfacts.domain.actors import Actor

        return Actor.operator(self.name or self.environment.get(ACTOR) or _login_name())

    @cached_property
    def settings(self) -> Settings:
        """The limits (``InvalidSetting``)."""
        from runfacts.domain.limits import Settings

        return Settings.from_sources(self.overrides, self.environment)

    def ledger(self, *, create: bool = True, measured: bool = False) -> Ledger:
        """Open the ledger. A SQLite file is made where there is none, unless ``create`` is false.

        ``measured``: through OpenTelemetry, where that is installed.
        """
        from runfacts.domain.measures import NO_MEASURES
        from runfacts.infrastructure.ledger import Ledger
        from runfacts.infrastructure.telemetry.opentelemetry_measures import measures_if_installed

        return Ledger.open(
            self.url,
            settings=self.settings,
            machine_id=self.machine_id,
            create=create,
            create_directory=create and self.uses_own_database,
            measures=measures_if_installed() if measured else NO_MEASURES,
        )


def pass_invocation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command's function the invocation as its first argument."""
    return click.make_pass_decorator(Invocation)(function)


class EverywhereCommand(click.Command):
    """A command that takes the options of all commands, too."""

    def __init__(self, *args: Any, **given: Any) -> None:  # noqa: ANN401 - click's own signature
        super().__init__(*args, **given)
        self.params += everywhere()

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Refuse settings that are out of their bounds before anything else is done."""
        _ = ctx.ensure_object(Invocation).settings
        return super().invoke(ctx)


def everywhere() -> list[click.Parameter]:
    """Make the options that every command takes."""
    return [
        _option("--db", "database", metavar="URL", help=f"The database: sqlite:///FILE or postgresql://… [{DATABASE}]"),
        _option(
            "--as",
            "name",
            metavar="NAME",
            help=f"Who you say you are, which nobody checks; your login name if left out. [{ACTOR}]",
        ),
        click.Option(
            ["--set", "overrides"],
            expose_value=False,
            multiple=True,
            metavar="NAME=VALUE",
            callback=_add_overrides,
            help="Set a limit. [RUNFACTS_<NAME>]",
        ),
        _option("--json", "json", is_flag=True, default=None, help="Write JSON for programs."),
        _option("--debug", "debug", is_flag=True, default=None, help="Show where an error comes from."),
    ]


def _option(name: str, attribute: str, **given: Any) -> click.Option:  # noqa: ANN401 - click's own signature
    def keep(ctx: click.Context, _parameter: click.Parameter, value: object) -> None:
        if value is not None:
            setattr(ctx.ensure_object(Invocation), attribute, value)

    return click.Option([name, attribute], expose_value=False, callback=keep, **given)


def _add_overrides(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
    for text in values:
        name, found, value = text.partition("=")
        if not found or not name:
            raise click.BadParameter("it is not of the form NAME=VALUE", ctx, parameter)
        ctx.ensure_object(Invocation).overrides[name.strip()] = value


def _own_database(environment: Mapping[str, str]) -> str:
    from sqlalchemy import URL

    from runfacts.infrastructure.processes.places import state_directory

    try:
        directory = state_directory(environment)
    except RuntimeError:
        raise click.UsageError("You have no home directory, so name a database with --db") from None
    return URL.create("sqlite", database=str(Path(directory) / "ledger.db")).render_as_string(hide_password=False)


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.geteuid()}"

"""What docs/command.md and the README say of the command is what the command has."""

from __future__ import annotations

import re

import click
import pytest

from pages import ROOT, rows, section
from runfacts.infrastructure.cli.failures import CODES
from runfacts.infrastructure.cli.invocation import everywhere
from runfacts.infrastructure.cli.program import COMMANDS, program

PAGE = ROOT / "docs" / "command.md"
README = ROOT / "README.md"


def test_the_table_of_error_codes_is_the_codes() -> None:
    table = {cells[0].strip("`"): int(cells[1]) for cells in rows(section(PAGE, "Error codes"))}
    assert table == dict(CODES.values())


def test_the_exit_codes_of_errors_are_explained() -> None:
    explained = {int(cells[0]) for cells in rows(section(PAGE, "Exit codes"))}
    assert explained == {0} | {exit_code for _, exit_code in CODES.values()}


def test_the_readme_names_every_command_but_completion() -> None:
    named = [cells[0].strip("`").split()[1] for cells in rows(section(README, "As a command"))]
    assert set(named) == set(COMMANDS) - {"completion"}


def test_the_page_has_every_command_and_no_other() -> None:
    assert re.findall(r"^### (.+)$", section(PAGE, "Commands"), re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_names_every_option_of_a_command_and_no_other(name: str) -> None:
    command = program().get_command(click.Context(program()), name)
    assert command is not None
    assert _named(section(PAGE, name)) - _ANYWHERE == _options(command.params) - _ANYWHERE


def test_the_page_names_every_option_of_all_commands() -> None:
    assert _named(section(PAGE, "Everywhere")) - {"--heads", "--after", "--"} == _options(everywhere())


def _named(text: str) -> set[str]:
    """Give the options that a text names."""
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", text))


def _options(parameters: list[click.Parameter]) -> set[str]:
    return {name for parameter in parameters if isinstance(parameter, click.Option) for name in parameter.opts}


_ANYWHERE = _options(everywhere()) | {"--help"}

"""What is kept of a command, exactly, and what is refused (R12.1)."""

from __future__ import annotations

import pytest

from runfacts import InvalidValue
from runfacts.domain.stored_commands import COMMAND_MAX, StoredCommand


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        (("true",), '["true"]'),
        (("sh", "-c", 'echo "a"; exit 3\n'), '["sh","-c","echo \\"a\\"; exit 3\\n"]'),
        (("echo", ""), '["echo",""]'),
        (("echo", "größer 号"), '["echo","größer 号"]'),
        # A byte that is no UTF-8, as Python has it; such a list is written with escapes.
        (("cat", "\udcff"), '["cat","\\udcff"]'),
    ],
)
def test_a_command_comes_back_as_it_was(argv: tuple[str, ...], kept: str) -> None:
    command = StoredCommand(argv, "/srv/größe")
    assert command.argv_json() == kept
    assert StoredCommand.read(kept, "/srv/größe") == command


@pytest.mark.parametrize(
    ("argv", "cwd", "name"),
    [
        ((), "/", "command"),
        (("",), "/", "command"),
        (("a\0b",), "/", "command"),
        (("a", 1), "/", "command"),
        (("true",), "", "directory"),
        (("true",), "here", "directory"),
        (("true",), "/a\0b", "command"),
        (("true",), "/" + "d" * 4_096, "directory"),
        (("true",), "/\udcff", "directory"),
    ],
)
def test_what_no_process_can_be_made_of_is_refused(argv: tuple[str, ...], cwd: str, name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        StoredCommand(argv, cwd)
    assert refused.value.name == name


def test_a_single_text_is_no_list_of_arguments() -> None:
    with pytest.raises(InvalidValue, match="command is one text, not a list of arguments"):
        StoredCommand.of("true", "/")


def test_the_bound_is_in_bytes() -> None:
    # Brackets and quotes take four of them, and each of these characters two.
    longest = (COMMAND_MAX - 4) // 2
    assert len(StoredCommand(("é" * longest,), "/").argv_json().encode()) == COMMAND_MAX
    with pytest.raises(InvalidValue, match="command is longer than 131072 bytes"):
        StoredCommand(("é" * longest + "e",), "/")


@pytest.mark.parametrize("kept", ["", "{}", "true", '"sh"', "[]", "[1]", "nonsense"])
def test_what_is_kept_in_another_form_is_refused(kept: str) -> None:
    with pytest.raises(InvalidValue):
        StoredCommand.read(kept, "/")


def test_a_command_is_not_shown_when_it_is_printed() -> None:
    assert repr(StoredCommand(("mysql", "-psecret"), "/secret")) == "StoredCommand()"

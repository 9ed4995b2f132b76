"""
What a Run is to run, kept for the worker that will host it (R12.1).

A command line may hold what nobody should read later, so it is in no fact, log line or repr: it stands in a table of
its own and goes when the Run ends. There is no environment with it: that of the worker applies.

Any text is kept exactly, bytes that are no UTF-8 too (as Python's file system encoding has them): such an argument is
written with JSON's escapes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from runfacts.domain.errors import InvalidValue

COMMAND_MAX: Final = 128 * 1_024
"""Longest command with its arguments, in bytes of JSON."""
DIRECTORY_MAX: Final = 4_096
"""Longest working directory, in characters."""


@dataclass(frozen=True, slots=True)
class StoredCommand:
    """A command and where it runs. Neither is shown when it is printed."""

    argv: tuple[str, ...] = field(repr=False)
    cwd: str = field(repr=False)
    """The working directory, absolute."""

    def __post_init__(self) -> None:
        """Refuse what no process can be made of, or what is too long to keep (``InvalidValue``)."""
        texts = (*self.argv, self.cwd)
        if not all(isinstance(text, str) for text in texts):
            raise InvalidValue("command", "is not made of texts")
        if not self.argv or not self.argv[0]:
            raise InvalidValue("command", "is empty")
        if any("\0" in text for text in texts):
            raise InvalidValue("command", "contains a NUL character")
        if len(self.argv_json().encode()) > COMMAND_MAX:
            raise InvalidValue("command", f"is longer than {COMMAND_MAX} bytes")
        if not self.cwd.startswith("/"):
            raise InvalidValue("directory", "is not absolute")
        if len(self.cwd) > DIRECTORY_MAX:
            raise InvalidValue("directory", f"is longer than {DIRECTORY_MAX} characters")
        if not _is_unicode(self.cwd):
            raise InvalidValue("directory", "has a name that is no UTF-8")

    @classmethod
    def of(cls, argv: Sequence[str], cwd: str) -> Self:
        """Take a command as it is given (``InvalidValue``)."""
        if isinstance(argv, str):
            raise InvalidValue("command", "is one text, not a list of arguments")
        return cls(tuple(argv), cwd)

    @classmethod
    def read(cls, argv_json: str, cwd: str) -> Self:
        """Read a command as it is kept (``InvalidValue``: it is none)."""
        try:
            argv = json.loads(argv_json)
        except ValueError:
            argv = None
        if not isinstance(argv, list):
            raise InvalidValue("command", "is kept in a form that cannot be read")
        return cls(tuple(argv), cwd)

    def differs_from(self, other: StoredCommand) -> Literal["command", "directory"] | None:
        """Say in what another command is not the same."""
        if self.argv != other.argv:
            return "command"
        return None if self.cwd == other.cwd else "directory"

    def argv_json(self) -> str:
        """Give the arguments as they are kept: a JSON list of texts."""
        plain = all(map(_is_unicode, self.argv))
        return json.dumps(self.argv, ensure_ascii=not plain, separators=(",", ":"))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

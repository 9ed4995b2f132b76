"""Writing a hosted command's output on, byte for byte, past every buffer of this process."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final, TextIO

_NEW_LINE: Final = ord("\n")


class Descriptor:
    """A stream of this process as its file descriptor: what is written is out at once, or fails at once."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._in_line = False

    @classmethod
    def of(cls, stream: TextIO | None) -> Descriptor | None:
        """The descriptor of a stream; None where it is closed."""
        return None if stream is None else cls(stream.fileno())

    def write(self, data: bytes) -> int:
        """Write what the stream takes now, and give how much that was (``OSError`` when nobody reads)."""
        try:
            taken = os.write(self._number, data)
        except BlockingIOError:
            return 0
        if taken:
            self._in_line = data[taken - 1] != _NEW_LINE
        return taken

    def flush(self) -> None:
        """Nothing is held back."""

    def end_line(self) -> None:
        """Begin a new line where the last one is unfinished, so that what follows stands by itself."""
        if self._in_line:
            with suppress(OSError):
                self.write(b"\n")

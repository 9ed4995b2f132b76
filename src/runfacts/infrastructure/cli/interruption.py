"""
Ctrl-C and SIGTERM, for commands that last.

A signal handler interrupts the main thread anywhere, so it does nothing here that could wait for the main thread:
it counts, puts the signal into a queue that is made for this, and calls listeners that promise the same.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final, Self

SIGNALLED: Final = 128
"""Added to the number of the signal that ended a command."""


class Interruption:
    """Both signals, kept for the one who can act on them. A context manager, for the main thread."""

    def __init__(self) -> None:
        """Nothing has happened."""
        self.times = 0
        """How often it happened."""
        self.signal = signal.SIGINT
        """Which of the two it was last."""
        self._queue: SimpleQueue[None] = SimpleQueue()
        self._listeners: list[Callable[[], None]] = []
        self._before: dict[int, signal._HANDLER] = {}

    @property
    def exit_code(self) -> int:
        """The exit code that shells give for the signal."""
        return SIGNALLED + self.signal

    def tell(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever it happens, and now if it has happened. It must be safe in a signal handler."""
        self._listeners.append(listener)
        if self.times:
            listener()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the next time that it happens, at most so long; tell whether it did."""
        try:
            self._queue.get(timeout=timeout_s)
        except Empty:
            return False
        return True

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
        self.signal = signal.Signals(number)
        self.times += 1
        self._queue.put(None)
        for listener in self._listeners:
            listener()

"""
Showing a command's output while it runs (R10.5).

The output goes straight to log files; here they are copied on, as bytes, to wherever the host shows them. A thread
does it, because a reader that stalls must not keep the host from renewing its lease. A reader that goes away ends the
copying of that stream and nothing else: the log has everything.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from io import RawIOBase
from types import TracebackType
from typing import Final, Protocol, Self

_CHUNK: Final = 1 << 16


class ByteSink(Protocol):
    """Where bytes are shown: a binary stream."""

    def write(self, data: bytes, /) -> int | None:
        """Take the bytes, or the first of them, and say how many; ``None`` means all, but for a raw stream none."""
        ...

    def flush(self) -> None:
        """Show them now."""
        ...


class LiveTail:
    """Copies growing files to sinks, from their beginning. A context manager: leaving it stops the copying at once."""

    def __init__(self, streams: tuple[tuple[str, ByteSink], ...], *, poll_s: float = 0.05) -> None:
        """``streams`` are pairs of a file's path and its sink."""
        self._open: list[tuple[int, ByteSink]] = []
        self._poll_s = poll_s
        self._last_look = threading.Event()
        self._stop = threading.Event()
        for path, sink in streams:
            # A log that somebody took away cannot be shown; the command goes on.
            with suppress(FileNotFoundError):
                self._open.append((os.open(path, os.O_RDONLY | os.O_CLOEXEC), sink))
        # Never keeps the process alive: its reader may be stalled for ever.
        self._thread = threading.Thread(target=self._copy, name="runfacts-tail", daemon=True)

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def finish(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Copy everything that is in the files now, then end; a reader that stalls is left when ``give_up`` says so."""
        self._last_look.set()
        while self._thread.is_alive() and not give_up():
            self._thread.join(self._poll_s)

    def stop(self) -> None:
        """End without a last look; what is being written to a stalled reader is left to it."""
        self._stop.set()
        self._last_look.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _copy(self) -> None:
        try:
            while not self._last_look.wait(self._poll_s):
                self._copy_what_is_new()
            self._copy_what_is_new()
        finally:
            for descriptor, _ in self._open:
                os.close(descriptor)

    def _copy_what_is_new(self) -> None:
        # Only up to the size seen now: a survivor of the command may write for ever.
        ends = [os.fstat(descriptor).st_size for descriptor, _ in self._open]
        for (descriptor, sink), end in zip(tuple(self._open), ends, strict=True):
            if not self._copy_stream(descriptor, sink, end):
                self._open.remove((descriptor, sink))
                os.close(descriptor)

    def _copy_stream(self, descriptor: int, sink: ByteSink, end: int) -> bool:
        """Copy one stream up to ``end``; false when its reader has gone."""
        written = False
        try:
            while not self._stop.is_set():
                at = os.lseek(descriptor, 0, os.SEEK_CUR)
                data = os.read(descriptor, min(_CHUNK, end - at)) if at < end else b""
                if not data:
                    break
                self._write_all(sink, data)
                written = True
            if written:
                self._patiently(sink.flush)
        except (OSError, ValueError):  # a pipe without a reader, a closed stream
            return False
        return True

    def _write_all(self, sink: ByteSink, data: bytes) -> None:
        """Write to an unbuffered stream as well, which may take a part only."""
        while data and not self._stop.is_set():
            try:
                taken = sink.write(data)
            except BlockingIOError as full:
                taken = full.characters_written
            if taken is None:
                taken = 0 if isinstance(sink, RawIOBase) else len(data)
            data = data[taken:]
            if not taken:
                self._stop.wait(self._poll_s)

    def _patiently(self, act: Callable[[], None]) -> None:
        """Do what a stream that must not block refuses as long as it is full."""
        while not self._stop.is_set():
            with suppress(BlockingIOError):
                act()
                return
            self._stop.wait(self._poll_s)

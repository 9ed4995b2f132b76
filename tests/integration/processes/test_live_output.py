"""R10.5: output is shown while it comes, byte for byte, and whoever reads it stops nothing."""

from __future__ import annotations

import io
import os
import select
from pathlib import Path

from process_watch import wait_until
from runfacts.infrastructure.processes.tail import LiveTail


class Closed(io.BytesIO):
    """A reader that has gone."""

    def write(self, _data: object, /) -> int:
        """Refuse."""
        raise BrokenPipeError


def test_output_is_shown_while_it_comes(tmp_path: Path) -> None:
    log, shown = tmp_path / "out", io.BytesIO()
    log.touch()
    with LiveTail(((str(log), shown),), poll_s=0.01) as tail, log.open("ab", buffering=0) as file:
        for part in (b"one\n", b"\xff\x00two", b"three"):
            before = len(shown.getvalue())
            file.write(part)
            wait_until(lambda: len(shown.getvalue()) > before, "it is shown")  # noqa: B023 - waited for here
        tail.finish()
    assert shown.getvalue() == b"one\n\xff\x00twothree"


def test_the_end_is_shown_even_if_nobody_looked_before(tmp_path: Path) -> None:
    log, shown = tmp_path / "out", io.BytesIO()
    content = os.urandom(1_000_000)
    log.write_bytes(content)
    with LiveTail(((str(log), shown),), poll_s=3_600) as tail:
        tail.finish()
    assert shown.getvalue() == content


def test_a_reader_that_goes_away_ends_only_its_own_stream(tmp_path: Path) -> None:
    out, err, shown = tmp_path / "out", tmp_path / "err", io.BytesIO()
    out.write_bytes(b"out")
    err.write_bytes(b"err")
    with LiveTail(((str(out), Closed()), (str(err), shown)), poll_s=0.01) as tail:
        tail.finish()
    assert shown.getvalue() == b"err"


def test_a_log_that_was_taken_away_is_not_shown(tmp_path: Path) -> None:
    shown = io.BytesIO()
    with LiveTail(((str(tmp_path / "nowhere"), shown),)) as tail:
        tail.finish()
    assert shown.getvalue() == b""


def test_stopping_does_not_wait_for_a_reader_that_stalls(tmp_path: Path) -> None:
    log = tmp_path / "out"
    log.write_bytes(b"x" * 1_000_000)
    read, write = os.pipe()
    with os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0) as stalled:
        tail = LiveTail(((str(log), stalled),), poll_s=0.01)
        with tail:
            assert os.read(read, 1) == b"x"
        assert tail._thread.is_alive()
        # What it is writing goes on when somebody reads, or goes away.
        wait_until(lambda: _read_some(read) or not tail._thread.is_alive(), "it is read")
        wait_until(lambda: not _read_some(read) and not tail._thread.is_alive(), "the copying has ended")


def test_a_stream_that_takes_parts_or_nothing_gets_everything(tmp_path: Path) -> None:
    log, content = tmp_path / "out", os.urandom(1_000_000)
    log.write_bytes(content)
    read, write = os.pipe()
    os.set_blocking(write, False)
    shown = bytearray()
    with (
        os.fdopen(read, "rb", buffering=0),
        os.fdopen(write, "wb", buffering=0) as sink,
        LiveTail(((str(log), sink),), poll_s=0.001) as tail,
    ):

        def all_shown() -> bool:
            shown.extend(_read_some(read))
            return len(shown) == len(content)

        wait_until(all_shown, "everything is shown")
        tail.finish()
    assert bytes(shown) == content


class Taciturn:
    """A stream that does not say how much it took."""

    def __init__(self) -> None:
        self.shown = b""

    def write(self, data: bytes, /) -> None:
        """Take everything."""
        self.shown += data

    def flush(self) -> None:
        """Nothing is held back."""


def test_a_stream_that_does_not_say_what_it_took_gets_nothing_twice(tmp_path: Path) -> None:
    log, sink = tmp_path / "out", Taciturn()
    log.write_bytes(b"once")
    with LiveTail(((str(log), sink),)) as tail:
        tail.finish()
    assert sink.shown == b"once"


def _read_some(descriptor: int) -> bytes:
    """Read what is there now."""
    return os.read(descriptor, 1 << 16) if select.select([descriptor], [], [], 0)[0] else b""

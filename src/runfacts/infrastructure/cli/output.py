"""
What the command writes, and where.

Results go to stdout, everything else to stderr. On a terminal results are tables in colour; piped they are plain
columns. Texts that came from outside may hold anything that a terminal would obey, so whatever is shown to people has
its control characters made visible; JSON escapes them itself.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TextIO

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_VISIBLE: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
# Columns that are never folded: an id in two pieces is of no use.
_WHOLE: Final = frozenset({"run", "attempt", "at", "created", "type", "actor", "check"})
_STYLES: Final[Mapping[str, str]] = {
    "succeeded": "green",
    "ok": "green",
    "failed": "red",
    "not ok": "bold red",
    "cancelled": "yellow",
    "timed_out": "yellow",
    "lost": "magenta",
    "expired": "magenta",
    "running": "cyan",
    "dispatching": "cyan",
}

Cell = str | int | None


def prepare_streams() -> None:
    """Let no character that a stream's encoding lacks stop the output."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def write(text: str) -> None:
    """Write a line of the result."""
    if sys.stdout is not None:
        sys.stdout.write(text + "\n")


def flush() -> None:
    """Send what is written so far (``OSError`` when that cannot be done)."""
    if sys.stdout is not None:
        sys.stdout.flush()


def write_json(value: object) -> None:
    """Write one line of JSON."""
    write(as_json(value))


def as_json(value: object) -> str:
    """Give a value as one line of JSON; only ASCII where stdout cannot take more."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return json.dumps(value, ensure_ascii=encoding.lower().replace("-", "") != "utf8", separators=(", ", ": "))


def say(text: str) -> None:
    """Tell a person something, on stderr. Nobody listening is no failure."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def let_go_of_stdout() -> None:
    """Send what is still buffered for stdout nowhere: its reader has gone, and the interpreter would complain."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody looks at this stream."""
    return stream is not None and stream.isatty()


def visible(value: Cell) -> str:
    """Give a value as text without anything that a terminal would obey."""
    return "-" if value is None else str(value).translate(_VISIBLE)


def counted(number: int, noun: str) -> str:
    """Give a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def moment(at_ms: int | None) -> str | None:
    """Give a moment as RFC 3339 has it, in UTC."""
    if at_ms is None:
        return None
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(at_ms)


def table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, empty: str | None = None) -> None:
    """Write a table; where it would have no row, the sentence ``empty`` in its place."""
    if not rows and empty is not None:
        write(empty)
        return
    texts = [[visible(cell) for cell in row] for row in rows]
    if is_terminal(sys.stdout):
        _pretty_table(columns, texts)
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for row in ([column.upper() for column in columns], *texts):
        write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def draw(thing: object) -> None:
    """Write something that rich draws, for a terminal."""
    _console(sys.stdout).print(thing, soft_wrap=True)


def sheet(fields: Mapping[str, Cell]) -> None:
    """Write named values, one a line."""
    width = max(map(len, fields))
    if not is_terminal(sys.stdout):
        for name, value in fields.items():
            write(f"{name.ljust(width)}  {visible(value)}")
        return
    from rich.text import Text

    console = _console(sys.stdout)
    for name, value in fields.items():
        text = visible(value)
        console.print(Text.assemble((name.ljust(width), "dim"), "  ", (text, _STYLES.get(text, ""))), soft_wrap=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None] | None]:
    """Show on a terminal how far something is that takes long: give the function to tell it, else None."""
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.status import Status

    with Status(what, console=_console(sys.stderr)) as status:
        yield lambda text: status.update(f"{what}: {text}")


def _pretty_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        drawn.add_column(column, overflow="fold", no_wrap=column in _WHOLE)
    for row in rows:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    _console(sys.stdout).print(drawn)


def _console(stream: TextIO) -> Any:  # noqa: ANN401 - rich is loaded only where it is used
    from rich.console import Console

    return Console(file=stream, highlight=False, markup=False, emoji=False)

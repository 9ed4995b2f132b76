"""The library's log on stderr, for commands that last."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler
from typing import Final, TextIO

_LINES_KEPT: Final = 1_000


@contextmanager
def log_shown(*, debug: bool) -> Iterator[None]:
    """Show the log within the block."""
    with log_held_back(debug=debug) as show:
        show()
        yield


@contextmanager
def log_held_back(*, debug: bool) -> Iterator[Callable[[], None]]:
    """Show the log on stderr, but nothing before the function that is given is called."""
    shown: logging.StreamHandler[TextIO] = logging.StreamHandler(sys.stderr)
    shown.setFormatter(logging.Formatter("runfacts: %(message)s"))
    held = MemoryHandler(_LINES_KEPT, flushLevel=logging.CRITICAL + 1, target=shown)
    log = logging.getLogger("runfacts")
    before = log.level
    log.setLevel(logging.DEBUG if debug else logging.WARNING)
    log.addHandler(held)

    def show() -> None:
        held.flushLevel = logging.NOTSET
        held.flush()

    try:
        yield show
    finally:
        show()
        log.removeHandler(held)
        log.setLevel(before)
        held.close()

"""Wait for something that will be, with a deadline: no sleep proves anything, and a broken test ends."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; a ``TimeoutError`` if it does not come true in time."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            msg = f"not within {PATIENCE_S} s"
            raise TimeoutError(msg)
        time.sleep(0.002)

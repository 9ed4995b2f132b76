"""A length of time on the command line: seconds, with a fraction if need be."""

from __future__ import annotations

import math
from typing import Any, Final

import click

from runfacts.infrastructure.cli.number_type import NumberType

_LONGEST_S: Final = 366 * 24 * 3_600


class Seconds(NumberType):
    """Seconds as a user writes them; milliseconds as the ledger has them, at least one unless zero is allowed."""

    name = "seconds"

    def __init__(self, *, zero: bool = False) -> None:
        """``zero``: no time at all is a length, too."""
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's own signature
        """See ``click.ParamType``."""
        try:
            seconds = float(value)
        except ValueError:
            self.fail(f"{value!r} is no number of seconds", param, ctx)
        if not math.isfinite(seconds) or not 0 <= seconds <= _LONGEST_S or (seconds == 0 and not self._zero):
            least = "0 or more" if self._zero else "more than 0"
            self.fail(f"{value!r} is not {least}, and at most {_LONGEST_S}", param, ctx)
        return round(seconds * 1_000) if self._zero else max(1, round(seconds * 1_000))

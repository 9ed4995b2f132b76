"""Moments on the command line: RFC 3339, or whole milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import click

from runfacts.infrastructure.cli.number_type import NumberType

_LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999


class Moment(NumberType):
    """A moment: RFC 3339, in UTC where it names no zone, or whole milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's own signature
        """See ``click.ParamType``."""
        if isinstance(value, int):
            return value
        text = str(value).strip()
        try:
            if text.isascii() and text.isdigit() and len(text) > len("20260131"):
                at_ms = int(text)
            else:
                moment = datetime.fromisoformat(text)
                at_ms = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no moment like 2026-01-31T12:00:00Z", param, ctx)
        if not 0 <= at_ms <= _LAST_MS:
            self.fail(f"{text!r} is not between the years 1970 and 9999", param, ctx)
        return at_ms

"""
Limits: every one is a setting with a unit, a default and a hard bound (R15).

A setting is given as a keyword of ``Ledger.open``, as ``--set name=value`` of the command, or as the environment
variable ``RUNFACTS_<NAME>``; the first of these that is given counts. What is out of its bounds is refused when the
settings are made.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runfacts.domain.errors import InvalidSetting

ENVIRONMENT_PREFIX: Final = "RUNFACTS_"
"""What the environment variables of settings start with."""

HANDLE_MAX: Final = 512
"""Longest handle of a process, in bytes (R8.2)."""
RECEIPT_MAX: Final = 4_096
"""Longest completion receipt, in bytes (R10.2)."""
PAYLOAD_MAX: Final = 16_384
"""Longest payload of a fact, in bytes of UTF-8 JSON (R3.6)."""
TIME_MAX: Final = 1 << 52
"""Every moment and every length of time is below it, in milliseconds: a whole number to every reader of JSON."""

_MINUTE = 60_000
_DAY = 24 * 60 * _MINUTE


class Settings(BaseModel):
    """All limits of a ledger. Lengths of time are milliseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    execution_lease_ms: Annotated[int, Field(ge=2_000, le=600_000)] = 30_000
    """How long an Attempt's execution lease lasts from its claim or renewal."""
    gate_timeout_ms: Annotated[int, Field(ge=100, le=10 * _MINUTE)] = 30_000
    """How long a command waits at its gate for its handle to be recorded (R10.1)."""
    cancel_lease_ms: Annotated[int, Field(ge=1_000, le=300_000)] = 30_000
    """How long a claim of a dispatch lasts (R7.2)."""
    dispatch_limit: Annotated[int, Field(ge=1, le=1_000)] = 50
    """Tries of a dispatch since its last rearm, take-overs included, before it is blocked (R7.5)."""
    backoff_base_ms: Annotated[int, Field(ge=1, le=_DAY)] = 1_000
    """The wait after the first failed try of a dispatch; it doubles from one to the next (R7.5)."""
    backoff_max_ms: Annotated[int, Field(ge=1, le=_DAY)] = 60_000
    """The longest such wait."""
    backoff_exponent_cap: Annotated[int, Field(ge=0, le=30)] = 30
    """How often it doubles at most."""
    cancel_page: Annotated[int, Field(ge=1, le=64)] = 32
    """Dispatches in a page (R9.1)."""
    cancel_pages: Annotated[int, Field(ge=1, le=64)] = 4
    """Pages in a cycle (R9.2)."""
    interval_ms: Annotated[int, Field(ge=250, le=_DAY)] = 1_000
    """How long a supervisor waits between two cycles when nothing wakes it (R9.3)."""
    drain_ms: Annotated[int, Field(ge=0, le=_MINUTE)] = 5_000
    """How long a stopping supervisor waits for its cycle to end (R9.3)."""
    grace_ms: Annotated[int, Field(ge=0, le=_MINUTE)] = 5_000
    """How long a process has between TERM and KILL (R8.6)."""
    rearm_delay_ms: Annotated[int, Field(ge=1_000, le=_DAY)] = 1_000
    """How long a rearmed dispatch waits before its next try (R13.2)."""
    evidence_timeout_ms: Annotated[int, Field(ge=1, le=30_000)] = 5_000
    """How long an evidence provider may take (R11.3)."""
    unserved_after_ms: Annotated[int, Field(ge=1_000, le=_DAY)] = 10 * _MINUTE
    """After how long what is due and nobody claims is shown as unserved, and looked at from other scopes (R8.2)."""
    recovery_page: Annotated[int, Field(ge=1, le=128)] = 16
    """Items in a page of recovery, of stop confirmations and of retries (R11.8)."""
    recovery_lease_ms: Annotated[int, Field(ge=1_000, le=300_000)] = 30_000
    """How long a claim of such an item lasts (R11.8)."""
    failure_limit: Annotated[int, Field(ge=1, le=1_000)] = 20
    """Exceptions in a row after which an item becomes an operator's (R11.8)."""
    recovery_delay_ms: Annotated[int, Field(ge=1, le=5 * _MINUTE)] = 5_000
    """The wait after the first look that settled nothing; it doubles from one to the next (R11.8)."""
    recovery_delay_max_ms: Annotated[int, Field(ge=1, le=5 * _MINUTE)] = 5 * _MINUTE
    """The longest such wait."""
    startup_passes: Annotated[int, Field(ge=1, le=64)] = 8
    """Recovery cycles that the startup gate runs at most (R11.9)."""
    stuck_created_ms: Annotated[int, Field(ge=1_000, le=30 * _DAY)] = 60 * _MINUTE
    """After how long a Run that was created and never queued becomes an operator's item (R11.1)."""
    stop_report_grace_ms: Annotated[int, Field(ge=0, le=60 * _MINUTE)] = 30_000
    """How long the host has to report the end of a Run whose cancellation was delivered (R12.2)."""
    poll_ms: Annotated[int, Field(ge=1, le=10_000)] = 50
    """How often a host looks at its command."""
    fact_page: Annotated[int, Field(ge=1, le=500)] = 100
    """Facts or Runs in a page, where the caller says nothing."""
    catch_up_ms: Annotated[int, Field(ge=0, le=30_000)] = 1_000
    """How long whoever reads a projection brings it up to date first (R1.4)."""
    feed_poll_ms: Annotated[int, Field(ge=10, le=_MINUTE)] = 1_000
    """How long a follower of the feed waits for a wake-up before it looks by itself; a tenth of it on SQLite (R3.9)."""
    busy_timeout_ms: Annotated[int, Field(ge=0, le=_MINUTE)] = 5_000
    """How long SQLite waits for another writer (R4.4)."""
    decide_retries: Annotated[int, Field(ge=1, le=64)] = 8
    """How often a command is decided anew after a lost race (R4.3)."""
    wal_limit_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 40)] = 64 << 20
    """What SQLite shrinks its write-ahead log to, in bytes; ``doctor`` warns beyond it."""

    @classmethod
    def from_sources(
        cls, overrides: Mapping[str, int | str] | None = None, environment: Mapping[str, str] | None = None
    ) -> Settings:
        """Make settings from what was given, then the environment, then the defaults (``InvalidSetting``)."""
        given: dict[str, int] = {}
        for name in cls.model_fields:
            text = (environment or {}).get(ENVIRONMENT_PREFIX + name.upper())
            if text is not None:
                given[name] = _number(name, text)
        for name, value in (overrides or {}).items():
            if name not in cls.model_fields:
                raise InvalidSetting(name[:64], "is unknown")
            given[name] = _number(name, value)
        try:
            return cls(**given)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            name = str(first["loc"][0])
            raise InvalidSetting(name, f"is out of its bounds: {first['msg'].lower()}") from None

    @classmethod
    @cache
    def bounds(cls) -> Mapping[str, tuple[int, int, int]]:
        """Give each setting's default, lowest and highest value."""
        found: dict[str, tuple[int, int, int]] = {}
        for name, field in cls.model_fields.items():
            lowest = next(item.ge for item in field.metadata if hasattr(item, "ge"))
            highest = next(item.le for item in field.metadata if hasattr(item, "le"))
            found[name] = (field.default, lowest, highest)
        return MappingProxyType(found)


def _number(name: str, value: int | str) -> int:
    """Read a whole number, as Python's ``int`` has it, from a setting's text."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InvalidSetting(name, "is not a whole number")
    if isinstance(value, int):
        return value
    text = value.strip()
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:  # noqa: PLR2004
        raise InvalidSetting(name, "is not a whole number")
    return int(text)

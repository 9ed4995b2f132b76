"""
Parts that payloads of several types share: bounded kinds of values, and groups of fields (R3.6).

Like the payloads they are storage formats: a name here is the name of a stored field.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from runfacts.domain.lifecycle import IntentKind
from runfacts.domain.texts import ERROR_CODE_MAX, ERROR_SUMMARY_MAX, NAME_MAX, REASON_MAX

Id = Annotated[str, StringConstraints(min_length=36, max_length=36)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_MAX)]
Sha256 = Annotated[str, StringConstraints(min_length=64, max_length=64)]
Count = Annotated[int, Field(ge=1, lt=1 << 53)]
AtMs = Annotated[int, Field(ge=0, lt=1 << 53)]
ExitCode = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
Signal = Annotated[int, Field(ge=1, le=64)]
ErrorCode = Annotated[str, StringConstraints(max_length=ERROR_CODE_MAX)]
ErrorSummary = Annotated[str, StringConstraints(max_length=ERROR_SUMMARY_MAX)]
ReasonText = Annotated[str, StringConstraints(max_length=REASON_MAX)]


class Evidence(StrEnum):
    """By what an end is known, where nobody reported it (R3.6)."""

    PRE_START = "pre_start"
    """It never ran: no process was ever let through the gate."""
    NOT_RUNNING = "not_running"
    """An evidence provider proved that nothing of it runs."""
    ATTESTED = "attested"
    """An operator's word."""


class OutcomeKind(StrEnum):
    """What an executor can report of an Attempt that ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class WithOutcome(_Part):
    """How something ended."""

    exit_code: ExitCode | None = None
    """The code with which the command ended by itself."""
    signal: Signal | None = None
    """The number of the signal that ended the command."""
    error_code: ErrorCode | None = None
    """A word for what went wrong."""
    error_code_length: Count | None = None
    """Characters of the error code as it was given, where it was redacted or cut (R2.12)."""
    error_code_sha256: Sha256 | None = None
    """SHA-256 (hex) of the whole redacted error code, where it was redacted or cut (R2.12)."""
    error_summary: ErrorSummary | None = None
    """What went wrong, in words."""
    error_summary_length: Count | None = None
    """Characters of the summary as it was given, where it was redacted or cut (R2.12)."""
    error_summary_sha256: Sha256 | None = None
    """SHA-256 (hex) of the whole redacted summary, where it was redacted or cut (R2.12)."""
    group_left: bool | None = None
    """True where other members of the command's process group were left behind (R6.5)."""


class WithIntent(WithOutcome):
    """How something ended that was asked to stop."""

    reason: IntentKind | None = None
    """The kind of the cancellation that ended it; ``timeout`` also where the table has no timed_out (R2.5)."""
    observed: OutcomeKind | None = None
    """What was reported although a cancellation had been requested first (R6.5)."""


class WithReason(_Part):
    """Why somebody did it, in words."""

    reason: ReasonText | None = None
    """Why, in the words of whoever did it."""
    reason_length: Count | None = None
    """Characters of the reason as it was given, where it was redacted or cut (R2.12)."""
    reason_sha256: Sha256 | None = None
    """SHA-256 (hex) of the whole redacted reason, where it was redacted or cut (R2.12)."""


class WithEvidence(_Part):
    """By what an end is known that nobody reported."""

    evidence: Evidence
    """What the conclusion rests on."""
    provider_type: Name | None = None
    """The executor type whose evidence provider answered, where one was asked."""

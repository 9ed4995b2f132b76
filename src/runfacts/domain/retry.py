"""
The retry policy of a Run, frozen when it is created (R12.1).

The default is one Attempt and no retry. A failed Attempt may be tried again without further promise: it said itself
that it failed. A lost one may have done half of its work, so trying it again needs a declaration that this is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from pydantic import ConfigDict

from runfacts.domain.errors import InvalidValue

MAX_ATTEMPTS = 16
"""The most Attempts that a policy may allow."""
BACKOFF_MAX_MS = 24 * 60 * 60 * 1_000
"""The longest wait before a retry, in milliseconds."""


class Safety(StrEnum):
    """What was declared about running the work twice."""

    UNKNOWN = "unknown"
    IDEMPOTENT = "idempotent"
    DEDUPLICATED = "deduplicated"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a Run may be tried again.

    Lengths of time are milliseconds; what is out of its bounds is an ``InvalidValue``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    max_attempts: int = 1
    """The most Attempts, 1 to 16."""
    retry_on_failure: bool = False
    """Whether a failed Attempt is followed by another."""
    retry_on_lost: bool = False
    """Whether a lost Attempt is followed by another. Needs a ``safety`` other than unknown."""
    safety: Safety = Safety.UNKNOWN
    """What was declared about running the work twice."""
    backoff_ms: int = 1_000
    """The wait before the second Attempt, in milliseconds; it doubles from one to the next. At most 24 hours."""
    backoff_max_ms: int = 60_000
    """The longest such wait, in milliseconds. At most 24 hours."""

    def __post_init__(self) -> None:
        """Refuse what is out of its bounds, and lost work without a declaration that running it twice is safe."""
        try:
            object.__setattr__(self, "safety", Safety(self.safety))
        except ValueError:
            raise InvalidValue("safety", f"is none of {', '.join(Safety)}") from None
        for name, lowest, highest in (
            ("max_attempts", 1, MAX_ATTEMPTS),
            ("backoff_ms", 0, BACKOFF_MAX_MS),
            ("backoff_max_ms", 0, BACKOFF_MAX_MS),
        ):
            value = getattr(self, name)
            # Neither 1.5 nor True: what is stored has one form (R3.1).
            if type(value) is not int or not lowest <= value <= highest:
                raise InvalidValue(name, f"is not a whole number between {lowest} and {highest}")
        if self.retry_on_lost and self.safety is Safety.UNKNOWN:
            raise InvalidValue("retry_on_lost", "needs safety idempotent or deduplicated")

    def allows_another(self, attempts: int) -> bool:
        """Tell whether the budget has an Attempt left after ``attempts`` of them."""
        return attempts < self.max_attempts

    def wait_ms(self, attempts: int) -> int:
        """How long to wait after ``attempts`` Attempts, in milliseconds."""
        return min(self.backoff_max_ms, self.backoff_ms << max(0, attempts - 1))

"""
The retry policy of a Run, frozen when it is created (R12.1).

The default is one Attempt and no retry. A failed Attempt may be tried again without further promise: it said itself
that it failed. A lost one may have done half of its work, so trying it again needs a declaration that this is safe.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_ATTEMPTS = 16
"""The most Attempts that a policy may allow."""
BACKOFF_MAX_MS = 24 * 60 * 60 * 1_000
"""The longest wait before a retry, in milliseconds."""


class Safety(StrEnum):
    """What was declared about running the work twice."""

    UNKNOWN = "unknown"
    IDEMPOTENT = "idempotent"
    DEDUPLICATED = "deduplicated"


class RetryPolicy(BaseModel):
    """When a Run may be tried again. Lengths of time are milliseconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)] = 1
    retry_on_failure: bool = False
    retry_on_lost: bool = False
    safety: Safety = Safety.UNKNOWN
    backoff_ms: Annotated[int, Field(ge=0, le=BACKOFF_MAX_MS)] = 1_000
    """The wait before the second Attempt; it doubles from one to the next."""
    backoff_max_ms: Annotated[int, Field(ge=0, le=BACKOFF_MAX_MS)] = 60_000

    @model_validator(mode="after")
    def _lost_work_needs_a_declaration(self) -> Self:
        if self.retry_on_lost and self.safety is Safety.UNKNOWN:
            msg = "retry_on_lost needs safety idempotent or deduplicated"
            raise ValueError(msg)
        return self

    def allows_another(self, attempts: int) -> bool:
        """Tell whether the budget has an Attempt left after ``attempts`` of them."""
        return attempts < self.max_attempts

    def wait_ms(self, attempts: int) -> int:
        """How long to wait after ``attempts`` Attempts, in milliseconds."""
        return min(self.backoff_max_ms, self.backoff_ms << max(0, attempts - 1))

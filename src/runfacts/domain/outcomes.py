"""Outcomes: what an executor reports of an Attempt that ended (R2.7, R2.12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from runfacts.domain.errors import InvalidValue
from runfacts.domain.payload_parts import OutcomeKind
from runfacts.domain.texts import ERROR_CODE_MAX, ERROR_SUMMARY_MAX, bounded

_EXIT_CODE_MAX: Final = 0xFFFFFFFF
_SIGNAL_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an Attempt ended: its kind, exit code or signal, and in words what went wrong.

    Texts of any length are taken; they are made safe, redacted and cut when they are recorded (R2.12).
    """

    kind: OutcomeKind
    exit_code: int | None = None
    signal: int | None = None
    error_code: str | None = None
    error_summary: str | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that no process can end with (``InvalidValue``)."""
        object.__setattr__(self, "kind", OutcomeKind(self.kind))
        if self.exit_code is not None and self.signal is not None:
            raise InvalidValue("outcome", "has an exit code and a signal; a process ends by one of them")
        for name, number, lowest, highest in (
            ("exit code", self.exit_code, 0, _EXIT_CODE_MAX),
            ("signal", self.signal, 1, _SIGNAL_MAX),
        ):
            # Neither 1.5 nor True: what is stored has one form (R3.1).
            if number is not None and (type(number) is not int or not lowest <= number <= highest):
                raise InvalidValue(name, f"is not a whole number between {lowest} and {highest}")

    @classmethod
    def succeeded(cls, *, exit_code: int | None = None) -> Outcome:
        """It ended well."""
        return cls(OutcomeKind.SUCCEEDED, exit_code)

    @classmethod
    def failed(
        cls,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        error_code: str | None = None,
        error_summary: str | None = None,
    ) -> Outcome:
        """It ended badly."""
        return cls(OutcomeKind.FAILED, exit_code, signal, error_code, error_summary)

    @classmethod
    def cancelled(cls, *, exit_code: int | None = None, signal: int | None = None) -> Outcome:
        """It was stopped on request."""
        return cls(OutcomeKind.CANCELLED, exit_code, signal)

    @classmethod
    def timed_out(cls, *, exit_code: int | None = None, signal: int | None = None) -> Outcome:
        """It was stopped because its time was over."""
        return cls(OutcomeKind.TIMED_OUT, exit_code, signal)

    def fields(self) -> dict[str, str | int]:
        """Give the payload's fields: numbers as they are, texts bounded and redacted."""
        found: dict[str, str | int] = {}
        if self.exit_code is not None:
            found["exit_code"] = self.exit_code
        if self.signal is not None:
            found["signal"] = self.signal
        # An empty text says as little as none, and has no place in a column.
        if self.error_code:
            found |= bounded(self.error_code, ERROR_CODE_MAX).fields("error_code")
        if self.error_summary:
            found |= bounded(self.error_summary, ERROR_SUMMARY_MAX).fields("error_summary")
        return found

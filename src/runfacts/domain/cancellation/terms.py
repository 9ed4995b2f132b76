"""Terms of a dispatch: what a claim gives, what a settle answers, how long the holder may act (R7.2, R7.4, R8.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from runfacts.domain.cancellation.controllers import Monotonic, StopTarget
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import DispatchStatus
from runfacts.domain.lifecycle import RunStatus


@dataclass(frozen=True, slots=True)
class DispatchClaimed:
    """One term: the right to deliver one Run's cancellation, until the lease expires. The token is not shown."""

    target: StopTarget
    owner: str
    version: int
    dispatch_count: int
    lease_expires_at_ms: int
    token: str = field(repr=False)
    taken_over: bool
    """Whether the holder before did not settle: a signal may have been sent already (R8.8)."""


@dataclass(frozen=True, slots=True)
class DispatchNotClaimed:
    """The claim was not granted (R7.2)."""

    run_id: str
    answer: ClaimAnswer


@dataclass(frozen=True, slots=True)
class DispatchSettled:
    """The result is recorded (R7.4)."""

    run_id: str
    status: DispatchStatus
    version: int
    next_attempt_at_ms: int | None


@dataclass(frozen=True, slots=True)
class DispatchAlreadySettled:
    """The very result of the term was recorded before; nothing was written (R7.4)."""

    run_id: str


@dataclass(frozen=True, slots=True)
class DispatchFenced:
    """The term is over: somebody else claimed since, or the result was another. Nothing was written (R7.4)."""

    run_id: str


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The intent is recorded (R6.1). ``ended``: there was nothing to stop, and the Run has ended (R6.3)."""

    run_id: str
    status: RunStatus
    version: int
    requested_at_ms: int

    @property
    def ended(self) -> bool:
        """Whether the Run ended with the request."""
        return self.status in {RunStatus.CANCELLED, RunStatus.TIMED_OUT}


@dataclass(frozen=True, slots=True)
class AlreadyRequested:
    """Somebody asked before; nothing was written (R6.1)."""

    run_id: str
    status: RunStatus
    requested_at_ms: int


@dataclass(frozen=True, slots=True)
class AlreadyTerminal:
    """The Run has ended; nothing was written (R6.1)."""

    run_id: str
    status: RunStatus


@dataclass(frozen=True, slots=True)
class DispatchCandidate:
    """A Run whose cancellation somebody of this scope may deliver now."""

    run_id: str
    attempt_id: str
    requested_at_ms: int
    due_at_ms: int


class HoldersDeadline:
    """The holder's own deadline: counted from before it asked for the lease, less a margin (R8.4).

    A slow round trip shortens the trust in a lease and never stretches it.
    """

    def __init__(self, clock: Monotonic, lease_ms: int, margin_ms: int) -> None:
        """Begin to count now; call this before asking for the lease."""
        self._clock = clock
        self.first_asked_s: float | None = None
        """When it was asked first: right before the first signal, if one was sent."""
        self._until = clock() + (lease_ms - margin_ms) / 1_000

    def allows(self, wanted_ms: int) -> bool:
        """Tell whether ``wanted_ms`` from now is still before the deadline."""
        now_s = self._clock()
        if self.first_asked_s is None:
            self.first_asked_s = now_s
        return now_s + wanted_ms / 1_000 < self._until


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a round of pages stands: below which due time and id everything was tried (R9.1, R9.2)."""

    due_at_ms: int
    run_id: str


class PageRefusal(StrEnum):
    """Why a cycle takes no more pages: its source would starve some, or flood the worker (R9.1)."""

    CURSOR_NOT_ADVANCING = "cursor_not_advancing"
    """The next page would begin where this one did, or before."""
    PAGE_OVERFLOW = "page_overflow"
    """The page has more rows than were asked for."""


@dataclass(frozen=True, slots=True)
class CandidatePage:
    """One page of candidates, oldest due first."""

    items: tuple[DispatchCandidate, ...]
    next: Cursor | None
    """Where the next page begins; None where this one was the last of the round."""

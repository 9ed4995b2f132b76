"""
Answers: what commands say (R4, R2.7).

Every outcome that a caller must expect is a type of its own; errors are for what a caller got wrong or cannot go on
from. Answers that refuse say why in ``reason``, a word that stays the same from release to release.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from runfacts.domain.decisions import Refusal
from runfacts.domain.facts import Fact
from runfacts.domain.lifecycle import AttemptStatus, IntentKind, RunStatus
from runfacts.domain.views import RunView


@dataclass(frozen=True, slots=True)
class AttemptClaim:
    """The right to execute one Attempt. Keep the tokens secret; they are not shown when it is printed."""

    run_id: str
    attempt_id: str
    number: int
    lease_token: str = field(repr=False)
    """Proves the right to start and renew (R10.3)."""
    callback_token: str = field(repr=False)
    """Proves the right to report (R2.7)."""


@dataclass(frozen=True, slots=True)
class Created:
    """A new Run was recorded."""

    run: RunView


@dataclass(frozen=True, slots=True)
class AlreadyCreated:
    """A Run with this idempotency key or dedupe key was there; nothing was written (R2.11)."""

    run: RunView
    differs: Literal["command", "directory"] | None = None
    """What of the given command is another than the one that is kept for the Run, which stays as it is.

    None where it is the same, and where there are no two to compare: a Run that has ended keeps none.
    """


@dataclass(frozen=True, slots=True)
class Recorded:
    """The facts were recorded."""

    run_id: str
    status: RunStatus
    version: int
    facts: tuple[Fact, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Repeated:
    """It was recorded before; nothing was written (R3.4, R2.7)."""

    run_id: str
    status: RunStatus
    version: int


@dataclass(frozen=True, slots=True)
class NotQueued:
    """The Run cannot be queued now; nothing was written."""

    run_id: str
    status: RunStatus
    reason: Refusal
    """``ended``.

    ``not_due`` for a retry whose wait is not over; ``group_lives`` where its last process group may live.
    """


@dataclass(frozen=True, slots=True)
class Claimed:
    """The next Attempt is the caller's, until its lease expires."""

    claim: AttemptClaim
    lease_expires_at_ms: int
    version: int


@dataclass(frozen=True, slots=True)
class NotClaimable:
    """There is no Attempt to be had; nothing was written (R2.8)."""

    run_id: str
    status: RunStatus
    reason: Refusal
    """``not_queued``, ``cancellation_requested``, or ``repeated`` where the dedupe key is recorded.

    Where the claim was to queue it also ``not_due`` and ``group_lives``, as ``NotQueued`` has them.
    """


@dataclass(frozen=True, slots=True)
class Started:
    """The start barrier is passed: a process may be created (R6.4)."""

    deadline_at_ms: int | None
    version: int


@dataclass(frozen=True, slots=True)
class StartRefused:
    """No process may be created, or let through its gate (R6.4)."""

    run_status: RunStatus
    attempt_status: AttemptStatus
    reason: Refusal
    """``cancellation_requested`` (Attempt and Run were ended), ``ended``, or ``repeated``: it was passed before, and
    passing it twice could start the work twice."""


@dataclass(frozen=True, slots=True)
class Renewed:
    """The execution lease lasts longer now (R10.3)."""

    lease_expires_at_ms: int
    attempt_status: AttemptStatus
    intent: IntentKind | None
    """The kind of the cancellation that was requested, if one was: time to stop."""


@dataclass(frozen=True, slots=True)
class RenewalRefused:
    """The lease is not renewed (R10.3)."""

    run_status: RunStatus
    attempt_status: AttemptStatus
    reason: Refusal = Refusal.ENDED
    """``ended``, or ``recovering``: somebody is finding out what became of the Attempt; ask again."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Attempt and Run were moved together (R2.7)."""

    run_status: RunStatus
    attempt_status: AttemptStatus
    version: int
    retry_due_at_ms: int | None


@dataclass(frozen=True, slots=True)
class LateCallback:
    """The Attempt had ended before; the report was noted and changed no status (R2.7)."""

    run_status: RunStatus
    attempt_status: AttemptStatus
    version: int


@dataclass(frozen=True, slots=True)
class StopNotProven:
    """The Run is being cancelled and members of its process group live; nothing was written (R6.5)."""

    run_status: RunStatus
    attempt_status: AttemptStatus

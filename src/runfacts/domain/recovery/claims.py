"""
Recovery claims: the right to find out what became of a Run nobody looks after, for a time (R11.2, R12).

A claim is for one *purpose* and one *item*. Each claim is one *term*, named by owner, token and version, so that an
old holder changes nothing. It is not the execution lease, which stays untouched as evidence, and it says nothing about
the process: whoever holds one still has to prove everything (R11.3).

::

    available ─┐                     ┌─> resolved   (a candidate again: available)
    retry, due ┼─> claimed ─ settle ─┼─> retry      (again at its next claim time)
    expired ───┘                     └─> manual     (an operator's item; never claimed by itself)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


class Purpose(StrEnum):
    """What a claim is for."""

    RECOVERY = "recovery"
    """Find out about an Attempt whose lease has expired, or a Run without one (R11)."""
    STOP = "stop"
    """Find out whether a Run that was asked to stop has stopped (R12.2)."""
    RETRY = "retry"
    """Decide on a lost Run, and queue a retry that is due (R12.1)."""


class ItemKind(StrEnum):
    """What the item's id is of."""

    ATTEMPT = "attempt"
    """Recovery of an Attempt."""
    RUN = "run"
    """Everything else."""


class ClaimState(StrEnum):
    """The states of a row."""

    AVAILABLE = "available"
    CLAIMED = "claimed"
    RETRY = "retry"
    MANUAL = "manual"
    RESOLVED = "resolved"


class ManualReason(StrEnum):
    """Why an operator must look (R11.4, R11.10)."""

    INCONSISTENT = "inconsistent"
    """Run and Attempt contradict each other (row 3)."""
    IDENTITY_UNVERIFIABLE = "identity_unverifiable"
    """What is there cannot be told from a stranger, or cannot be seen from any worker (row 12)."""
    CONFLICTING_EVIDENCE = "conflicting_evidence"
    """What was seen contradicts itself (row 12)."""
    SCOPE_UNSERVED = "scope_unserved"
    """No worker of its scope has come for a long time, and nobody else can prove anything (R8.2)."""
    STUCK_CREATED = "stuck_created"
    """Created long ago and never queued (row 13)."""
    FAILURE_LIMIT = "failure_limit"
    """Looking at it failed as often in a row as allowed (R11.8)."""
    UNEXPECTED = "unexpected"
    """Anything that no rule names (row 13)."""


@dataclass(frozen=True, slots=True)
class RecoveryKey:
    """Which row: one per purpose and item."""

    purpose: Purpose
    kind: ItemKind
    item_id: str


@dataclass(frozen=True, slots=True)
class RecoveryClaimed:
    """One term. The token is not shown."""

    key: RecoveryKey
    run_id: str
    attempt_id: str | None
    """The Attempt that it is about: of kind attempt exactly this one, else the Run's latest; None without any."""
    executor_type: str
    scope: str
    owner: str
    version: int
    """The row's version while it is held."""
    expires_at_ms: int
    delays: int
    """Settled ``retry`` so far, since it last became available: how long the next wait is (R11.8)."""
    failures: int
    """Exceptions in a row, a term found expired counted as one (R11.8)."""
    foreign: bool
    """Whether the scope is not the holder's: nobody of that scope came for ``unserved_after_ms`` (R8.2)."""
    token: str = field(repr=False)


class SettleState(StrEnum):
    """What a term may end in (R11.7)."""

    RESOLVED = "resolved"
    RETRY = "retry"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class RecoverySettled:
    """The term is over."""

    key: RecoveryKey
    state: ClaimState
    version: int
    next_claim_at_ms: int | None = None
    """When it may be claimed again, where it is ``retry``."""


@dataclass(frozen=True, slots=True)
class RecoveryFenced:
    """The term was over before: somebody else claimed, or its time ran out. Nothing was written, nor read (R11.6)."""

    key: RecoveryKey


@dataclass(frozen=True, slots=True)
class RecoveryStale:
    """Something about the Run has changed since the snapshot; nothing was written (R11.6)."""

    key: RecoveryKey


@dataclass(frozen=True, slots=True)
class RecoveryApplied:
    """What the evidence allowed is recorded."""

    key: RecoveryKey
    run_status: str
    version: int
    """The Run's."""


ApplyAnswer = RecoveryApplied | RecoveryStale | RecoveryFenced
SettleRecoveryAnswer = RecoverySettled | RecoveryStale | RecoveryFenced

PAGE_MAX: Final = 128
"""The most items that one page may hold (R11.1)."""


@dataclass(frozen=True, slots=True)
class RecoveryScan:
    """What a scan found, without writing (R11.9): candidates that make admitting new Runs unsafe, and the rest."""

    unsafe: int
    """Available, due or claimed candidates seen, at most the scan's limit."""
    waiting: int
    """Rows that back off or wait for an operator, at most the scan's limit."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """Left-over rows that were resolved, because their target is no candidate of that purpose any more (R11.7)."""

    swept: int
    oldest_ms: int
    """The longest time that one of them was left over: the window between mutation and settle."""

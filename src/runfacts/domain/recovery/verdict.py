"""
The verdict of recovery: what is known of an Attempt or Run whose owner vanished, and what follows (R11.4).

The first row that applies, of a Run and its Attempt in question; ``*`` is anything:

==  ===========================================================================  =====================================
 #  what is known                                                                verdict
==  ===========================================================================  =====================================
 1  the claim is no longer ours                                                  fenced
 2  the Run is gone or another system's; Run and Attempt ended consistently; or  resolved
    the Run has moved on from the Attempt
 3  an active Attempt whose Run has none; a Run whose latest Attempt ended       manual: inconsistent
    without it, otherwise than lost
 4  the execution lease is valid again, or an Attempt began meanwhile            resolved
 5  somebody asked the Run to stop                                               retry: R12.2 owns it from now on
 6  a completion receipt                                                         recorded as completion
 7  the Attempt is lost already, the Run not                                     Run lost, by the Attempt's evidence
 8  claimed                                                                      lost: pre_start
 9  starting without a handle, of an executor with a gate                        lost: pre_start
10  starting or running; not_running                                             lost: not_running
11  running, or nobody could be asked                                            retry
12  unverifiable, or contradicting itself                                        manual, by that reason
13  a created Run, a missing Attempt, anything else                              manual
==  ===========================================================================  =====================================

Looking for a receipt and asking a provider cost something, so neither is done before its row is reached: ``judge``
answers with a ``Need`` until it knows enough. It decides nothing twice: what was found is put into ``Known`` and the
table is read again from its top.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from runfacts.domain.lifecycle import (
    ACTIVE_ATTEMPT,
    RUN_WITH_ATTEMPT,
    TERMINAL_RUN,
    AttemptStatus,
    ExecutionOwner,
    RunStatus,
)
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.recovery.claims import ItemKind, ManualReason
from runfacts.domain.recovery.evidence import Evidence, Liveness, Unknown
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.snapshots import ExecutionSnapshot, Snapshot


class VerdictKind(StrEnum):
    """What follows from what is known."""

    FENCED = "fenced"
    """Nothing: somebody else may hold the claim by now."""
    RESOLVED = "resolved"
    """Nothing is left to do here."""
    RETRY = "retry"
    """Look again later."""
    MANUAL = "manual"
    """An operator must look."""
    RECEIPT = "receipt"
    """Record the completion that the receipt tells of."""
    LOST = "lost"
    """Attempt and Run are lost."""
    RUN_LOST = "run_lost"
    """The Run follows its Attempt, which is lost already."""
    STOPPED = "stopped"
    """The Run has stopped, as it was asked to (R12.2)."""
    MOVED_ON = "moved_on"
    """The lost Run is moved on, or the retry that is due queued (R12.1)."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What follows, and by which row of the purpose's table."""

    row: int
    kind: VerdictKind
    reason: ManualReason | None = None
    """Why an operator must look; given with ``manual`` and only then."""
    evidence: EvidenceKind | None = None
    """By what something is lost or has stopped; None where that is recorded of the Attempt already."""
    provider_type: str | None = None
    """The executor type whose provider answered, where one was asked."""
    wait_ms: int | None = None
    """When to look again, where that is known; else the wait grows from one look to the next (R11.8)."""


class Need(StrEnum):
    """What must be found out before a verdict is possible."""

    RECEIPT = "receipt"
    """Whether a completion receipt lies there."""
    FINDING = "finding"
    """What a provider says, with another look for a receipt."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the holder of a claim knows by now."""

    ours: bool
    """Whether the holder's own deadline says that the claim is still its."""
    kind: ItemKind
    foreign: bool
    """Whether the scope is not the holder's (R8.2)."""
    snapshot: Snapshot | None
    """None where the Run is gone."""
    receipt: bool | None = None
    """Whether a completion receipt lies there; None where nobody has looked."""
    finding: Finding | None = None
    """What was found from outside; None where nobody has asked."""


FENCED: Final = Verdict(1, VerdictKind.FENCED)
"""Row 1 of every table."""
GONE: Final = Verdict(2, VerdictKind.RESOLVED)
"""Row 2 of every table."""

_A = AttemptStatus
_R = RunStatus

CONSISTENT_ENDS: Final[Mapping[RunStatus, frozenset[AttemptStatus]]] = MappingProxyType(
    {
        _R.SUCCEEDED: frozenset({_A.SUCCEEDED}),
        # A lost Run that is not tried again fails (R12.1).
        _R.FAILED: frozenset({_A.FAILED, _A.LOST}),
        # Asked to stop while it waited for its next Attempt, a Run ends after one that failed or was lost (R6.3).
        _R.CANCELLED: frozenset({_A.CANCELLED, _A.FAILED, _A.LOST}),
        # A claimed Attempt has no timed_out, its Run has (R2.5).
        _R.TIMED_OUT: frozenset({_A.TIMED_OUT, _A.CANCELLED, _A.FAILED, _A.LOST}),
        _R.RETRY_WAIT: frozenset({_A.FAILED, _A.LOST}),
        _R.QUEUED: frozenset({_A.FAILED, _A.LOST}),
        _R.LOST: frozenset({_A.LOST}),
    }
)
"""The ends of its latest Attempt with which a Run that has ended, or waits for another, is consistent (R2.7)."""


def judge(known: Known) -> Verdict | Need:
    """Say what follows, by the first row that applies, or what must be found out first (R11.4)."""
    if not known.ours:
        return FENCED
    snapshot = known.snapshot
    if snapshot is None or snapshot.execution_owner is not ExecutionOwner.RUNTIME:
        return GONE
    if snapshot.attempt_status is None:
        return _without_attempt(snapshot)
    if snapshot.attempt_status in ACTIVE_ATTEMPT:
        return _active(known, snapshot)
    return _ended(snapshot, snapshot.attempt_status)


def _without_attempt(snapshot: Snapshot) -> Verdict:
    if snapshot.run_status in TERMINAL_RUN or snapshot.run_status is RunStatus.QUEUED:
        return GONE
    if snapshot.intent_kind is not None:
        return _LEFT_TO_STOP
    if snapshot.run_status is RunStatus.CREATED and not snapshot.unknown_types:
        return _manual(13, ManualReason.STUCK_CREATED)
    return _manual(13, ManualReason.UNEXPECTED)


def _ended(snapshot: Snapshot, attempt_status: AttemptStatus) -> Verdict:
    """Judge an Attempt that is not active any more."""
    if not snapshot.attempt_latest or attempt_status in CONSISTENT_ENDS.get(snapshot.run_status, frozenset()):
        return GONE
    active_run = snapshot.run_status in RUN_WITH_ATTEMPT
    if active_run and attempt_status is not AttemptStatus.LOST:
        return _manual(3, ManualReason.INCONSISTENT)
    if snapshot.intent_kind is not None and snapshot.run_status not in TERMINAL_RUN:
        return _LEFT_TO_STOP
    if active_run and not snapshot.unknown_types:
        return Verdict(7, VerdictKind.RUN_LOST)
    return _manual(13, ManualReason.UNEXPECTED)


def _active(known: Known, snapshot: Snapshot) -> Verdict | Need:
    if snapshot.run_status not in RUN_WITH_ATTEMPT or not snapshot.attempt_latest:
        return _manual(3, ManualReason.INCONSISTENT)
    if snapshot.lease_valid or known.kind is ItemKind.RUN:
        # A Run was claimed because it had no Attempt. Now it has one, which is an item of its own.
        return Verdict(4, VerdictKind.RESOLVED)
    if snapshot.intent_kind is not None:
        return _LEFT_TO_STOP
    execution = snapshot.execution
    if execution is None or snapshot.unknown_types:
        # Facts of a later release: nothing may be recorded of the Run here (R3.7).
        return _manual(13, ManualReason.UNEXPECTED)
    if known.finding is None:
        if known.receipt is None:
            return Need.RECEIPT
        if known.receipt:
            return _COMPLETED
        if never_started(snapshot, execution):
            row = 8 if snapshot.attempt_status is AttemptStatus.CLAIMED else 9
            return Verdict(row, VerdictKind.LOST, evidence=EvidenceKind.PRE_START)
        return Need.FINDING
    return _found(known, execution, known.finding)


def _found(known: Known, execution: ExecutionSnapshot, finding: Finding) -> Verdict:
    if finding.receipt:
        # It was published while the provider was asked: without an intent the outcome stands (R6.5).
        return _COMPLETED
    if finding.evidence.liveness is Liveness.NOT_RUNNING:
        return Verdict(10, VerdictKind.LOST, evidence=EvidenceKind.NOT_RUNNING, provider_type=execution.executor_type)
    reason = unverifiable(finding.evidence, foreign=known.foreign)
    return Verdict(11, VerdictKind.RETRY) if reason is None else _manual(12, reason)


def never_started(snapshot: Snapshot, execution: ExecutionSnapshot) -> bool:
    """Tell whether no process of an Attempt can have run, if its lease has expired (rows 8 and 9).

    Claimed: the start barrier was not passed. Starting without a handle, where a gate holds the command until its
    handle is recorded: the gate was never opened (R10.1).
    """
    if snapshot.attempt_status is AttemptStatus.CLAIMED:
        return True
    return snapshot.attempt_status is AttemptStatus.STARTING and execution.gated and execution.handle is None


def unverifiable(evidence: Evidence, *, foreign: bool) -> ManualReason | None:
    """Say why no program will find out by asking again; None where it may (R11.3, R8.2)."""
    if evidence.reason is Unknown.CONFLICTING_EVIDENCE:
        return ManualReason.CONFLICTING_EVIDENCE
    if evidence.reason is Unknown.IDENTITY_UNVERIFIABLE:
        return ManualReason.SCOPE_UNSERVED if foreign else ManualReason.IDENTITY_UNVERIFIABLE
    return None


_LEFT_TO_STOP: Final = Verdict(5, VerdictKind.RETRY)
_COMPLETED: Final = Verdict(6, VerdictKind.RECEIPT)


def _manual(row: int, reason: ManualReason) -> Verdict:
    return Verdict(row, VerdictKind.MANUAL, reason)

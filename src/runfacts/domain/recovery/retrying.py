"""
The retry authority: what becomes of a lost Run, and when a retry is queued (R12.1).

It decides by the policy that was frozen when the Run was created, and asks nobody whether a process runs, but for one
case: an Attempt that reported its end may have left members of its process group behind, and never may two Attempts
of one Run live at once. The first row that applies:

==  ==========================================================================  ======================================
 #  what is known                                                               verdict
==  ==========================================================================  ======================================
 1  the claim is no longer ours                                                 fenced
 2  the Run is gone or another system's; it is neither lost nor waits for a     resolved
    retry; it waits and was asked to stop (R12.2)
 3  an active Attempt; a lost Run whose Attempt is not; none at all             manual: inconsistent
 4  facts of a later release                                                    manual: unexpected
 5  lost                                                                        moved on, as the policy says
 6  waiting, not due                                                            retry, when it is due
 7  due, no group left                                                          queued
 8  due, a group left; not_running                                              queued
 9  due, a group left; running, or nobody could be asked                        retry
10  due, a group left; unverifiable, or contradicting itself                    manual, by that reason
==  ==========================================================================  ======================================
"""

from __future__ import annotations

from typing import Final

from runfacts.domain.lifecycle import ACTIVE_ATTEMPT, AttemptStatus, ExecutionOwner, RunStatus
from runfacts.domain.recovery.claims import ManualReason
from runfacts.domain.recovery.evidence import Evidence, Liveness
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.recovery.verdict import FENCED, GONE, Known, Need, Verdict, VerdictKind, unverifiable

_INCONSISTENT: Final = Verdict(3, VerdictKind.MANUAL, ManualReason.INCONSISTENT)


def judge_retry(known: Known) -> Verdict | Need:
    """Say what follows for a lost Run, or one that waits to be tried again, by the first row that applies (R12.1)."""
    if not known.ours:
        return FENCED
    snapshot = known.snapshot
    if snapshot is None or snapshot.execution_owner is not ExecutionOwner.RUNTIME or not _concerns(snapshot):
        return GONE
    lost = snapshot.run_status is RunStatus.LOST
    if (
        snapshot.attempt_status is None
        or snapshot.attempt_status in ACTIVE_ATTEMPT
        or (lost and snapshot.attempt_status is not AttemptStatus.LOST)
    ):
        return _INCONSISTENT
    if snapshot.unknown_types:
        return Verdict(4, VerdictKind.MANUAL, ManualReason.UNEXPECTED)
    if lost:
        return Verdict(5, VerdictKind.MOVED_ON)
    due_at_ms = snapshot.retry_due_at_ms
    if due_at_ms is not None and snapshot.now_ms < due_at_ms:
        return Verdict(6, VerdictKind.RETRY, wait_ms=due_at_ms - snapshot.now_ms)
    if not snapshot.group_left:
        return Verdict(7, VerdictKind.MOVED_ON)
    return Need.FINDING if known.finding is None else _found(known.finding.evidence, foreign=known.foreign)


def _concerns(snapshot: Snapshot) -> bool:
    if snapshot.run_status is RunStatus.LOST:
        return True
    return snapshot.run_status is RunStatus.RETRY_WAIT and snapshot.intent_kind is None


def _found(evidence: Evidence, *, foreign: bool) -> Verdict:
    if evidence.liveness is Liveness.NOT_RUNNING:
        return Verdict(8, VerdictKind.MOVED_ON)
    reason = unverifiable(evidence, foreign=foreign)
    return Verdict(9, VerdictKind.RETRY) if reason is None else Verdict(10, VerdictKind.MANUAL, reason)

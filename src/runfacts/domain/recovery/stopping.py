"""
Stop confirmation: whether a Run that was asked to stop has stopped (R12.2).

Delivering a cancellation proves nothing, and the host that would report the end may be gone. So every Run with an
intent ends here at the latest, and never without evidence. The first row that applies:

==  ==========================================================================  ======================================
 #  what is known                                                               verdict
==  ==========================================================================  ======================================
 1  the claim is no longer ours                                                 fenced
 2  the Run is gone, another system's or has ended; nobody asked it to stop     resolved
 3  an active Attempt whose Run has none                                        manual: inconsistent
 4  facts of a later release, or an Attempt without an execution                manual: unexpected
 5  there never was an Attempt, or the latest is lost                           stopped, by what is recorded
 6  an active Attempt whose dispatch a worker holds                             retry: it settles first
 7  an active Attempt with a valid lease, and no dispatch that is finished for  retry, when either may be over
    longer than the grace
 8  never started (R11.4, rows 8 and 9), the lease valid                        retry, when the lease is over
 9  never started, the lease expired                                            stopped: pre_start
10  an active Attempt, a receipt, and no living member of the group             recorded as completion
11  not_running                                                                 stopped: not_running
12  running, receipt or not; or nobody could be asked                           retry: "signalled, still running"
13  unverifiable, or contradicting itself                                       manual, by that reason
==  ==========================================================================  ======================================

Row 7 says when such a Run is a candidate at all. With a valid lease the host is there and only row 11 or the receipt
of row 10 may end the Run, both proofs about the process itself.
"""

from __future__ import annotations

from typing import Final

from runfacts.domain.lifecycle import ACTIVE_ATTEMPT, RUN_WITH_ATTEMPT, TERMINAL_RUN, AttemptStatus, ExecutionOwner
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.recovery.claims import ManualReason
from runfacts.domain.recovery.evidence import Liveness
from runfacts.domain.recovery.snapshots import ExecutionSnapshot, Snapshot
from runfacts.domain.recovery.verdict import (
    FENCED,
    GONE,
    Known,
    Need,
    Verdict,
    VerdictKind,
    never_started,
    unverifiable,
)

_HELD: Final = Verdict(6, VerdictKind.RETRY)


def judge_stop(known: Known, *, grace_ms: int) -> Verdict | Need:
    """Say what follows for a Run that was asked to stop, by the first row that applies (R12.2).

    ``grace_ms``: how long the host has to report an end after its cancellation was delivered. The snapshot is of the
    Run's latest Attempt.
    """
    if not known.ours:
        return FENCED
    snapshot = known.snapshot
    if (
        snapshot is None
        or snapshot.execution_owner is not ExecutionOwner.RUNTIME
        or snapshot.run_status in TERMINAL_RUN
        or snapshot.intent_kind is None
    ):
        return GONE
    active = snapshot.attempt_status in ACTIVE_ATTEMPT
    if active and snapshot.run_status not in RUN_WITH_ATTEMPT:
        return Verdict(3, VerdictKind.MANUAL, ManualReason.INCONSISTENT)
    execution = snapshot.execution
    if snapshot.unknown_types or (execution is None and snapshot.attempt_status is not None):
        return Verdict(4, VerdictKind.MANUAL, ManualReason.UNEXPECTED)
    if execution is None or snapshot.attempt_status is AttemptStatus.LOST:
        return Verdict(5, VerdictKind.STOPPED)
    waiting = _waiting(snapshot, execution, grace_ms) if active else None
    if waiting is not None:
        return waiting
    if active and never_started(snapshot, execution):
        return Verdict(9, VerdictKind.STOPPED, evidence=EvidenceKind.PRE_START)
    return _found(known, execution, active=active)


def stop_candidate_in_ms(snapshot: Snapshot, *, grace_ms: int) -> int | None:
    """How long until a Run with an active Attempt is a candidate, in milliseconds; None where it is one (R12.2).

    It is one once its execution lease has expired, or its dispatch is finished for longer than the grace.
    """
    execution = snapshot.execution
    if not snapshot.lease_valid or execution is None:
        return None
    # A lease that is valid by another clock than the wall's may show an expiry in the past (R5.2).
    lease_ms = max(1, execution.lease_expires_at_ms - snapshot.now_ms)
    if snapshot.dispatch_finished_at_ms is None:
        return lease_ms
    report_ms = snapshot.dispatch_finished_at_ms + grace_ms - snapshot.now_ms
    return min(lease_ms, report_ms) if report_ms > 0 else None


def _waiting(snapshot: Snapshot, execution: ExecutionSnapshot, grace_ms: int) -> Verdict | None:
    """Say that an active Attempt is to be left alone for now (rows 6 to 8), if it is."""
    if snapshot.dispatch_leased:
        return _HELD
    wait_ms = stop_candidate_in_ms(snapshot, grace_ms=grace_ms)
    if wait_ms is not None:
        return Verdict(7, VerdictKind.RETRY, wait_ms=wait_ms)
    if snapshot.lease_valid and never_started(snapshot, execution):
        # Its host lives and is about to meet the intent at the start barrier or at the handle (R6.4).
        return Verdict(8, VerdictKind.RETRY, wait_ms=max(1, execution.lease_expires_at_ms - snapshot.now_ms))
    return None


def _found(known: Known, execution: ExecutionSnapshot, *, active: bool) -> Verdict | Need:
    finding = known.finding
    if finding is None:
        return Need.FINDING
    if finding.evidence.liveness is Liveness.NOT_RUNNING:
        if finding.receipt and active:
            return Verdict(10, VerdictKind.RECEIPT)
        stopped_by = EvidenceKind.NOT_RUNNING
        return Verdict(11, VerdictKind.STOPPED, evidence=stopped_by, provider_type=execution.executor_type)
    reason = unverifiable(finding.evidence, foreign=known.foreign)
    return Verdict(12, VerdictKind.RETRY) if reason is None else Verdict(13, VerdictKind.MANUAL, reason)

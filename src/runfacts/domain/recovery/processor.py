"""
The processor of recovery: one page of claims, each looked into, applied and settled (R11.3 to R11.8).

There is one processor for each purpose, and a cycle is one page, serially: no timer, no thread, no leader, nothing kept
from one cycle to the next but what the store holds. For each claim: read Run and Attempt anew, go through the
purpose's table, ask from outside only where a row needs it, record what was proven, and settle in a transaction of its
own. Whoever loses its claim on the way writes nothing; a crash between the two transactions leaves a row that a later
cycle's sweep resolves.

The holder's own deadline counts from before it asked for the page. Before a probe it must leave time for the probe and
for the mutation after it, or the rest of the page is given back, for others to claim at once.

Whatever goes wrong with one item becomes its next, later try, and the page goes on. An item that fails as often in a
row as the limit says, a term that was found expired counted with them, is an operator's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Final

from runfacts.domain.cancellation.controllers import Monotonic
from runfacts.domain.cancellation.terms import HoldersDeadline
from runfacts.domain.errors import InvalidSetting
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.claims import (
    ApplyAnswer,
    ManualReason,
    Purpose,
    RecoveryClaimed,
    RecoveryFenced,
    RecoveryStale,
)
from runfacts.domain.recovery.ports import Examiner, Finding, RecoveryClaims
from runfacts.domain.recovery.retrying import judge_retry
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.recovery.stopping import judge_stop
from runfacts.domain.recovery.verdict import Known, Need, Verdict, VerdictKind, judge

MARGIN_MS: Final = 1_250
"""What a claim must last longer than a probe: the longest wait for a lock, and R11.3's 250 ms."""

_DOUBLINGS_MAX: Final = 30
"""How often the wait doubles at most: every bound of it is reached long before."""


@dataclass(slots=True)
class RecoveryReport:
    """What one cycle saw and did, in counters."""

    claimed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Verdicts that were carried out, by kind; ``fenced``, ``stale``, ``error``, ``given_back``, ``swept``; what was
    found from outside as ``found_`` with the answer or the reason of an unknown one."""
    swept_oldest_ms: int = 0
    """The longest time that a row was left over between mutation and settle (R11.7)."""

    def as_dict(self) -> dict[str, int]:
        """Give all counters by name."""
        return {"claimed": self.claimed} | {str(name): count for name, count in sorted(self.counts.items())}


ErrorReport = Callable[[str | None, BaseException], None]
"""Told the Run's id, where it is about one, and what went wrong."""


class RecoveryProcessor:
    """Looks into what one worker may claim for one purpose."""

    def __init__(
        self,
        claims: RecoveryClaims,
        examiner: Examiner,
        purpose: Purpose,
        *,
        owner: str,
        served: frozenset[tuple[str, str]],
        settings: Settings,
        monotonic: Monotonic,
        on_error: ErrorReport,
    ) -> None:
        """Refuse a claim's lease that does not outlast the longest probe and a margin (``InvalidSetting``, R11.3)."""
        worst_ms = max((examiner.worst_case_ms(executor_type) for executor_type, _ in served), default=0)
        probe_ms = max(worst_ms, settings.evidence_timeout_ms)
        if settings.recovery_lease_ms < probe_ms + MARGIN_MS:
            raise InvalidSetting(
                "recovery_lease_ms",
                f"is {settings.recovery_lease_ms}; a look may take {probe_ms} and needs {MARGIN_MS} more",
            )
        self._claims = claims
        self._examiner = examiner
        self._purpose = purpose
        self._owner = owner
        self._served = served
        self._settings = settings
        self._monotonic = monotonic
        self._on_error = on_error

    def cycle(self, stopping: Callable[[], bool] = lambda: False) -> RecoveryReport:
        """Sweep, and take one page; ``stopping`` gives back what is left of it between two items (R11.8).

        The sweep is for all purposes at once: the processor of recovery does it.
        """
        report = RecoveryReport()
        if self._purpose is Purpose.RECOVERY:
            self._sweep(report)
        deadline = HoldersDeadline(self._monotonic, self._settings.recovery_lease_ms, MARGIN_MS)
        page = self._claims.claim_recoveries(
            self._purpose,
            owner=self._owner,
            served=self._served,
            limit=self._settings.recovery_page,
            lease_ms=self._settings.recovery_lease_ms,
        )
        report.claimed = len(page)
        page = tuple(sorted(page, key=_turn))
        for place, claim in enumerate(page):
            if stopping() or not deadline.allows(0) or not self._try(claim, deadline, report):
                self._give_back(page[place:], report)
                break
        return report

    def _sweep(self, report: RecoveryReport) -> None:
        # What is left over may wait for the next cycle; what is new may not wait for it.
        try:
            swept = self._claims.sweep_recoveries()
        except Exception as error:  # noqa: BLE001 - see above
            self._failed(None, error, report)
            return
        report.counts["swept"] += swept.swept
        report.swept_oldest_ms = swept.oldest_ms

    def _give_back(self, rest: tuple[RecoveryClaimed, ...], report: RecoveryReport) -> None:
        try:
            report.counts["given_back"] += self._claims.give_back(rest)
        except Exception as error:  # noqa: BLE001 - the terms expire by themselves
            self._failed(None, error, report)

    def _try(self, claim: RecoveryClaimed, deadline: HoldersDeadline, report: RecoveryReport) -> bool:
        """Look into one item; tell whether there was time for it."""
        # The one place where any error goes on with the next item: one broken Run must not stop the others (R11.8).
        try:
            return self._look_into(claim, deadline, report)
        except Exception as error:  # noqa: BLE001 - see above
            self._failed(claim.run_id, error, report)
        try:
            self._settle_failed(claim, report)
        except Exception as error:  # noqa: BLE001 - the term expires by itself, which counts as a failure, too
            self._failed(claim.run_id, error, report)
        return True

    def _look_into(self, claim: RecoveryClaimed, deadline: HoldersDeadline, report: RecoveryReport) -> bool:
        if claim.failures >= self._settings.failure_limit:
            # Terms found expired: an item that ends its workers is not looked into once more.
            self._settle_manual(claim, ManualReason.FAILURE_LIMIT, report)
            return True
        snapshot = self._claims.recovery_snapshot(claim)
        known = Known(ours=deadline.allows(0), kind=claim.key.kind, foreign=claim.foreign, snapshot=snapshot)
        while isinstance(verdict := self._judge(known), Need) and snapshot is not None:
            if verdict is Need.RECEIPT:
                known = replace(known, receipt=self._examiner.has_receipt(snapshot, foreign=claim.foreign))
                continue
            if not deadline.allows(self._examiner.worst_case_ms(claim.executor_type)):
                return False
            finding = self._examiner.examine(snapshot, foreign=claim.foreign)
            report.counts[f"found_{_word(finding)}"] += 1
            known = replace(known, finding=finding, ours=deadline.allows(0))
        if isinstance(verdict, Need) or verdict.kind is VerdictKind.FENCED:
            report.counts["fenced"] += 1
        elif snapshot is None:
            self._settle_resolved(claim, VerdictKind.RESOLVED, report)
        else:
            self._carry_out(claim, snapshot, verdict, report)
        return True

    def _judge(self, known: Known) -> Verdict | Need:
        if self._purpose is Purpose.STOP:
            return judge_stop(known, grace_ms=self._settings.stop_report_grace_ms)
        return judge_retry(known) if self._purpose is Purpose.RETRY else judge(known)

    def _carry_out(self, claim: RecoveryClaimed, snapshot: Snapshot, verdict: Verdict, report: RecoveryReport) -> None:
        match verdict.kind:
            case VerdictKind.RETRY:
                self._settle_retry(claim, VerdictKind.RETRY, report, verdict.wait_ms)
            case VerdictKind.MANUAL:
                self._settle_manual(claim, verdict.reason or ManualReason.UNEXPECTED, report, snapshot)
            case VerdictKind.RECEIPT if not self._examiner.record_receipt(snapshot):
                # Somebody else records it, or it turned out to be none: the next look tells.
                self._settle_retry(claim, VerdictKind.RETRY, report)
            case VerdictKind.RECEIPT if self._purpose is Purpose.STOP:
                # What ended the Run has resolved the row: to settle it would pass for a stale holder's (R7.7, R12.2).
                report.counts[verdict.kind] += 1
            case VerdictKind.RECEIPT | VerdictKind.RESOLVED:
                self._settle_resolved(claim, verdict.kind, report)
            case _:
                self._applied(claim, verdict.kind, self._apply(claim, snapshot, verdict), report)

    def _apply(self, claim: RecoveryClaimed, snapshot: Snapshot, verdict: Verdict) -> ApplyAnswer:
        if verdict.kind is VerdictKind.MOVED_ON:
            return self._claims.apply_retry(claim, snapshot)
        if verdict.kind is VerdictKind.STOPPED:
            return self._claims.apply_stopped(claim, snapshot, verdict.evidence, verdict.provider_type)
        return self._claims.apply_lost(claim, snapshot, verdict.evidence, verdict.provider_type)

    def _applied(self, claim: RecoveryClaimed, what: VerdictKind, answer: ApplyAnswer, report: RecoveryReport) -> None:
        if isinstance(answer, RecoveryFenced):
            report.counts["fenced"] += 1
        elif isinstance(answer, RecoveryStale):
            self._settle_retry(claim, "stale", report)
        else:
            # A retry that waits is a candidate again when it is due: the store knows when.
            self._settle_resolved(claim, what, report)

    def _settle_resolved(self, claim: RecoveryClaimed, what: str, report: RecoveryReport) -> None:
        report.counts[what] += 1
        self._count_fenced(self._claims.settle_recovery(claim), report)

    def _settle_manual(
        self, claim: RecoveryClaimed, reason: ManualReason, report: RecoveryReport, snapshot: Snapshot | None = None
    ) -> None:
        answer = self._claims.settle_recovery(claim, manual=reason, snapshot=snapshot)
        if isinstance(answer, RecoveryStale):
            # What nobody has looked at may not be left to an operator.
            self._settle_retry(claim, "stale", report)
            return
        report.counts[VerdictKind.MANUAL] += 1
        self._count_fenced(answer, report)

    def _settle_retry(
        self, claim: RecoveryClaimed, what: str, report: RecoveryReport, wait_ms: int | None = None
    ) -> None:
        report.counts[what] += 1
        # Rather too early than never: what is not due yet then waits once more.
        retry_in_ms = self._delay_ms(claim) if wait_ms is None else min(wait_ms, self._settings.recovery_delay_max_ms)
        self._count_fenced(self._claims.settle_recovery(claim, retry_in_ms=retry_in_ms), report)

    def _settle_failed(self, claim: RecoveryClaimed, report: RecoveryReport) -> None:
        if claim.failures + 1 >= self._settings.failure_limit:
            report.counts[VerdictKind.MANUAL] += 1
            answer = self._claims.settle_recovery(claim, manual=ManualReason.FAILURE_LIMIT, failed=True)
        else:
            answer = self._claims.settle_recovery(claim, retry_in_ms=self._delay_ms(claim), failed=True)
        self._count_fenced(answer, report)

    def _delay_ms(self, claim: RecoveryClaimed) -> int:
        """The wait before the next look: it doubles from one to the next, and the store keeps it (R11.8)."""
        doubled = self._settings.recovery_delay_ms << min(claim.delays, _DOUBLINGS_MAX)
        return min(self._settings.recovery_delay_max_ms, doubled)

    def _failed(self, run_id: str | None, error: BaseException, report: RecoveryReport) -> None:
        report.counts["error"] += 1
        self._on_error(run_id, error)

    @staticmethod
    def _count_fenced(answer: object, report: RecoveryReport) -> None:
        if isinstance(answer, RecoveryFenced):
            report.counts["fenced"] += 1


def _turn(claim: RecoveryClaimed) -> tuple[bool, bytes]:
    """Say when a claim's turn is within its page: as it was claimed, or last and anyhow where it failed before."""
    if not claim.failures:
        return False, b""
    return True, sha256(f"{claim.failures} {claim.key.item_id}".encode()).digest()


def _word(finding: Finding) -> str:
    if finding.receipt:
        return "receipt"
    reason = finding.evidence.reason
    return finding.evidence.liveness.value if reason is None else reason.value

"""
The dispatcher: one candidate after the other, claimed, stopped, settled; and rounds over all of them (R9.1, R9.2).

A *round* covers what was due when it began, page by page, oldest first; then a new one begins at the oldest. So every
eligible row is tried within as many cycles as its round has pages, whatever flows in behind. A *cycle* takes up to
``pages`` pages and the next one goes on where it ended. A page whose cursor does not advance ends the cycle: a source
that repeats itself would starve the rest.

The holder of a claim acts outside of any transaction, and only while its own deadline, counted from before it asked,
leaves time (R8.4). A controller that fails settles ``dispatch_error``; one that ran out of time settles nothing: the
next term proves anew (R8.8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from runfacts.domain.cancellation.controllers import Controllers, Monotonic, OutOfTime, StopResult
from runfacts.domain.cancellation.ports import CancellationDispatches
from runfacts.domain.cancellation.results import SETTLED, DispatchResult
from runfacts.domain.cancellation.terms import (
    CandidatePage,
    Cursor,
    DispatchAlreadySettled,
    DispatchCandidate,
    DispatchClaimed,
    DispatchNotClaimed,
    DispatchSettled,
    HoldersDeadline,
    PageRefusal,
)
from runfacts.domain.errors import InvalidSetting
from runfacts.domain.measures import NO_MEASURES, REQUEST_TO_SIGNAL, Measures
from runfacts.domain.payloads import Escalation

MARGIN_MS: Final = 2_000
"""What a lease must last longer than the controllers' worst case: twice the longest wait for a lock (R8.7)."""


@dataclass(slots=True)
class CycleReport:
    """What one cycle saw and did, in counters."""

    seen: int = 0
    claimed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Answers of claims and results of settles, by name; ``error`` counts candidates that failed."""
    round_ended: bool = False
    refused: PageRefusal | None = None
    """Why the cycle ended early."""

    def as_dict(self) -> dict[str, int]:
        """Give all counters by name; a page that was refused is one of them."""
        counts = self.counts if self.refused is None else self.counts + Counter([self.refused.value])
        return {"seen": self.seen, "claimed": self.claimed, **dict(sorted(counts.items()))}


ErrorReport = Callable[[str, BaseException], None]
"""Told the Run's id and what went wrong with one candidate."""


class Dispatcher:
    """Delivers cancellations of the executor types and scopes that its controllers serve."""

    def __init__(
        self,
        dispatches: CancellationDispatches,
        controllers: Controllers,
        *,
        owner: str,
        lease_ms: int,
        page: int,
        pages: int,
        monotonic: Monotonic,
        on_error: ErrorReport,
        measures: Measures = NO_MEASURES,
    ) -> None:
        """Refuse a lease that does not outlast the controllers' worst case and a margin (``InvalidSetting``, R8.7)."""
        if lease_ms < controllers.worst_case_ms + MARGIN_MS:
            raise InvalidSetting(
                "cancel_lease_ms",
                f"is {lease_ms}; the controllers may take {controllers.worst_case_ms} and need {MARGIN_MS} more",
            )
        self._dispatches = dispatches
        self._controllers = controllers
        self._owner = owner
        self._lease_ms = lease_ms
        self._page = page
        self._pages = pages
        self._monotonic = monotonic
        self._on_error = on_error
        self._measures = measures
        self._cutoff_ms: int | None = None
        self._after: Cursor | None = None

    def cycle(self, stopping: Callable[[], bool] = lambda: False) -> CycleReport:
        """Take up to ``pages`` pages of the present round; ``stopping`` ends it between two candidates (R9.2)."""
        report = CycleReport()
        served = self._controllers.served
        if not served:
            return report
        for _ in range(self._pages):
            page, self._cutoff_ms = self._dispatches.due_dispatches(
                served, cutoff_ms=self._cutoff_ms, after=self._after, limit=self._page
            )
            report.refused = _refusal(page, self._after, self._page)
            if report.refused is not None:
                self._begin_round()
                return report
            for candidate in page.items:
                if stopping():
                    return report
                report.seen += 1
                self._try(candidate, report)
            self._after = page.next
            if page.next is None:
                self._begin_round()
                report.round_ended = True
                return report
        return report

    def deliver(self, candidate: DispatchCandidate, report: CycleReport | None = None) -> None:
        """Try one candidate outside of the rounds, because its request has just been made."""
        self._try(candidate, report or CycleReport())

    def _begin_round(self) -> None:
        self._cutoff_ms = None
        self._after = None

    def _try(self, candidate: DispatchCandidate, report: CycleReport) -> None:
        # The one place where any error goes on with the next candidate: one broken Run must not stop the others (R9.3).
        try:
            self._deliver(candidate, report)
        except Exception as error:  # noqa: BLE001 - see above
            report.counts["error"] += 1
            self._on_error(candidate.run_id, error)

    def _deliver(self, candidate: DispatchCandidate, report: CycleReport) -> None:
        deadline = HoldersDeadline(self._monotonic, self._lease_ms, MARGIN_MS)
        claim = self._dispatches.claim_dispatch(
            candidate.run_id,
            candidate.attempt_id,
            candidate.requested_at_ms,
            owner=self._owner,
            served=frozenset(self._controllers.served),
            lease_ms=self._lease_ms,
        )
        if isinstance(claim, DispatchNotClaimed):
            report.counts[claim.answer.value] += 1
            return
        claimed_s = self._monotonic()
        report.claimed += 1
        if claim.taken_over:
            report.counts["taken_over"] += 1
        try:
            outcome = self._stop(claim, deadline)
        except OutOfTime:
            report.counts["out_of_time"] += 1
            return
        if outcome.escalation is not Escalation.NONE and deadline.first_asked_s is not None:
            # The store's time up to the claim, this process's own from there on: the two are never compared.
            to_claim_ms = claim.lease_expires_at_ms - self._lease_ms - candidate.requested_at_ms
            self._measures.record(REQUEST_TO_SIGNAL, to_claim_ms + int((deadline.first_asked_s - claimed_s) * 1_000))
        answer = self._dispatches.settle_dispatch(claim, outcome.result, escalation=outcome.escalation)
        if isinstance(answer, DispatchSettled | DispatchAlreadySettled):
            report.counts[outcome.result.value] += 1
        else:
            report.counts["fenced"] += 1

    def _stop(self, claim: DispatchClaimed, deadline: HoldersDeadline) -> StopResult:
        controller = self._controllers.find(claim.target.executor_type)
        if controller is None:
            return StopResult(DispatchResult.CONTROLLER_MISSING)
        if claim.target.handle is None:
            return StopResult(DispatchResult.HANDLE_MISSING)
        try:
            return _checked(controller.stop(claim.target, deadline))
        except OutOfTime:
            raise
        except Exception as error:  # noqa: BLE001 - a controller is the embedder's; its failure is a result (R7.4)
            self._on_error(claim.target.run_id, error)
            return StopResult(DispatchResult.DISPATCH_ERROR)


def _checked(answer: object) -> StopResult:
    """See that a controller's answer is one that can be settled with (``TypeError``, ``ValueError``)."""
    if not isinstance(answer, StopResult):
        msg = f"a controller answered {type(answer).__name__}, which is no result"
        raise TypeError(msg)
    checked = StopResult(DispatchResult(answer.result), Escalation(answer.escalation))
    if checked.result not in SETTLED:
        msg = f"a controller answered {checked.result}, which is not its to say"
        raise ValueError(msg)
    return checked


def _refusal(page: CandidatePage, after: Cursor | None, limit: int) -> PageRefusal | None:
    """Say what is wrong with a page, if anything is (R9.1)."""
    if len(page.items) > limit:
        return PageRefusal.PAGE_OVERFLOW
    if page.next is None or after is None:
        return None
    advances = (page.next.due_at_ms, page.next.run_id) > (after.due_at_ms, after.run_id)
    return None if advances else PageRefusal.CURSOR_NOT_ADVANCING

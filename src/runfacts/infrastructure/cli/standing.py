"""
Where a Run stands that nobody reports on, in words (R13.1).

What is said of it follows from what is recorded: that its worker vanished, that it was signalled and still runs, that
it is lost and by what that is known, that it waits, and for whom.
"""

from __future__ import annotations

from dataclasses import dataclass

from runfacts.domain.cancellation.results import DispatchStatus
from runfacts.domain.lifecycle import TERMINAL_RUN, RunStatus
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import ClaimState
from runfacts.domain.views import LeaseState, RecoveryView, RunSummary, RunView
from runfacts.infrastructure.cli.output import moment


def standing_on_board(run: RunSummary) -> str | None:
    """Say where a Run of the board stands; None where there is nothing to say."""
    asked = run.intent_at_ms is not None
    return _Standing(run.status, asked, run.dispatch, run.retry_due_at_ms, run.recovery).words()


def standing_of(run: RunView) -> str | None:
    """Say where a Run stands; None where there is nothing to say."""
    asked = run.cancellation is not None
    dispatch = run.cancellation.dispatch if run.cancellation is not None else None
    latest = run.attempts[-1] if run.attempts else None
    return _Standing(
        run.status,
        asked,
        None if dispatch is None else dispatch.status,
        run.retry_due_at_ms,
        run.recovery,
        None if latest is None else latest.evidence,
        latest is not None and latest.lease is LeaseState.EXPIRED,
    ).words()


@dataclass(frozen=True, slots=True)
class _Standing:
    status: RunStatus
    asked_to_stop: bool
    dispatch: DispatchStatus | None
    retry_due_at_ms: int | None
    recovery: RecoveryView | None
    evidence: Evidence | None = None
    lease_expired: bool = False

    def words(self) -> str | None:
        if self.status in TERMINAL_RUN:
            return None
        if self.recovery is not None and self.recovery.state is ClaimState.MANUAL:
            return f"waits for an operator: {self.recovery.reason}"
        if self.asked_to_stop:
            return self._stop()
        match self.status:
            case RunStatus.LOST:
                return self._and_then(self._lost(), "; a retry is not decided yet", "; a retry is being decided")
            case RunStatus.RETRY_WAIT:
                return self._retry()
            case RunStatus.CREATED if self._state is not None:
                return self._and_then("created and never queued", "; waits to be looked at", "; being looked at")
            case _ if self._state is not None:
                return self._and_then("its worker vanished", "; waits to be looked at", "; being recovered by a worker")
            case _ if self.lease_expired:
                return "its worker's lease has expired; waits to be looked at"
            case _:
                return None

    @property
    def _state(self) -> ClaimState | None:
        """The claim's, where it is not over."""
        if self.recovery is None or self.recovery.state is ClaimState.RESOLVED:
            return None
        return self.recovery.state

    def _stop(self) -> str | None:
        if self._state is ClaimState.CLAIMED:
            return "asked to stop; a worker looks whether it has"
        signalled = self.dispatch is DispatchStatus.DISPATCHED
        if self._state is ClaimState.RETRY:
            seen = "signalled, still running" if signalled else "asked to stop, not proven to have stopped"
            return f"{seen}; {self._again()}"
        return "signalled, its end is not reported yet" if signalled else None

    def _lost(self) -> str:
        if self.evidence is None:
            return "lost"
        return "lost on an operator's word" if self.evidence is Evidence.ATTESTED else "lost on proof"

    def _retry(self) -> str:
        lost = "" if self.evidence is None else f"{self._lost()}, "
        if self._state is ClaimState.CLAIMED:
            return f"{lost}its retry is being queued by a worker"
        if self._state is ClaimState.RETRY:
            return f"{lost}waits for a retry; {self._again()}"
        return f"{lost}waits for a retry at {moment(self.retry_due_at_ms)}"

    def _and_then(self, what: str, waits: str, claimed: str) -> str:
        match self._state:
            case ClaimState.CLAIMED:
                return f"{what}{claimed}"
            case ClaimState.RETRY:
                return f"{what}; {self._again()}"
            case _:
                return f"{what}{waits}"

    def _again(self) -> str:
        at_ms = None if self.recovery is None else self.recovery.next_claim_at_ms
        return f"looked at again at {moment(at_ms)}"

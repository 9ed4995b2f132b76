"""What the dispatcher needs of a store: three methods, and the whole truth of each (R7, R9.1)."""

from __future__ import annotations

from typing import Protocol

from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import (
    CandidatePage,
    Cursor,
    DispatchAlreadySettled,
    DispatchClaimed,
    DispatchFenced,
    DispatchNotClaimed,
    DispatchSettled,
)
from runfacts.domain.payloads import Escalation


class CancellationDispatches(Protocol):
    """The store of dispatches. At most one valid lease per Run; ``Ledger`` is one."""

    def due_dispatches(
        self, served: tuple[tuple[str, str], ...], *, cutoff_ms: int | None, after: Cursor | None, limit: int
    ) -> tuple[CandidatePage, int]:
        """Give a page of candidates, and the time that the round covers: ``cutoff_ms``, or now where it is None.

        Writes nothing.
        """
        ...

    def claim_dispatch(
        self,
        run_id: str,
        attempt_id: str,
        requested_at_ms: int,
        *,
        owner: str,
        served: frozenset[tuple[str, str]],
        lease_ms: int | None = None,
    ) -> DispatchClaimed | DispatchNotClaimed:
        """Begin a term, or say why not; the store's own time judges whether the last one is over (R7.2)."""
        ...

    def settle_dispatch(
        self, claim: DispatchClaimed, result: DispatchResult, *, escalation: Escalation = Escalation.NONE
    ) -> DispatchSettled | DispatchAlreadySettled | DispatchFenced:
        """End exactly this term, with its fact (R7.4)."""
        ...

"""
The product's deliveries: cancellations claimed and settled, and pages of those that are due.

As with a supervisor, somebody else has written the Runs: their histories are read, not kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.ledger_sides import ACTOR, begin_run, open_ledger
from runfacts.domain.answers import AttemptClaim
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import CancelRequested, DispatchClaimed, DispatchSettled
from runfacts.domain.payloads import Escalation
from runfacts.infrastructure.ledger import Ledger

SERVED: Final = ("bench", "")
"""Executor type and scope of the Runs."""
OWNER: Final = "bench-worker"
RESULT: Final = DispatchResult.TERMINATION_REQUESTED
PAGE: Final = 32
"""Due dispatches in a page, as by default."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A running Run that was asked to stop: 8 facts, and a dispatch that is due."""

    claim: AttemptClaim
    requested_at_ms: int


def ask_runs_to_stop(ledger: Ledger, count: int) -> list[Asked]:
    """Begin Runs and ask each to stop, in one transaction."""
    asked = []
    with ledger.database.engine.begin() as connection:
        for _ in range(count):
            claim = begin_run(ledger, connection)
            answer = ledger.request_cancellation(claim.run_id, actor=ACTOR, connection=connection)
            if not isinstance(answer, CancelRequested):
                raise TypeError(f"a request of the bench was answered by {answer}")
            asked.append(Asked(claim, answer.requested_at_ms))
    return asked


@dataclass(slots=True)
class Deliveries:
    """Claims one dispatch after the other, and settles each if that is wanted."""

    ledger: Ledger
    settling: bool

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``. Each step has a Run of its own."""
        return self._steps(ask_runs_to_stop(self.ledger, steps))

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()

    def _steps(self, runs: list[Asked]) -> Iterator[int]:
        served = frozenset({SERVED})
        for asked in runs:
            claim = self.ledger.claim_dispatch(
                asked.claim.run_id, asked.claim.attempt_id, asked.requested_at_ms, owner=OWNER, served=served
            )
            if not isinstance(claim, DispatchClaimed):
                raise TypeError(f"a claim of the bench was answered by {claim}")
            if self.settling:
                settled = self.ledger.settle_dispatch(claim, RESULT, escalation=Escalation.TERM)
                if not isinstance(settled, DispatchSettled):
                    raise TypeError(f"a settle of the bench was answered by {settled}")
            yield 1


@dataclass(slots=True)
class DuePages:
    """Reads the first page of what is due, over and over."""

    ledger: Ledger

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        for _ in range(steps):
            page, _ = self.ledger.due_dispatches((SERVED,), limit=PAGE)
            if len(page.items) != PAGE:
                raise RuntimeError("a page of the bench is not full")
            yield 1

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()


def pairs(url: str) -> Deliveries:
    """Open the side that claims and settles."""
    return Deliveries(open_ledger(url), settling=True)


def claims(url: str) -> Deliveries:
    """Open the side that claims and leaves it at that."""
    return Deliveries(open_ledger(url), settling=False)


def due_pages(url: str) -> DuePages:
    """Open the side that reads pages, with one page of work."""
    ledger = open_ledger(url)
    ask_runs_to_stop(ledger, PAGE)
    return DuePages(ledger)

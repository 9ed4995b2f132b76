"""What the local executor needs of a ledger. ``Ledger`` is one; tests have a recording double."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from runfacts.domain.actors import Actor
from runfacts.domain.answers import (
    AttemptClaim,
    Claimed,
    Finished,
    LateCallback,
    NotClaimable,
    Recorded,
    RenewalRefused,
    Renewed,
    Repeated,
    Started,
    StartRefused,
    StopNotProven,
)
from runfacts.domain.outcomes import Outcome
from runfacts.domain.views import ExecutionView, Page, RunView


class CompletionLedger(Protocol):
    """What recording the end of a command takes."""

    def finish(
        self,
        claim: AttemptClaim,
        outcome: Outcome,
        *,
        actor: Actor,
        sequence: int | None = None,
        group_left: bool = False,
    ) -> Finished | Repeated | LateCallback | StopNotProven:
        """End the Attempt and move its Run (R2.7, R6.5)."""
        ...


class CollectingLedger(CompletionLedger, Protocol):
    """What looking for left receipts takes."""

    def open_executions(
        self, executor_type: str, scope: str, *, after: str | None = None, limit: int | None = None
    ) -> Page[ExecutionView]:
        """A page of the active Attempts of an executor type and scope that have a receipt's path."""
        ...


class HostLedger(CompletionLedger, Protocol):
    """What hosting one Attempt takes."""

    def claim(
        self,
        run_id: str,
        *,
        actor: Actor,
        executor_type: str,
        gated: bool = False,
        scope: str = "",
        worker_id: str | None = None,
        lease_ms: int | None = None,
        queue: bool = False,
    ) -> Claimed | NotClaimable:
        """Create the next Attempt and its execution lease (R2.8); queue the Run first where ``queue`` says so."""
        ...

    def start(
        self, claim: AttemptClaim, *, actor: Actor, log_path: str | None = None, receipt_path: str | None = None
    ) -> Started | StartRefused:
        """Pass the start barrier (R6.4)."""
        ...

    def running(
        self, claim: AttemptClaim, *, actor: Actor, handle: str | None = None, pid: int | None = None
    ) -> Recorded | Repeated | StartRefused | LateCallback:
        """Record the process; after this, and not before, its gate may open (R10.1)."""
        ...

    def renew(self, claim: AttemptClaim, *, lease_ms: int | None = None) -> Renewed | RenewalRefused:
        """Make the execution lease last longer (R10.3)."""
        ...

    def run(self, run_id: str) -> RunView:
        """Read the Run as it stands."""
        ...


class Stops(Protocol):
    """Who delivers the cancellations of what a host hosts (R9.5)."""

    def hosting(self, attempt_id: str) -> AbstractContextManager[None]:
        """Look after an Attempt within the block."""
        ...

    def wake(self) -> None:
        """Look now: an intent was seen, or more is left of a cancelled command than its process."""
        ...

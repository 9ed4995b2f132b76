"""What recovery needs of a store, and of whoever looks at processes; the whole truth of each method (R11, R12)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.recovery.claims import (
    ApplyAnswer,
    ManualReason,
    Purpose,
    RecoveryClaimed,
    RecoveryScan,
    SettleRecoveryAnswer,
    SweepReport,
)
from runfacts.domain.recovery.evidence import Evidence
from runfacts.domain.recovery.snapshots import Snapshot


class RecoveryClaims(Protocol):
    """The store of recovery claims. At most one valid term per row; ``Ledger`` is one. Facts only where said."""

    def claim_recoveries(
        self,
        purpose: Purpose,
        *,
        owner: str,
        served: frozenset[tuple[str, str]],
        limit: int | None = None,
        lease_ms: int | None = None,
    ) -> tuple[RecoveryClaimed, ...]:
        """List, upsert and claim one page of candidates, in one short transaction (R11.1, R11.2).

        ``served`` are executor types and scopes of the worker. Oldest due first; what cannot be claimed now takes no
        place. Items of a foreign scope that were due for ``unserved_after_ms`` come after one's own (R8.2). A clean
        page writes nothing.
        """
        ...

    def give_back(self, claims: tuple[RecoveryClaimed, ...]) -> int:
        """End terms unused: available again at once, nothing counted; tell how many were still ours (R11.2)."""
        ...

    def recovery_snapshot(self, claim: RecoveryClaimed) -> Snapshot | None:
        """Read Run, Attempt and execution anew (R11.3); None where the Run is gone."""
        ...

    def apply_lost(
        self, claim: RecoveryClaimed, snapshot: Snapshot, evidence: EvidenceKind | None, provider_type: str | None
    ) -> ApplyAnswer:
        """Declare the Attempt and its Run lost, fenced by the term and compared with the snapshot (R11.5, R11.6).

        Facts attempt.lost, run.lost. Without ``evidence`` the Attempt is lost already and its Run follows, by the
        Attempt's own.
        """
        ...

    def apply_stopped(
        self, claim: RecoveryClaimed, snapshot: Snapshot, evidence: EvidenceKind | None, provider_type: str | None
    ) -> ApplyAnswer:
        """End a Run that was asked to stop and has stopped, the same way (R12.2).

        Facts run.stop_confirmed and the ends of Attempt and Run. Without ``evidence`` no Attempt is active, and what
        is recorded of the latest one is the proof.
        """
        ...

    def apply_retry(self, claim: RecoveryClaimed, snapshot: Snapshot) -> ApplyAnswer:
        """Move a lost Run on, or queue a retry that is due (R12.1), the same way.

        A lost Run becomes retry_wait or failed, as its policy says, or cancelled where it was asked to stop; one that
        waits becomes queued. Where the snapshot says ``group_left``, the caller has proven that the group is gone. The
        claim's row stays as it is: settling is the caller's.
        """
        ...

    def settle_recovery(
        self,
        claim: RecoveryClaimed,
        *,
        retry_in_ms: int | None = None,
        manual: ManualReason | None = None,
        snapshot: Snapshot | None = None,
        failed: bool = False,
    ) -> SettleRecoveryAnswer:
        """End the term: resolved, or ``retry_in_ms``, or ``manual``, fenced by owner, token, version and time (R11.7).

        ``failed`` counts one more exception in a row; any other settle forgets them. ``manual`` records
        ``run.recovery_manual``, once per snapshot (R11.10). The ``snapshot`` is what such a verdict was given on: where
        the Run is not that any more, the answer is stale, and the term goes on.
        """
        ...

    def sweep_recoveries(self, *, limit: int | None = None) -> SweepReport:
        """Resolve left-over rows, in any state, whose target is no candidate of that purpose any more (R11.7)."""
        ...

    def scan_recoveries(self, served: frozenset[tuple[str, str]], *, limit: int) -> RecoveryScan:
        """Count candidates of recovery, and rows that wait, each up to ``limit`` (R11.9). Writes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of an Attempt from outside (R10.2, R11.3)."""

    evidence: Evidence
    """Whether anything of it runs; beside a receipt, whether anything of its group is left (R6.5)."""
    receipt: bool = False
    """Whether a completion receipt lies there that can be believed."""


class Examiner(Protocol):
    """Looks at an Attempt's process and receipt, within bounds, and records a receipt on demand.

    Infrastructure's is the registry of evidence providers with the receipts of the local executor.
    """

    def worst_case_ms(self, executor_type: str) -> int:
        """How long ``examine`` may take."""
        ...

    def has_receipt(self, snapshot: Snapshot, *, foreign: bool) -> bool:
        """Tell whether a completion receipt lies there, without asking any provider (R11.4 row 6)."""
        ...

    def examine(self, snapshot: Snapshot, *, foreign: bool) -> Finding:
        """Look for a receipt, ask the provider, and look again under the keeper's lock (R10.2). Changes nothing.

        ``foreign``: the scope is not the worker's own; only proofs that hold from anywhere on the machine count.
        """
        ...

    def record_receipt(self, snapshot: Snapshot) -> bool:
        """Consume the receipt and record the outcome; tell whether the Attempt has ended by it (R10.2, R6.5)."""
        ...

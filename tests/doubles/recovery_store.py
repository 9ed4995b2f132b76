"""A store of recovery claims and an examiner that do what the test says, and remember what they were asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.recovery.claims import (
    ApplyAnswer,
    ClaimState,
    ManualReason,
    Purpose,
    RecoveryApplied,
    RecoveryClaimed,
    RecoveryFenced,
    RecoveryScan,
    RecoverySettled,
    RecoveryStale,
    SettleRecoveryAnswer,
    SweepReport,
)
from runfacts.domain.recovery.evidence import Evidence
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.snapshots import Snapshot

Settled = tuple[str, str, int | str | None, bool]
"""Item, state, what goes with it (the wait, the reason), and whether it was counted as a failure."""


@dataclass
class Store:
    """A page of claims in memory. See ``RecoveryClaims``."""

    page: tuple[RecoveryClaimed, ...] = ()
    snapshots: Mapping[str, Snapshot | None] = field(default_factory=dict)
    """By item."""
    run_status_after: str = "lost"
    answers: dict[str, type[RecoveryStale | RecoveryFenced]] = field(default_factory=dict)
    """What applying to an item answers instead."""
    over: set[str] = field(default_factory=set)
    """Items whose settles are fenced."""
    fails: dict[str, BaseException] = field(default_factory=dict)
    """Methods that raise, by name, or by name and item with a slash between them."""
    swept: SweepReport = field(default_factory=lambda: SweepReport(0, 0))
    asked: list[tuple[Purpose, str, frozenset[tuple[str, str]], int | None, int | None]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    applied: list[tuple[str, str, EvidenceKind | None, str | None]] = field(default_factory=list)
    settles: list[Settled] = field(default_factory=list)
    given_back: list[str] = field(default_factory=list)

    def claim_recoveries(
        self,
        purpose: Purpose,
        *,
        owner: str,
        served: frozenset[tuple[str, str]],
        limit: int | None = None,
        lease_ms: int | None = None,
    ) -> tuple[RecoveryClaimed, ...]:
        """See ``RecoveryClaims``."""
        self._called("claim")
        self.asked.append((purpose, owner, served, limit, lease_ms))
        return self.page

    def give_back(self, claims: tuple[RecoveryClaimed, ...]) -> int:
        """See ``RecoveryClaims``."""
        self._called("give_back")
        self.given_back += [claim.key.item_id for claim in claims]
        return len(claims)

    def recovery_snapshot(self, claim: RecoveryClaimed) -> Snapshot | None:
        """See ``RecoveryClaims``."""
        self._called("snapshot", claim.key.item_id)
        return self.snapshots[claim.key.item_id]

    def apply_lost(
        self, claim: RecoveryClaimed, snapshot: Snapshot, evidence: EvidenceKind | None, provider_type: str | None
    ) -> ApplyAnswer:
        """See ``RecoveryClaims``."""
        return self._apply("lost", claim, snapshot, evidence, provider_type)

    def apply_stopped(
        self, claim: RecoveryClaimed, snapshot: Snapshot, evidence: EvidenceKind | None, provider_type: str | None
    ) -> ApplyAnswer:
        """See ``RecoveryClaims``."""
        return self._apply("stopped", claim, snapshot, evidence, provider_type)

    def apply_retry(self, claim: RecoveryClaimed, snapshot: Snapshot) -> ApplyAnswer:
        """See ``RecoveryClaims``."""
        return self._apply("retry", claim, snapshot, None, None)

    def settle_recovery(
        self,
        claim: RecoveryClaimed,
        *,
        retry_in_ms: int | None = None,
        manual: ManualReason | None = None,
        snapshot: Snapshot | None = None,
        failed: bool = False,
    ) -> SettleRecoveryAnswer:
        """See ``RecoveryClaims``."""
        item = claim.key.item_id
        self._called("settle", item)
        if snapshot is not None and self.answers.get(item) is RecoveryStale:
            return RecoveryStale(claim.key)
        assert retry_in_ms is None or manual is None
        assert retry_in_ms is None or retry_in_ms > 0
        state = ClaimState.RESOLVED if retry_in_ms is None else ClaimState.RETRY
        state = state if manual is None else ClaimState.MANUAL
        self.settles.append((item, state.value, retry_in_ms if manual is None else manual.value, failed))
        return RecoveryFenced(claim.key) if item in self.over else RecoverySettled(claim.key, state, claim.version + 1)

    def sweep_recoveries(self, *, limit: int | None = None) -> SweepReport:
        """See ``RecoveryClaims``."""
        assert limit is None
        self._called("sweep")
        return self.swept

    def scan_recoveries(self, served: frozenset[tuple[str, str]], *, limit: int) -> RecoveryScan:
        """See ``RecoveryClaims``."""
        del served, limit
        msg = "only the gate scans"
        raise AssertionError(msg)

    def _apply(
        self,
        what: str,
        claim: RecoveryClaimed,
        snapshot: Snapshot,
        evidence: EvidenceKind | None,
        provider_type: str | None,
    ) -> ApplyAnswer:
        item = claim.key.item_id
        self._called("apply", item)
        assert snapshot is self.snapshots[item]
        self.applied.append((item, what, evidence, provider_type))
        refused = self.answers.get(item)
        return RecoveryApplied(claim.key, self.run_status_after, 9) if refused is None else refused(claim.key)

    def _called(self, method: str, item: str | None = None) -> None:
        name = method if item is None else f"{method}/{item}"
        self.calls.append(name)
        for key in (method, name):
            if key in self.fails:
                raise self.fails[key]


@dataclass
class Looker:
    """An examiner that finds what the test says. See ``Examiner``."""

    finding: Finding = field(default_factory=lambda: Finding(Evidence.not_running()))
    receipt: bool = False
    records: bool = True
    """Whether recording a receipt ends the Attempt."""
    worst_ms: int = 5_000
    looks: Callable[[Snapshot], None] = lambda _: None
    """Called while it looks."""
    asked: list[str] = field(default_factory=list)

    def worst_case_ms(self, executor_type: str) -> int:
        """See ``Examiner``."""
        return self.worst_ms if executor_type == "batch" else 0

    def has_receipt(self, snapshot: Snapshot, *, foreign: bool) -> bool:
        """See ``Examiner``."""
        assert snapshot.attempt_id is not None
        self.asked.append(f"receipt{' afar' if foreign else ''}")
        return self.receipt

    def examine(self, snapshot: Snapshot, *, foreign: bool) -> Finding:
        """See ``Examiner``."""
        self.asked.append(f"finding{' afar' if foreign else ''}")
        self.looks(snapshot)
        return self.finding

    def record_receipt(self, snapshot: Snapshot) -> bool:
        """See ``Examiner``."""
        assert snapshot.attempt_id is not None
        self.asked.append("record")
        return self.records

"""A store of recovery claims over the real histories of a world in memory. See ``RecoveryClaims``.

It keeps the promises of the port in the plainest way. Every method is one step: a worker may die before or after it.
"""

from __future__ import annotations

from collections.abc import Callable

from recovery_world import SERVED, SETTINGS, Dispatch, Execution, Row, World, a_step
from runfacts.domain.decisions import Decision
from runfacts.domain.history import History
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.recovery import lost
from runfacts.domain.recovery.claims import (
    ApplyAnswer,
    ClaimState,
    ItemKind,
    ManualReason,
    Purpose,
    RecoveryApplied,
    RecoveryClaimed,
    RecoveryFenced,
    RecoveryKey,
    RecoveryScan,
    RecoverySettled,
    RecoveryStale,
    SettleRecoveryAnswer,
    SweepReport,
)
from runfacts.domain.recovery.snapshots import ExecutionSnapshot, Snapshot
from runfacts.domain.recovery.stopping import stop_candidate_in_ms


class Model(World):
    """Everything, and the store of it. See ``RecoveryClaims``."""

    @a_step
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
        assert served == SERVED
        page: list[RecoveryClaimed] = []
        for key, history in self._items(purpose):
            row = self.rows.setdefault(key, Row())
            if self._takes(row, key, history) and len(page) < (limit or 16):
                expired = row.state is ClaimState.CLAIMED
                row.failures += expired
                row.state, row.version, row.token = ClaimState.CLAIMED, row.version + 1, f"token-{next(self.ids)}"
                row.expires_at_ms = self.now_ms + (lease_ms or SETTINGS.recovery_lease_ms)
                page.append(self._claimed(key, history, row, owner))
        return tuple(page)

    @a_step
    def give_back(self, claims: tuple[RecoveryClaimed, ...]) -> int:
        """See ``RecoveryClaims``."""
        ours = [row for claim in claims if (row := self._ours(claim)) is not None]
        for row in ours:
            row.state, row.version = ClaimState.AVAILABLE, row.version + 1
        return len(ours)

    @a_step
    def recovery_snapshot(self, claim: RecoveryClaimed) -> Snapshot:
        """See ``RecoveryClaims``."""
        return self._seen_by(claim)

    @a_step
    def apply_lost(
        self, claim: RecoveryClaimed, snapshot: Snapshot, evidence: EvidenceKind | None, provider_type: str | None
    ) -> ApplyAnswer:
        """See ``RecoveryClaims``."""
        attempt_id = snapshot.attempt_id or ""
        return self._apply(claim, snapshot, lambda it: lost.lost(it, attempt_id, evidence, provider_type))

    @a_step
    def apply_stopped(
        self, claim: RecoveryClaimed, snapshot: Snapshot, evidence: EvidenceKind | None, provider_type: str | None
    ) -> ApplyAnswer:
        """See ``RecoveryClaims``."""
        return self._apply(claim, snapshot, lambda it: lost.stopped(it, evidence, provider_type))

    @a_step
    def apply_retry(self, claim: RecoveryClaimed, snapshot: Snapshot) -> ApplyAnswer:
        """See ``RecoveryClaims``."""
        if snapshot.run_status is RunStatus.LOST:
            return self._apply(claim, snapshot, lambda it: lost.retry_lost(it, self.now_ms))
        return self._apply(claim, snapshot, lambda it: lost.requeue(it, self.now_ms, group_gone=True))

    @a_step
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
        row = self._ours(claim)
        if row is None:
            return RecoveryFenced(claim.key)
        if snapshot is not None and snapshot != self._seen_by(claim):
            return RecoveryStale(claim.key)
        row.version += 1
        row.failures = row.failures + 1 if failed else 0
        if manual is not None:
            row.state, row.seen = ClaimState.MANUAL, self._seen(claim.key, self.histories[claim.run_id])
        elif retry_in_ms is not None:
            row.state, row.next_at_ms, row.delays = ClaimState.RETRY, self.now_ms + retry_in_ms, row.delays + 1
        else:
            row.state = ClaimState.RESOLVED
        return RecoverySettled(claim.key, row.state, row.version)

    @a_step
    def sweep_recoveries(self, *, limit: int | None = None) -> SweepReport:
        """See ``RecoveryClaims``."""
        assert limit is None
        candidates = {key for purpose in Purpose for key, _ in self._items(purpose, at_once=False)}
        swept = [
            row
            for key, row in self.rows.items()
            if key not in candidates
            and row.state is not ClaimState.RESOLVED
            and (row.state is not ClaimState.CLAIMED or self.now_ms >= row.expires_at_ms)
        ]
        for row in swept:
            row.state, row.version = ClaimState.RESOLVED, row.version + 1
        return SweepReport(len(swept), 0)

    def scan_recoveries(self, served: frozenset[tuple[str, str]], *, limit: int) -> RecoveryScan:
        """See ``RecoveryClaims``."""
        del served, limit
        msg = "only the gate scans"
        raise AssertionError(msg)

    def snapshot(self, history: History, attempt_id: str | None) -> Snapshot:
        """Read a Run and one Attempt of it, or its latest."""
        run, latest = history.run, history.latest_attempt
        attempt = latest if attempt_id is None else history.attempts[attempt_id]
        execution = None if attempt is None else self.executions[attempt.id]
        dispatch = self.dispatches.get(run.id, Dispatch())
        return Snapshot(
            run_id=run.id,
            run_status=run.status,
            run_version=history.version,
            execution_owner=run.execution_owner,
            intent_kind=None if run.intent is None else run.intent.kind,
            intent_at_ms=None if run.intent is None else run.intent.requested_at_ms,
            retry_due_at_ms=run.retry_due_at_ms,
            group_left=run.group_left,
            policy=run.policy,
            unknown_types=False,
            attempt_id=None if attempt is None else attempt.id,
            attempt_number=None if attempt is None else attempt.number,
            attempt_status=None if attempt is None else attempt.status,
            execution=None if execution is None else _seen_of(execution),
            now_ms=self.now_ms,
            lease_valid=execution is not None and self.now_ms < execution.lease_expires_at_ms,
            dispatch_finished_at_ms=dispatch.finished_at_ms,
            dispatch_leased=dispatch.finished_at_ms is None and self.now_ms < dispatch.leased_until_ms,
            attempt_latest=attempt is latest,
        )

    def _items(self, purpose: Purpose, *, at_once: bool = True) -> list[tuple[RecoveryKey, History]]:
        """List candidates; without ``at_once`` also what is none yet and may become one by time alone."""
        found = []
        for run_id, history in self.histories.items():
            run, attempt = history.run, history.active_attempt
            if purpose is Purpose.RECOVERY:
                if attempt is not None and run.intent is None and self._expired(attempt.id):
                    found.append((RecoveryKey(purpose, ItemKind.ATTEMPT, attempt.id), history))
            elif purpose is Purpose.STOP:
                if run.intent is not None and not run.terminal and not (at_once and self._too_soon(history)):
                    found.append((RecoveryKey(purpose, ItemKind.RUN, run_id), history))
            elif run.status in {RunStatus.LOST, RunStatus.RETRY_WAIT} and not (
                at_once and self.now_ms < (run.retry_due_at_ms or 0)
            ):
                found.append((RecoveryKey(purpose, ItemKind.RUN, run_id), history))
        return found

    def _expired(self, attempt_id: str) -> bool:
        return self.now_ms >= self.executions[attempt_id].lease_expires_at_ms

    def _too_soon(self, history: History) -> bool:
        if history.active_attempt is None:
            return False
        grace_ms = SETTINGS.stop_report_grace_ms
        return stop_candidate_in_ms(self.snapshot(history, None), grace_ms=grace_ms) is not None

    def _takes(self, row: Row, key: RecoveryKey, history: History) -> bool:
        if row.state is ClaimState.MANUAL and row.seen != self._seen(key, history):
            row.state = ClaimState.AVAILABLE
        if row.state is ClaimState.RESOLVED:
            row.state, row.delays, row.failures = ClaimState.AVAILABLE, 0, 0
        return (
            row.state is ClaimState.AVAILABLE
            or (row.state is ClaimState.RETRY and self.now_ms >= row.next_at_ms)
            or (row.state is ClaimState.CLAIMED and self.now_ms >= row.expires_at_ms)
        )

    def _seen(self, key: RecoveryKey, history: History) -> object:
        seen = self.snapshot(history, key.item_id if key.kind is ItemKind.ATTEMPT else None)
        lease = None if seen.execution is None else seen.execution.lease_expires_at_ms
        return seen.run_status, seen.attempt_status, lease, seen.intent_kind

    def _seen_by(self, claim: RecoveryClaimed) -> Snapshot:
        attempt_id = claim.key.item_id if claim.key.kind is ItemKind.ATTEMPT else None
        return self.snapshot(self.histories[claim.run_id], attempt_id)

    def _claimed(self, key: RecoveryKey, history: History, row: Row, owner: str) -> RecoveryClaimed:
        attempt = history.latest_attempt
        return RecoveryClaimed(
            key,
            history.run_id,
            None if attempt is None else attempt.id,
            "local",
            "here",
            owner,
            row.version,
            row.expires_at_ms,
            row.delays,
            row.failures,
            foreign=False,
            token=row.token,
        )

    def _ours(self, claim: RecoveryClaimed) -> Row | None:
        row = self.rows[claim.key]
        ours = row.state is ClaimState.CLAIMED and (row.version, row.token) == (claim.version, claim.token)
        return row if ours and self.now_ms < row.expires_at_ms else None

    def _apply(self, claim: RecoveryClaimed, snapshot: Snapshot, decide: Callable[[History], Decision]) -> ApplyAnswer:
        if self._ours(claim) is None:
            return RecoveryFenced(claim.key)
        history = self.histories[claim.run_id]
        if self.recovery_snapshot(claim) != snapshot or not self.record(history, decide(history)).drafts:
            return RecoveryStale(claim.key)
        return RecoveryApplied(claim.key, history.run.status.value, history.version)


def _seen_of(execution: Execution) -> ExecutionSnapshot:
    return ExecutionSnapshot(
        "local",
        execution.gated,
        "here",
        "host",
        execution.handle,
        7,
        "digest",
        execution.lease_expires_at_ms,
        1,
        None,
        "receipts",
        execution.seen_at_ms,
    )

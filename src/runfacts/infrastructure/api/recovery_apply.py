"""
What the evidence allows, recorded under a term (R11.5, R11.6, R12.1, R12.2).

Each of the three mutations is one transaction. First the term: whoever holds none any more is fenced before the Run
is read. Then everything that the snapshot has is read again and compared; what was proven was proven of exactly this.
Then the compare-and-set and the facts, with the term's row held by the same write. The row itself stays claimed: its
holder settles it afterwards, and a crash in between leaves a term that expires and finds its work done (R11.7).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import bindparam, update

from runfacts.domain.actors import Actor, ActorType
from runfacts.domain.decisions import Decision
from runfacts.domain.history import History
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.recovery import lost
from runfacts.domain.recovery.claims import (
    ApplyAnswer,
    RecoveryApplied,
    RecoveryClaimed,
    RecoveryFenced,
    RecoveryStale,
)
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.infrastructure.api.claim_changes import closing, end_of_cancellation
from runfacts.infrastructure.api.core import LedgerCore
from runfacts.infrastructure.commands import Command, Moment, Plan
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions
from runfacts.infrastructure.database.transactions import Change, Reading
from runfacts.infrastructure.stores import dispatches, recovery_rows
from runfacts.infrastructure.stores import recovery_claims as store
from runfacts.infrastructure.stores.facts import read_history
from runfacts.infrastructure.stores.recovery_snapshots import attempt_of, snapshot_of
from runfacts.infrastructure.stores.recovery_targets import Moments

FENCE_COUNTER: Final = "recovery_term"
"""What a refused term is counted as (R7.7)."""

CLOSE_PROVEN: Final = Statement(
    "close_proven_execution",
    update(executions)
    .values(closed_at_ms=bindparam("closed_at_ms"), recover_at_ms=None)
    .where(
        executions.c.attempt_id == bindparam("key_attempt_id"),
        executions.c.closed_at_ms.is_(None),
        # What was proven of it, and what a renewal or a report would change (R11.6).
        executions.c.lease_token_digest == bindparam("expected_token_digest"),
        executions.c.lease_expires_at_ms == bindparam("expected_expiry_ms"),
        executions.c.callback_sequence == bindparam("expected_sequence"),
    ),
)

_Decide = Callable[[Moment, History], tuple[Decision, tuple[Change, ...], tuple[Change, ...]]]
"""Gives what to record, and the changes before and after the term's row is held (R4.4)."""


class RecoveryApply(LedgerCore):
    """Record what recovery found out."""

    def recovery_snapshot(self, claim: RecoveryClaimed) -> Snapshot | None:
        """See ``RecoveryClaims``."""
        with self._database.snapshot() as reading:
            history = read_history(reading, claim.run_id)
            if history is None:
                return None
            return snapshot_of(reading, history, attempt_of(claim, history), reading.now_ms())

    def apply_lost(
        self, claim: RecoveryClaimed, snapshot: Snapshot, evidence: EvidenceKind | None, provider_type: str | None
    ) -> ApplyAnswer:
        """See ``RecoveryClaims``. The Run's retry may be claimed at once."""

        def decide(moment: Moment, history: History) -> tuple[Decision, tuple[Change, ...], tuple[Change, ...]]:
            attempt_id = snapshot.attempt_id
            if attempt_id is None:
                return Decision(), (), ()
            decision = lost.lost(history, attempt_id, evidence, provider_type)
            executor_type = history.attempts[attempt_id].executor_type
            place = recovery_rows.Placed(history.run_id, attempt_id, executor_type, "")
            retry = recovery_rows.to_be_retried(place, moment.now_ms, moment.now_ms)
            return decision, (), (retry, *_closed(moment, history, snapshot))

        return self._apply(claim, snapshot, decide)

    def apply_stopped(
        self, claim: RecoveryClaimed, snapshot: Snapshot, evidence: EvidenceKind | None, provider_type: str | None
    ) -> ApplyAnswer:
        """See ``RecoveryClaims``."""

        def decide(moment: Moment, history: History) -> tuple[Decision, tuple[Change, ...], tuple[Change, ...]]:
            decision = lost.stopped(history, evidence, provider_type)
            stored = dispatches.read_dispatch(moment.reading, history.run_id)
            delivery = () if stored is None else (dispatches.ended(stored.dispatch),)
            return decision, delivery, _closed(moment, history, snapshot)

        return self._apply(claim, snapshot, decide)

    def apply_retry(self, claim: RecoveryClaimed, snapshot: Snapshot) -> ApplyAnswer:
        """See ``RecoveryClaims``.

        Whoever holds the term has proven the group gone, where the Attempt before had left members behind (R12.1).
        """

        def decide(moment: Moment, history: History) -> tuple[Decision, tuple[Change, ...], tuple[Change, ...]]:
            if history.run.status is RunStatus.LOST:
                decision = lost.retry_lost(history, moment.now_ms)
            else:
                decision = lost.requeue(history, moment.now_ms, group_gone=True)
            return decision, end_of_cancellation(moment, history), ()

        return self._apply(claim, snapshot, decide)

    def _apply(self, claim: RecoveryClaimed, snapshot: Snapshot, decide_on: _Decide) -> ApplyAnswer:
        """Run one of the three mutations.

        Raises ``RunNotFound``, ``LegacyRun``, ``UnknownFactsInRun``, ``Contended`` and ``OutcomeUnknown``.
        """
        call = self._call(claim.run_id, Actor(ActorType.RECONCILER, claim.owner))

        def decide(moment: Moment, history: History) -> Plan[ApplyAnswer]:
            if seen_now(claim, moment, history) != snapshot:
                return Plan(lambda _, __: RecoveryStale(claim.key))
            decision, before, after = decide_on(moment, history)
            if not decision.drafts:
                return Plan(lambda _, __: RecoveryStale(claim.key))
            changes = (*before, store.fence(claim, moment.reading), *after)
            return Plan(
                lambda history, _: RecoveryApplied(claim.key, history.run.status.value, history.version),
                decision.drafts,
                changes,
            )

        answer = self._commands.run(call, Command(decide, fence=self._fence(claim)))
        if isinstance(answer, RecoveryFenced):
            self._count_refused(FENCE_COUNTER, claim.attempt_id or claim.run_id)
        return answer

    def _fence(self, claim: RecoveryClaimed) -> Callable[[Reading], RecoveryFenced | None]:
        """Look whether a term is over."""

        def fence(reading: Reading) -> RecoveryFenced | None:
            row = store.read_claim(reading, claim.key)
            held = row is not None and row.is_term(claim, Moments.of(reading))
            return None if held else RecoveryFenced(claim.key)

        return fence


def seen_now(claim: RecoveryClaimed, moment: Moment, history: History) -> Snapshot:
    """Take a claim's snapshot anew, within the transaction that was allowed by the first."""
    return snapshot_of(moment.reading, history, attempt_of(claim, history), moment.now_ms)


def _closed(moment: Moment, history: History, snapshot: Snapshot) -> tuple[Change, ...]:
    """Close the execution of an Attempt that ends now; none where it has ended before."""
    attempt = history.active_attempt
    execution = snapshot.execution
    if attempt is None or execution is None or attempt.id != snapshot.attempt_id:
        return ()
    key: dict[str, str | int] = {
        "key_attempt_id": attempt.id,
        "expected_token_digest": execution.lease_token_digest,
        "expected_expiry_ms": execution.lease_expires_at_ms,
        "expected_sequence": execution.callback_sequence,
    }
    return (Change(CLOSE_PROVEN, key | closing(moment, history)),)

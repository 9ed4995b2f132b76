"""
Ending a term (R11.7): settled by its holder, given back unused, or left over and swept.

The sweep also lets workers look again at what waits for an operator and is not what it was: its index of what is due
has none of these.

A term that is settled ``resolved`` leaves its row as its target stands now: resolved where nothing is left to find
out, available from the time on at which somebody should look again. So a retry that was decided waits for its due
time, and a mutation whose holder died before it settled is found done by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

from runfacts.domain.actors import Actor, ActorType
from runfacts.domain.errors import Contended, InvalidValue, OutcomeUnknown
from runfacts.domain.history import Draft, History
from runfacts.domain.lifecycle import ExecutionOwner, RunStatus
from runfacts.domain.limits import Settings
from runfacts.domain.payloads import RunRecoveryManual
from runfacts.domain.recovery.claims import (
    PAGE_MAX,
    ClaimState,
    ItemKind,
    ManualReason,
    Purpose,
    RecoveryClaimed,
    RecoveryFenced,
    RecoverySettled,
    RecoveryStale,
    SettleRecoveryAnswer,
    SweepReport,
)
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.infrastructure.api.recovery_apply import FENCE_COUNTER, RecoveryApply, seen_now
from runfacts.infrastructure.commands import Command, Moment, Plan
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.forks import ForkedLock
from runfacts.infrastructure.database.transactions import Change, Reading, Transaction, hit_one
from runfacts.infrastructure.stores import recovery_claims as store
from runfacts.infrastructure.stores.recovery_claims import ClaimRow
from runfacts.infrastructure.stores.recovery_sweep import Place, left_over
from runfacts.infrastructure.stores.recovery_targets import Moments, Target, read_targets

Answer = TypeVar("Answer")


@dataclass(slots=True)
class SweepPlace:
    """Where the sweep goes on, so that it gets round."""

    lock: ForkedLock = field(default_factory=ForkedLock)
    place: Place = field(default_factory=Place)


class RecoverySettle(RecoveryApply):
    """End terms."""

    _sweep: SweepPlace

    def give_back(self, claims: Sequence[RecoveryClaimed]) -> int:
        """See ``RecoveryClaims``."""
        ordered = sorted(claims, key=lambda claim: (claim.key.purpose, claim.key.kind, claim.key.item_id))

        def give(transaction: Transaction) -> int:
            moments = Moments.of(transaction)
            ours = 0
            for claim in ordered:
                row = store.lock_claim(transaction, claim.key)
                if row is None or not row.is_term(claim, moments):
                    continue
                # A foreign one has waited as long as it must (R8.2).
                waited_ms = self._settings.unserved_after_ms if claim.foreign else 0
                due_at_ms = max(0, moments.now_ms - waited_ms)
                target = _target(transaction, row)
                recover_at_ms = due_at_ms if target is not None and target.recoverable else None
                columns = store.given_back(row, due_at_ms)
                ending = store.ended(row, claim, transaction, columns, moments.now_ms)
                ours += _end(transaction, ending, _moves(claim, target, recover_at_ms))
            return ours

        def recorded() -> int | None:
            with self._database.reading() as reading:
                rows = [(claim, store.read_claim(reading, claim.key)) for claim in ordered]
            given = [row for claim, row in rows if row is not None and row.version == claim.version + 1]
            return sum(row.state == ClaimState.AVAILABLE for row in given) or None

        return self._again(give, recorded) if ordered else 0

    def settle_recovery(
        self,
        claim: RecoveryClaimed,
        *,
        retry_in_ms: int | None = None,
        manual: ManualReason | None = None,
        snapshot: Snapshot | None = None,
        failed: bool = False,
    ) -> SettleRecoveryAnswer:
        """See ``RecoveryClaims``.

        ``resolved`` leaves a row whose target is to be looked at again, such as a retry that waits, available from
        that time on. Raises ``Contended`` and ``OutcomeUnknown``.
        """
        if retry_in_ms is not None and manual is not None:
            raise InvalidValue("retry_in_ms", "is given beside manual")
        if retry_in_ms is not None:
            _, _, longest = Settings.bounds()["recovery_delay_max_ms"]
            if type(retry_in_ms) is not int or not 0 <= retry_in_ms <= longest:
                raise InvalidValue("retry_in_ms", f"is not a whole number between 0 and {longest}")
        if manual is None:
            answer = self._settled(claim, retry_in_ms, failed=failed)
        else:
            answer = self._settled_manual(claim, ManualReason(manual), snapshot, failed=failed)
        if isinstance(answer, RecoveryFenced):
            self._count_refused(FENCE_COUNTER, claim.attempt_id or claim.run_id)
        return answer

    def sweep_recoveries(self, *, limit: int | None = None) -> SweepReport:
        """See ``RecoveryClaims``."""
        limit = PAGE_MAX if limit is None else min(max(1, limit), PAGE_MAX)
        with self._sweep.lock:
            place = self._sweep.place
            with self._database.reading() as reading:
                rows, place = left_over(reading, place, limit)
                moments = Moments.of(reading)
                targets = _targets(reading, rows)
                # Looked at first, so that nothing is locked where nothing is left over.
                found = [row for row in rows if self._needs_a_sweep(row, targets.get(_item(row)), moments)]
            self._sweep.place = place
        if not found:
            return SweepReport(0, 0)
        return self._again(lambda transaction: self._swept(transaction, found), lambda: None)

    def _swept(self, transaction: Transaction, found: list[ClaimRow]) -> SweepReport:
        moments = Moments.of(transaction)
        swept = oldest_ms = 0
        for purpose, kind in sorted({(row.key.purpose, row.key.kind) for row in found}):
            items = [row.item_id for row in found if (row.key.purpose, row.key.kind) == (purpose, kind)]
            rows = store.lock_claims(transaction, purpose, kind, items)
            targets = read_targets(transaction, kind, rows)
            for item_id, row in sorted(rows.items()):
                target = targets.get(item_id)
                over = self._is_over(row, target, moments)
                if not over and not _is_another_matter(row, target):
                    continue
                due_at_ms = None if over or target is None else self._standing(row, target, moments)
                hit_one(transaction, store.moved(row, due_at_ms, moments.now_ms))
                if target is not None and kind is ItemKind.ATTEMPT:
                    hit_one(transaction, store.moved_execution(item_id, target, due_at_ms or _recover_at(target)))
                if over and target is not None:
                    oldest_ms = max(oldest_ms, moments.now_ms - target.updated_at_ms)
                swept += over
        return SweepReport(swept, oldest_ms)

    def _needs_a_sweep(self, row: ClaimRow, target: Target | None, moments: Moments) -> bool:
        return self._is_over(row, target, moments) or _is_another_matter(row, target)

    def _is_over(self, row: ClaimRow, target: Target | None, moments: Moments) -> bool:
        """Whether a row is left over: its target is no candidate of that purpose, and nobody looks at it now."""
        if row.state == ClaimState.RESOLVED or row.held(moments):
            return False
        if target is None:
            return True
        standing = self._standing(row, target, moments)
        if row.key.purpose is Purpose.RECOVERY:
            return standing is None or standing > moments.now_ms
        return standing is None

    def _standing(self, row: ClaimRow, target: Target, moments: Moments) -> int | None:
        return target.standing(row.key.purpose, row.key.kind, moments, self._settings)

    def _settled(self, claim: RecoveryClaimed, retry_in_ms: int | None, *, failed: bool) -> SettleRecoveryAnswer:
        def settle(transaction: Transaction) -> SettleRecoveryAnswer:
            moments = Moments.of(transaction)
            row = store.lock_claim(transaction, claim.key)
            if row is None or not row.is_term(claim, moments):
                return RecoveryFenced(claim.key)
            target = _target(transaction, row)
            next_at_ms = None if retry_in_ms is None else moments.now_ms + retry_in_ms
            if next_at_ms is not None:
                columns = store.waiting(row, next_at_ms, failed=failed)
                recover_at_ms = next_at_ms if target is not None and target.recoverable else None
            else:
                columns = store.resting(row, self._next_look(claim, target, moments))
                recover_at_ms = None if target is None else _recover_at(target)
            ending = store.ended(row, claim, transaction, columns, moments.now_ms)
            if not _end(transaction, ending, _moves(claim, target, recover_at_ms)):
                return RecoveryFenced(claim.key)
            return RecoverySettled(claim.key, ClaimState(columns["state"]), claim.version + 1, next_at_ms)

        def recorded() -> SettleRecoveryAnswer | None:
            with self._database.reading() as reading:
                row = store.read_claim(reading, claim.key)
            wanted = {ClaimState.RETRY} if retry_in_ms is not None else {ClaimState.RESOLVED, ClaimState.AVAILABLE}
            # The next version of what was this term's, and as it was to be.
            if row is None or row.version != claim.version + 1 or row.state not in wanted:
                return None
            return RecoverySettled(claim.key, ClaimState(row.state), row.version, row.next_claim_at_ms)

        return self._again(settle, recorded)

    def _next_look(self, claim: RecoveryClaimed, target: Target | None, moments: Moments) -> int | None:
        """From when on somebody should look again at what was settled ``resolved``; None: no more."""
        if target is None or claim.key.purpose is Purpose.RECOVERY:
            # An Attempt is found by its execution, a Run by its row in ``runs``.
            return None
        standing = target.standing(claim.key.purpose, claim.key.kind, moments, self._settings)
        if standing is None or target.run_status == RunStatus.RETRY_WAIT:
            return standing
        # Whoever settles it so without having changed anything must not come back at once.
        return max(standing, moments.now_ms + self._settings.recovery_delay_ms)

    def _settled_manual(
        self, claim: RecoveryClaimed, reason: ManualReason, snapshot: Snapshot | None, *, failed: bool
    ) -> SettleRecoveryAnswer:
        call = self._call(claim.run_id, Actor(ActorType.RECONCILER, claim.owner))

        def decide(moment: Moment, history: History) -> Plan[SettleRecoveryAnswer]:
            row = store.read_claim(moment.reading, claim.key)
            target = None if row is None else _target(moment.reading, row)
            if row is None or target is None or not row.is_term(claim, Moments.of(moment.reading, moment.now_ms)):
                raise LostRace(store.END_RECOVERY_TERM.name)
            if snapshot is not None and snapshot != seen_now(claim, moment, history):
                return Plan(lambda _, __: RecoveryStale(claim.key))
            columns = store.manual(row, reason.value, target.seen, failed=failed)
            changes = [store.ended(row, claim, moment.reading, columns, moment.now_ms)]
            if claim.key.kind is ItemKind.ATTEMPT:
                changes.append(store.moved_execution(claim.key.item_id, target, None))
            answer = RecoverySettled(claim.key, ClaimState.MANUAL, claim.version + 1)
            return Plan(lambda _, __: answer, _manual(history, claim, reason, target), tuple(changes))

        command = Command(decide, fence=self._fence(claim))
        return self._commands.run(call, command)

    def _again(self, act: Callable[[Transaction], Answer], recorded: Callable[[], Answer | None]) -> Answer:
        """Run a transaction of claims alone, anew after a lost race, looked up after a broken commit (R4.3, R4.6)."""
        tries = self._settings.decide_retries + 1
        unanswered: OutcomeUnknown | None = None
        for _ in range(tries):
            try:
                with self._database.transaction() as transaction:
                    answer = act(transaction)
            except LostRace:
                continue
            except OutcomeUnknown as error:
                unanswered = error
                found = recorded()
                if found is not None:
                    return found
                continue
            return answer
        raise unanswered or Contended("recovery", tries)


def _end(transaction: Transaction, ending: Change, moves: tuple[Change, ...]) -> bool:
    """End a term, and say in its execution when recovery looks next; whether the term lasted."""
    if transaction.run(ending.statement, ending.parameters) != 1:
        return False
    for move in moves:
        hit_one(transaction, move)
    return True


def _moves(claim: RecoveryClaimed, target: Target | None, recover_at_ms: int | None) -> tuple[Change, ...]:
    if target is None or claim.key.kind is not ItemKind.ATTEMPT:
        return ()
    return (store.moved_execution(claim.key.item_id, target, recover_at_ms),)


def _target(reading: Reading, row: ClaimRow) -> Target | None:
    return read_targets(reading, row.key.kind, [row.item_id]).get(row.item_id)


def _item(row: ClaimRow) -> tuple[ItemKind, str]:
    return row.key.kind, row.item_id


def _targets(reading: Reading, rows: list[ClaimRow]) -> dict[tuple[ItemKind, str], Target]:
    """Read what many rows are about, at once."""
    found: dict[tuple[ItemKind, str], Target] = {}
    for kind in ItemKind:
        items = {row.item_id for row in rows if row.key.kind is kind}
        found |= {(kind, item_id): target for item_id, target in read_targets(reading, kind, sorted(items)).items()}
    return found


def _is_another_matter(row: ClaimRow, target: Target | None) -> bool:
    """Whether an operator's item is not what it was when it became one, so that workers look again (R11.2)."""
    return row.state == ClaimState.MANUAL and target is not None and row.seen != target.seen


def _recover_at(target: Target) -> int | None:
    """When recovery looks next at an Attempt whose row is resolved: when its lease ends, if it is recovery's at all."""
    return target.lease_expires_at_ms if target.recoverable else None


def _manual(history: History, claim: RecoveryClaimed, reason: ManualReason, target: Target) -> tuple[Draft, ...]:
    """Record a verdict that an operator must give, once for what was seen (R11.10)."""
    if history.run.execution_owner is not ExecutionOwner.RUNTIME or history.unknown_types:
        # Nothing is recorded on what another system executes, or a later release (R2.10, R3.7).
        return ()
    key = manual_key(claim.key.purpose, claim.key.item_id, target.seen)
    if history.recorded_with(key) is not None:
        return ()
    payload = RunRecoveryManual(purpose=claim.key.purpose.value, reason=reason.value)
    return (Draft(payload, target.attempt_id, key),)


def manual_key(purpose: Purpose, item_id: str, seen: str) -> str:
    """The dedupe key of a manual verdict: once for each thing that was seen (R11.10)."""
    return f"recovery-manual:{purpose.value}:{item_id}:{sha256(seen.encode()).hexdigest()[:16]}"

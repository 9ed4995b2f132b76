"""
The examiner of Attempts: the registry of evidence providers, with the receipts of the local executor (R10.2, R11.3).

What it says is about exactly the Attempt of a snapshot, and made of what was recorded there. One look has one time
limit, however often a provider is asked within it. In a foreign scope (R8.2) no file is opened: a provider is asked,
and proves what can be proven from anywhere on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from runfacts.domain.actors import Actor
from runfacts.domain.errors import InvalidSetting
from runfacts.domain.recovery.evidence import Evidence, EvidenceProvider, EvidenceTarget, Unknown
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.infrastructure.evidence import EVIDENCE_MARGIN_MS, Answered, EvidenceRegistry

if TYPE_CHECKING:
    from runfacts.infrastructure.ledger import Ledger

_UNVERIFIABLE: Final = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
_UNAVAILABLE: Final = Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)

Probe = Callable[[], Evidence]
"""Asks the provider of one target, within the time that is left."""


class Receipts(Protocol):
    """Completion receipts that can be looked at from here. Errors of the disk (``OSError``) and the ledger go up."""

    def are_ours(self, target: EvidenceTarget) -> bool:
        """Tell whether the target's executor leaves receipts, and in this scope."""
        ...

    def has(self, target: EvidenceTarget, path: str) -> bool:
        """Tell whether a receipt lies at ``path`` that can be believed; one that cannot is set aside."""
        ...

    def examine(self, target: EvidenceTarget, path: str, probe: Probe) -> Finding:
        """Look for a receipt, probe, and look again under the keeper's lock."""
        ...

    def record(self, target: EvidenceTarget, path: str, probe: Probe) -> bool:
        """Record the end that the receipt tells of, with an intent only on proof; tell whether the Attempt is over."""
        ...


class AttemptExaminer:
    """Finds out about Attempts. See ``Examiner``. Thread-safe."""

    def __init__(self, registry: EvidenceRegistry, receipts: Receipts | None = None, *, lease_ms: int) -> None:
        """Use ``receipts`` where the local executor's can be looked at.

        ``lease_ms`` is how long the claims last under which it looks: a look that leaves no margin is refused
        (``InvalidSetting``, R11.3).
        """
        if registry.timeout_ms > lease_ms - EVIDENCE_MARGIN_MS:
            raise InvalidSetting(
                "evidence_timeout_ms", f"is not {EVIDENCE_MARGIN_MS} ms shorter than recovery_lease_ms"
            )
        self._registry = registry
        self._receipts = receipts

    def worst_case_ms(self, executor_type: str) -> int:
        """See ``Examiner``: the time limit; without a provider nobody is waited for."""
        return self._registry.timeout_ms if executor_type in self._registry.executor_types else 0

    def has_receipt(self, snapshot: Snapshot, *, foreign: bool) -> bool:
        """See ``Examiner``."""
        target = target_of(snapshot)
        place = self._place(snapshot, target, foreign=foreign)
        return target is not None and place is not None and place.receipts.has(target, place.path)

    def examine(self, snapshot: Snapshot, *, foreign: bool) -> Finding:
        """See ``Examiner``. Where there is no Attempt nothing can be proven."""
        target = target_of(snapshot)
        if target is None:
            return Finding(_UNVERIFIABLE)
        probe = self._probe(target)
        place = self._place(snapshot, target, foreign=foreign)
        return Finding(probe()) if place is None else place.receipts.examine(target, place.path, probe)

    def record_receipt(self, snapshot: Snapshot) -> bool:
        """See ``Examiner``. An end that was recorded before, or otherwise, is one, too."""
        target = target_of(snapshot)
        place = self._place(snapshot, target, foreign=False)
        if target is None or place is None:
            return False
        return place.receipts.record(target, place.path, self._probe(target))

    def _place(self, snapshot: Snapshot, target: EvidenceTarget | None, *, foreign: bool) -> _Place | None:
        """Give where the Attempt's keeper leaves its receipt, if it has one and its files may be opened here."""
        if target is None or snapshot.execution is None or self._receipts is None:
            return None
        path = snapshot.execution.receipt_path
        if path is None or foreign or not self._receipts.are_ours(target):
            return None
        return _Place(self._receipts, path)

    def _probe(self, target: EvidenceTarget) -> Probe:
        deadline_s = time.monotonic() + self._registry.timeout_ms / 1_000

        def probe() -> Evidence:
            left_ms = int((deadline_s - time.monotonic()) * 1_000)
            return self._registry.inspect(target, within_ms=left_ms) if left_ms > 0 else _UNAVAILABLE

        return probe


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a receipt is to be looked for, and by whom."""

    receipts: Receipts
    path: str


def target_of(snapshot: Snapshot) -> EvidenceTarget | None:
    """Give what a provider is asked about; None where there is no Attempt, or none that was executed."""
    execution = snapshot.execution
    if snapshot.attempt_id is None or snapshot.attempt_status is None or execution is None:
        return None
    return EvidenceTarget(
        run_id=snapshot.run_id,
        attempt_id=snapshot.attempt_id,
        attempt_status=snapshot.attempt_status,
        executor_type=execution.executor_type,
        scope=execution.scope,
        worker_id=execution.worker_id,
        handle=execution.handle,
        pid=execution.pid,
        lease_expires_at_ms=execution.lease_expires_at_ms,
        last_seen_at_ms=execution.seen_at_ms,
    )


def examiner_of(
    ledger: Ledger,
    providers: Iterable[EvidenceProvider] = (),
    *,
    actor: Actor,
    local: bool = True,
    on_answer: Callable[[Answered], None] = lambda _: None,
) -> tuple[AttemptExaminer, EvidenceRegistry]:
    """Make the examiner of a worker within the ledger's settings, and the registry that it asks.

    With ``local`` this machine's own executor is looked after, too (``UnsupportedPlatform``).
    """
    settings = ledger.settings
    found, receipts = list(providers), None
    if local:
        machine = ledger.machine()
        from runfacts.infrastructure.processes.local_receipts import LocalReceipts
        from runfacts.infrastructure.processes.on_a_ledger import local_provider

        found.append(local_provider(ledger.database, machine))
        receipts = LocalReceipts(ledger, machine, actor=actor, steps=ledger.database.steps)
    registry = EvidenceRegistry(found, timeout_ms=settings.evidence_timeout_ms, on_answer=on_answer)
    return AttemptExaminer(registry, receipts, lease_ms=settings.recovery_lease_ms), registry

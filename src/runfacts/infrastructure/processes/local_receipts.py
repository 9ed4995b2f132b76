"""
The receipts of this machine's own executor, for whoever finds out about an Attempt (R10.2).

Only files of this scope are opened. A path that was recorded in another one, by another machine or in another
container, names a stranger's file here, or none.
"""

from __future__ import annotations

from collections.abc import Callable

from runfacts.domain.actors import Actor
from runfacts.domain.answers import StopNotProven
from runfacts.domain.errors import IllegalTransition, MalformedId, NotFound, TokenRefused
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Liveness
from runfacts.domain.recovery.ports import Finding
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.completion import Completion
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import AttemptFiles
from runfacts.infrastructure.processes.ports import CompletionLedger
from runfacts.infrastructure.processes.receipt_evidence import find_receipt, inspect_with_receipt
from runfacts.infrastructure.processes.receipts import Receipt, quarantine
from runfacts.infrastructure.steps import NO_STEPS, Steps


class LocalReceipts:
    """Looks at receipts and keepers' locks of this scope, and records receipts. See ``examiner.Receipts``."""

    def __init__(
        self, ledger: CompletionLedger, machine: MachineIdentity, *, actor: Actor, steps: Steps = NO_STEPS
    ) -> None:
        """``actor`` is who records a receipt that was found."""
        self._completion = Completion(ledger, machine, steps=steps)
        self._scope = machine.scope
        self._actor = actor

    def are_ours(self, target: EvidenceTarget) -> bool:
        """See ``Receipts``."""
        return target.executor_type == EXECUTOR_TYPE and target.scope == self._scope

    def has(self, target: EvidenceTarget, path: str) -> bool:
        """See ``Receipts``."""
        return isinstance(find_receipt(AttemptFiles.beside(path), target), Receipt)

    def examine(self, target: EvidenceTarget, path: str, probe: Callable[[], Evidence]) -> Finding:
        """See ``Receipts``."""
        found = inspect_with_receipt(probe, target, path)
        return Finding(found.evidence, receipt=found.receipt is not None)

    def record(self, target: EvidenceTarget, path: str, probe: Callable[[], Evidence]) -> bool:
        """See ``Receipts``."""
        files = AttemptFiles.beside(path)
        receipt = find_receipt(files, target)
        if not isinstance(receipt, Receipt):
            return False
        try:
            answer = self._completion.record(
                receipt,
                files,
                handle=target.handle,
                actor=self._actor,
                proven_gone=lambda: probe().liveness is Liveness.NOT_RUNNING,
            )
        except (NotFound, TokenRefused, MalformedId, IllegalTransition) as error:
            # As a receipt whose token the ledger does not accept: never met again, and the probe decides.
            quarantine(files.receipt, str(error))
            return False
        return not isinstance(answer, StopNotProven)

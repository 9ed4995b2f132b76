"""
Receipts: the outcomes of local commands whose host has gone (R10.2).

A keeper outlives its host and leaves a receipt. Whoever works with the same ledger on the same machine records it.
What processes need is loaded when it is asked for: a ledger by itself runs without it, and elsewhere than on Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runfacts.domain.actors import Actor
from runfacts.infrastructure.api.attempt_commands import AttemptCommands
from runfacts.infrastructure.api.reads import Reads
from runfacts.infrastructure.api.reports import Reports
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.engines import sqlite_path
from runfacts.infrastructure.tokens import new_worker_id

if TYPE_CHECKING:
    from runfacts.domain.recovery.evidence import EvidenceProvider
    from runfacts.infrastructure.processes.collect import CollectedReceipts
    from runfacts.infrastructure.processes.machine import MachineIdentity
    from runfacts.infrastructure.processes.places import Places


class Receipts(AttemptCommands, Reports, Reads):
    """Record what keepers left."""

    def collect_receipts(self, *, actor: Actor | None = None) -> CollectedReceipts:
        """Record the end of every local command of this machine that left a receipt, and count what was found.

        The actor is a worker of this very call where none is named. Elsewhere than on Linux it is refused
        (``UnsupportedPlatform``); errors of the database go up, and the receipts stay.
        """
        machine = self.machine()
        from runfacts.infrastructure.processes.collect import collect_receipts

        return collect_receipts(
            self,
            machine=machine,
            places=self.places(),
            actor=actor or Actor.worker(new_worker_id()),
            steps=self._database.steps,
        )

    def local_evidence(self) -> EvidenceProvider:
        """Give who looks for this machine's own commands: for ``confirm_stopped`` (``UnsupportedPlatform``, R12.3)."""
        machine = self.machine()
        from runfacts.infrastructure.processes.keeper_evidence import KeeperEvidence
        from runfacts.infrastructure.processes.on_a_ledger import local_provider

        return KeeperEvidence(
            local_provider(self._database, machine),
            machine.scope,
            lambda attempt_id: self.execution(attempt_id).receipt_path,
        )

    def machine(self) -> MachineIdentity:
        """Give the identity of this machine as its processes are known by it (``UnsupportedPlatform``; R8.2, R8.3)."""
        from runfacts.infrastructure.processes.machine import MachineIdentity

        return MachineIdentity.of_this_process(self._machine_id)

    def places(self) -> Places:
        """Give the directory in which the logs and receipts of this ledger's local commands lie."""
        from runfacts.infrastructure.processes.places import Places

        if self._database.dialect == SQLITE:
            return Places.beside_file(sqlite_path(self._database.engine.url))
        return Places.in_state_directory(self._database.ledger_id())

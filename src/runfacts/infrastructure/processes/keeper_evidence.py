"""
Local evidence for a person who asks: the process and its group, and the keeper's lock (R10.2, R13.2).

While a keeper holds its lock the command is not over, or its outcome is about to be published; both are "running".
This only looks. It reads no receipt, because reading one that cannot be believed sets it aside, and the person who
asks may be another user than the one who wrote it.
"""

from __future__ import annotations

from collections.abc import Callable

from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Liveness, StopAsking
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.places import AttemptFiles
from runfacts.infrastructure.processes.receipt_evidence import keeper_lock, weighed


class KeeperEvidence:
    """Looks after local processes and their keepers. See ``EvidenceProvider``. Thread-safe."""

    def __init__(self, local: LocalEvidence, scope: str, receipt_path_of: Callable[[str], str | None]) -> None:
        """``scope`` is this machine's; ``receipt_path_of`` gives where an Attempt's keeper leaves its receipt."""
        self._local = local
        self._scope = scope
        self._receipt_path_of = receipt_path_of

    @property
    def executor_type(self) -> str:
        """See ``EvidenceProvider``."""
        return self._local.executor_type

    @property
    def required(self) -> frozenset[str]:
        """See ``EvidenceProvider``."""
        return self._local.required

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        seen = self._local.inspect(target, timeout_ms=timeout_ms, cancelled=cancelled)
        # A path of another machine, or of another container, names a stranger's file here.
        path = self._receipt_path_of(target.attempt_id) if target.scope == self._scope else None
        if path is None or seen.liveness is Liveness.RUNNING:
            return seen
        files = AttemptFiles.beside(path)
        with keeper_lock(files.lock) as lock:
            return weighed(seen, lock, files, target)

"""
The evidence provider of this machine's own executor (R11.3, R12.3).

It looks at the recorded process and its group and says what that proves. Whether a receipt lies there is not its
business: see ``receipt_evidence``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking, Unknown
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.handle import InvalidHandle, ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.pidfds import Pidfds
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.infrastructure.processes.sight import Lookout, Sight, wall_clock_ms

_WHAT_IT_MEANS: Final = {
    Sight.LIVES: Evidence.running(),
    Sight.GONE: Evidence.not_running(),
    Sight.UNPROVEN: Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE),
    Sight.NOTHING: Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE),
    Sight.CONTRADICTION: Evidence.unknown(Unknown.CONFLICTING_EVIDENCE),
}


class LocalEvidence:
    """Looks after local processes. See ``EvidenceProvider``. Thread-safe."""

    def __init__(
        self,
        machine: MachineIdentity,
        *,
        now_ms: Callable[[], int] = wall_clock_ms,
        machine_is_ambiguous: Callable[[int], bool] = lambda _: False,
        procfs: ProcFs | None = None,
        pidfds: Pidfds | None = None,
    ) -> None:
        """``now_ms`` is the ledger's clock.

        ``machine_is_ambiguous`` says whether another machine has our id, given when this boot began (R8.3).
        """
        self._lookout = Lookout(machine, procfs or ProcFs(), pidfds or Pidfds(), now_ms, machine_is_ambiguous)

    @property
    def executor_type(self) -> str:
        """See ``EvidenceProvider``."""
        return EXECUTOR_TYPE

    @property
    def required(self) -> frozenset[str]:
        """Handle and number: without them nothing says which process is meant."""
        return frozenset({"handle", "pid"})

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:  # noqa: ARG002
        """See ``EvidenceProvider``. A look takes milliseconds and waits for nobody."""
        if cancelled.is_set():
            return Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)
        if target.handle is None:
            return Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
        try:
            handle = ProcessHandle.decode(target.handle)
        except InvalidHandle:
            return Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
        if target.pid is None:
            return Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
        if target.pid != handle.pid or target.scope != handle.scope:
            return Evidence.unknown(Unknown.CONFLICTING_EVIDENCE)
        last_seen_at_ms = target.lease_expires_at_ms if target.last_seen_at_ms is None else target.last_seen_at_ms
        sight = self._lookout.see(handle, attempt_id=target.attempt_id, last_seen_at_ms=last_seen_at_ms)
        return _WHAT_IT_MEANS[sight]

"""
Recovering: what a worker does about Runs that nobody looks after, wired to a ledger (R11, R12).

Three parts with claims of their own: recovery, stop confirmation and retries. They share one registry of evidence
providers. A worker serves the executor types and scopes of its controllers; a provider whose type has no controller
serves the empty scope, which executors have that need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from runfacts.domain.actors import Actor
from runfacts.domain.cancellation.controllers import Controllers
from runfacts.domain.cancellation.supervisor import Counters, Diagnostics, Stopping
from runfacts.domain.measures import EVIDENCE_ANSWERS, EVIDENCE_DURATION, RECOVERY_WINDOW
from runfacts.domain.recovery.claims import Purpose, RecoveryScan
from runfacts.domain.recovery.evidence import EvidenceProvider
from runfacts.domain.recovery.gate import GateAnswer, pass_gate
from runfacts.domain.recovery.processor import RecoveryProcessor
from runfacts.infrastructure.database.clocks import elapsed_s
from runfacts.infrastructure.evidence import Answered, HangingProvider
from runfacts.infrastructure.examiner import examiner_of

if TYPE_CHECKING:
    from runfacts.infrastructure.ledger import Ledger


class Recovering:
    """The three parts of one worker, and its startup gate."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        controllers: Controllers,
        providers: Iterable[EvidenceProvider],
        local: bool,
        owner: str,
        actor: Actor,
        diagnostics: Diagnostics,
    ) -> None:
        """Refuse settings under which a look may outlast its claim (``InvalidSetting``, R11.3)."""
        self._ledger = ledger
        examiner, self._registry = examiner_of(ledger, providers, actor=actor, local=local, on_answer=self._answered)
        self.served = served_by(controllers, self._registry.executor_types)
        """The executor types and scopes of this worker."""
        self._processors = {
            purpose: RecoveryProcessor(
                ledger,
                examiner,
                purpose,
                owner=owner,
                served=self.served,
                settings=ledger.settings,
                monotonic=elapsed_s,
                on_error=_reporting(diagnostics, purpose),
            )
            for purpose in Purpose
        }

    def run(self, purpose: Purpose, stopping: Stopping) -> Counters:
        """Do the part of a cycle that is for this, and count."""
        report = self._processors[purpose].cycle(stopping)
        if report.counts["swept"]:
            self._ledger.measures.record(RECOVERY_WINDOW, report.swept_oldest_ms)
        # Told by one of the three parts: they share the registry.
        hanging = {"hanging": late} if purpose is Purpose.RECOVERY and (late := len(self.hanging())) else {}
        return {"seen": report.claimed, **report.as_dict(), **hanging}

    def hanging(self) -> tuple[HangingProvider, ...]:
        """Name the evidence providers whose answers are late (R11.3)."""
        return self._registry.hanging()

    def admit(self, stopping: Stopping = lambda: False) -> GateAnswer:
        """Say whether new Runs may be admitted, after at most ``startup_passes`` cycles of recovery (R11.9)."""
        return pass_gate(self, passes=self._ledger.settings.startup_passes, stopping=stopping)

    def scan(self, limit: int) -> RecoveryScan:
        """See ``Gated``."""
        return self._ledger.scan_recoveries(self.served, limit=limit)

    def cycle(self) -> int:
        """See ``Gated``."""
        return self._processors[Purpose.RECOVERY].cycle().claimed

    def _answered(self, answered: Answered) -> None:
        evidence = answered.evidence
        word = evidence.liveness.value if evidence.reason is None else evidence.reason.value
        self._ledger.measures.record(EVIDENCE_ANSWERS, answer=word)
        self._ledger.measures.record(EVIDENCE_DURATION, answered.took_ms)


def served_by(controllers: Controllers, examined: frozenset[str]) -> frozenset[tuple[str, str]]:
    """Give the executor types and scopes of a worker with these controllers and providers (R8.2)."""
    pairs = frozenset(controllers.served)
    return pairs | {(name, "") for name in examined - {name for name, _ in pairs}}


def _reporting(diagnostics: Diagnostics, purpose: Purpose) -> Callable[[str | None, BaseException], None]:
    def report(run_id: str | None, error: BaseException) -> None:
        diagnostics.report(purpose.value, error, run_id)

    return report

"""Hosts, commands and workers over a real ledger, which live, die and leave receipts behind as a test says.

The bodies are the truth, which nothing but an evidence provider and the receipts may see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from recoveries import SCOPE, SERVED
from recovery_world import Process
from runfacts import Actor, AttemptClaim, IllegalTransition, Ledger, Outcome, StopNotProven
from runfacts.domain.recovery.claims import (
    Purpose,
    RecoveryApplied,
    RecoveryClaimed,
    RecoveryKey,
    RecoverySettled,
)
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Liveness, StopAsking, Unknown
from runfacts.domain.recovery.ports import Examiner, Finding, RecoveryClaims
from runfacts.domain.recovery.processor import RecoveryProcessor
from runfacts.infrastructure.evidence import EvidenceRegistry
from runfacts.infrastructure.examiner import AttemptExaminer
from runfacts.infrastructure.steps import NO_STEPS, Steps
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import EXECUTOR

Tell = Callable[[], None]


class WorkerDied(BaseException):
    """The worker was killed: no handler of its own runs."""


def nothing() -> None:
    """Do nothing."""


@dataclass(kw_only=True)
class Body(Process):
    """What there is of an Attempt on its machine, and what its host knows."""

    claim: AttemptClaim
    gated: bool
    handle: bool = False
    """Whether its handle is recorded, as far as its host knows."""

    @property
    def seen(self) -> bool:
        """Whether whoever looks for its group finds somebody: also whoever waits at the gate."""
        return self.lives or self.state == "waiting"

    def gate_closes(self) -> None:
        """End what never began, with its host."""
        self.state, self.keeper_lives, self.host_lives = "dead", False, False

    def host_dies(self) -> None:
        """End the host, and what waits at its gate."""
        self.host_lives = False
        if self.state == "waiting":
            self.gate_closes()

    def leader_ends(self, outcome: Outcome, *, child_stays: bool) -> None:
        """End the command, if it runs."""
        if self.state == "running":
            self.state, self.outcome = "left" if child_stays else "dead", outcome

    def keeper_ends(self, *, killed: bool) -> None:
        """Let the keeper publish how the command ended, if it can and is not killed."""
        self.receipt = self.receipt or (self.keeper_lives and not killed and self.outcome is not None)
        self.keeper_lives = self.keeper_lives and not (killed or self.receipt)

    def dies(self) -> None:
        """End everything that is left of it."""
        self.host_lives = self.keeper_lives = False
        self.state = "none" if self.state == "none" else "dead"


@dataclass
class Terms:
    """Who may hold what: the last term of each row and when it is over, by the clock of this boot."""

    clock: ManualClock
    lease_ms: int
    held: dict[RecoveryKey, tuple[RecoveryClaimed, int]] = field(default_factory=dict)

    def granted(self, claim: RecoveryClaimed) -> None:
        """Insist that nobody else holds it."""
        before = self.held.get(claim.key)
        if before is not None:
            term, over_ms = before
            assert claim.version > term.version
            # Nothing was written to the row in between: then it was free because the time was over.
            assert claim.version > term.version + 1 or self.clock.boot_ms() >= over_ms
        self.held[claim.key] = (claim, self.clock.boot_ms() + self.lease_ms)

    def used(self, claim: RecoveryClaimed) -> None:
        """Insist that whoever changed something by it held it."""
        term, over_ms = self.held[claim.key]
        assert term is claim
        assert self.clock.boot_ms() < over_ms


@dataclass
class Machine:
    """Where the bodies are, and what can be seen of them."""

    clock: ManualClock
    terms: Terms
    bodies: dict[str, Body] = field(default_factory=dict)
    """By Attempt."""
    sight: str = "clear"
    """``clear``, ``away`` (nobody can be asked), ``strange`` or ``torn`` (no program can tell), ``broken`` (raises)."""
    between: Tell = nothing
    """Called between any two steps of a worker."""

    def body(self, attempt_id: str | None) -> Body:
        """Give the body of an Attempt."""
        assert attempt_id is not None
        return self.bodies[attempt_id]


@dataclass
class Eyes:
    """Sees the bodies of one place. See ``EvidenceProvider``."""

    machine: Machine
    scope: str = SCOPE
    executor_type: str = EXECUTOR
    required: frozenset[str] = frozenset({"handle"})

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        del timeout_ms, cancelled
        match self.machine.sight:
            case "away":
                return Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)
            case "torn":
                return Evidence.unknown(Unknown.CONFLICTING_EVIDENCE)
            case "broken":
                raise OSError
            case _ if self.machine.sight == "strange" or target.scope != self.scope:
                return Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
            case _:
                seen = self.machine.body(target.attempt_id).seen
                return Evidence.running() if seen else Evidence.not_running()


@dataclass
class Letters:
    """The receipts that keepers leave. See ``Receipts``."""

    machine: Machine
    ledger: Ledger
    actor: Actor

    def are_ours(self, target: EvidenceTarget) -> bool:
        """See ``Receipts``."""
        return self.machine.body(target.attempt_id).gated

    def has(self, target: EvidenceTarget, path: str) -> bool:
        """See ``Receipts``."""
        del path
        self.machine.between()
        if self.machine.sight == "broken":
            msg = "the disk is broken"
            raise OSError(msg)
        return self.machine.body(target.attempt_id).receipt

    def examine(self, target: EvidenceTarget, path: str, probe: Callable[[], Evidence]) -> Finding:
        """See ``Receipts``."""
        first, evidence = self.has(target, path), probe()
        if first:
            return Finding(evidence, receipt=True)
        if self.has(target, path):
            return Finding(evidence if evidence.liveness is Liveness.NOT_RUNNING else probe(), receipt=True)
        return Finding(Evidence.running() if self.machine.body(target.attempt_id).keeper_lives else evidence)

    def record(self, target: EvidenceTarget, path: str, probe: Callable[[], Evidence]) -> bool:
        """See ``Receipts``."""
        body = self.machine.body(target.attempt_id)
        if not self.has(target, path) or body.outcome is None:
            return False
        left = probe().liveness is not Liveness.NOT_RUNNING
        self.machine.between()
        try:
            answer = self.ledger.finish(body.claim, body.outcome, actor=self.actor, group_left=left)
        except IllegalTransition:
            body.receipt = False
            return False
        body.receipt = isinstance(answer, StopNotProven)
        return not body.receipt


def opened(ledgers: ThrowAwayLedgers, limits: dict[str, int], steps: Steps = NO_STEPS) -> Ledger:
    """Open one more ledger with these limits."""
    given: dict[str, Any] = dict(limits)
    return ledgers(steps=steps, **given)


class Mortal:
    """Steps of a ledger, at one of which its worker dies."""

    def __init__(self) -> None:
        """Live."""
        self.left: int | None = None

    def reached(self, name: str) -> None:
        """See ``Steps``."""
        del name
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                self.left = None
                raise WorkerDied


class _Watched:
    """A ledger between whose methods anything may happen, and whose terms are watched."""

    def __init__(self, ledger: Ledger, machine: Machine) -> None:
        self._ledger = ledger
        self._machine = machine

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._ledger, name)

        def step(*args: Any, **how: Any) -> Any:  # noqa: ANN401 - any method
            if name in {"sweep_recoveries", "claim_recoveries"}:
                # Before it holds anything a worker is not between two steps.
                answer = method(*args, **how)
                if name == "claim_recoveries" and answer:
                    for claim in answer:
                        self._machine.terms.granted(claim)
                    self._machine.between()
                return answer
            self._machine.between()
            answer = method(*args, **how)
            if isinstance(answer, RecoveryApplied | RecoverySettled):
                self._machine.terms.used(args[0])
            self._machine.between()
            return answer

        return step


@dataclass
class MortalWorker:
    """One worker, which dies when it is told to and is another one after that."""

    ledgers: ThrowAwayLedgers
    machine: Machine
    name: str
    settings: dict[str, int]
    scope: str = SCOPE
    lives: int = 0
    errors: list[BaseException] = field(default_factory=list)
    """What it said went wrong, but for a broken disk."""
    counts: Counter[str] = field(default_factory=Counter)
    """What its cycles reported."""

    def __post_init__(self) -> None:
        """Begin."""
        self._begins()

    def _begins(self) -> None:
        self.lives += 1
        self.owner = f"{self.name}-{self.lives}"
        self.steps = Mortal()
        self.ledger = opened(self.ledgers, self.settings, self.steps)
        registry = EvidenceRegistry([Eyes(self.machine, self.scope)])
        receipts = Letters(self.machine, self.ledger, Actor.worker(self.owner))
        examiner = AttemptExaminer(registry, receipts, lease_ms=self.ledger.settings.recovery_lease_ms)
        self.processors = [self._processor(purpose, examiner) for purpose in Purpose]

    def _processor(self, purpose: Purpose, examiner: Examiner) -> RecoveryProcessor:
        return RecoveryProcessor(
            cast("RecoveryClaims", _Watched(self.ledger, self.machine)),
            examiner,
            purpose,
            owner=self.owner,
            served=SERVED if self.scope == SCOPE else frozenset({(EXECUTOR, self.scope)}),
            settings=self.ledger.settings,
            monotonic=lambda: self.machine.clock.boot_ms() / 1_000,
            on_error=self._failed,
        )

    def _failed(self, _: str | None, error: BaseException) -> None:
        if not isinstance(error, OSError):
            self.errors.append(error)

    def cycles(self, dies_at: int | None = None) -> None:
        """Run a cycle of each purpose, or as many steps of them until the worker dies."""
        self.steps.left = dies_at
        try:
            for processor in self.processors:
                self.counts.update(processor.cycle().as_dict())
        except WorkerDied:
            self.ledger.close()
            self._begins()
        finally:
            self.steps.left = None

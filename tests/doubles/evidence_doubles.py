"""Evidence providers that answer as they are told, and those that hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from process_watch import DEADLINE_S
from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking


def target_for(executor_type: str = "batch", scope: str = "here") -> EvidenceTarget:
    """Give what is asked about, with every field."""
    return EvidenceTarget(
        "run", "attempt", AttemptStatus.RUNNING, executor_type, scope, "worker", "job-1#7", 4_711, 1_000, 900
    )


@dataclass
class Provider:
    """Answers an operator's verb what the test says, and remembers what it was asked about."""

    answer: Evidence = field(default_factory=Evidence.not_running)
    executor_type: str = "batch"
    required: frozenset[str] = frozenset({"handle"})
    asked: list[EvidenceTarget] = field(default_factory=list)

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        assert (timeout_ms, cancelled.is_set()) == (5_000, False)
        self.asked.append(target)
        return self.answer


@dataclass
class Saying:
    """Says what it is told to, whatever that is."""

    says: object = field(default_factory=Evidence.running)
    executor_type: str = "batch"
    required: frozenset[str] = frozenset()
    targets: list[EvidenceTarget] = field(default_factory=list)
    limits_ms: list[int] = field(default_factory=list)

    @property
    def asked(self) -> int:
        """How often it was asked."""
        return len(self.targets)

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See EvidenceProvider."""
        del cancelled
        self.targets.append(target)
        self.limits_ms.append(timeout_ms)
        return self.says  # type: ignore[return-value]  # that is what lying is


@dataclass
class Raising:
    """Fails."""

    error: BaseException
    executor_type: str = "batch"
    required: frozenset[str] = frozenset()

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:  # noqa: ARG002
        """See EvidenceProvider."""
        raise self.error


@dataclass
class Hanging:
    """Answers "not running", but not before it is let go; not even when nobody waits."""

    executor_type: str = "batch"
    required: frozenset[str] = frozenset()
    begun: threading.Event = field(default_factory=threading.Event)
    let_go: threading.Event = field(default_factory=threading.Event)
    first: Callable[[], object] = lambda: None
    told: list[StopAsking] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    @property
    def asked(self) -> int:
        """How often it was asked."""
        return len(self.told)

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:  # noqa: ARG002
        """See EvidenceProvider."""
        self.told.append(cancelled)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.begun.set()
        self.first()
        assert self.let_go.wait(DEADLINE_S)
        self.at_once -= 1
        return Evidence.not_running()

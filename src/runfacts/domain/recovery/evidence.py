"""
Evidence: what can be proven about a process from outside (R11.3, R12.3).

A provider answers for one executor type. It may look, and nothing else: it starts, stops, retries and changes
nothing. Its answers are three: running, not running, or unknown with a reason. "No such process", a time-out or a
worker that is offline are never by themselves "not running".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from runfacts.domain.lifecycle import AttemptStatus


class Unknown(StrEnum):
    """Why nothing can be said (R11.3)."""

    PROVIDER_UNAVAILABLE = "provider_unavailable"
    """Nobody could be asked just now; asking again may help."""
    IDENTITY_UNVERIFIABLE = "identity_unverifiable"
    """What is there cannot be told from a stranger, or cannot be seen from here."""
    CONFLICTING_EVIDENCE = "conflicting_evidence"
    """What was seen contradicts itself."""


class Liveness(StrEnum):
    """What was seen."""

    RUNNING = "running"
    NOT_RUNNING = "not_running"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One answer of a provider."""

    liveness: Liveness
    reason: Unknown | None = None
    """Given with ``unknown``, and only then."""

    @classmethod
    def running(cls) -> Evidence:
        """Something of it runs."""
        return cls(Liveness.RUNNING)

    @classmethod
    def not_running(cls) -> Evidence:
        """It is proven that nothing of it runs."""
        return cls(Liveness.NOT_RUNNING)

    @classmethod
    def unknown(cls, reason: Unknown) -> Evidence:
        """Nothing can be said."""
        return cls(Liveness.UNKNOWN, reason)


@dataclass(frozen=True, slots=True)
class EvidenceTarget:
    """What is asked about: a frozen copy, never the claim (R11.3).

    Handle and number are not shown when it is printed: it may be in a log line (R3.6).
    """

    run_id: str
    attempt_id: str
    attempt_status: AttemptStatus
    executor_type: str
    scope: str
    worker_id: str | None
    handle: str | None = field(repr=False)
    pid: int | None = field(repr=False)
    lease_expires_at_ms: int
    last_seen_at_ms: int | None = None
    """When the handle was recorded or the lease last renewed, the later; without it ``lease_expires_at_ms`` counts."""


class StopAsking(Protocol):
    """Tells a provider that nobody waits for its answer any more; a ``threading.Event`` is one."""

    def is_set(self) -> bool:
        """Tell whether nobody waits any more."""
        ...


class EvidenceProvider(Protocol):
    """Looks after what one executor type runs."""

    @property
    def executor_type(self) -> str:
        """The executor type, exactly."""
        ...

    @property
    def required(self) -> frozenset[str]:
        """The fields of the target without which nothing can be proven, such as ``handle``."""
        ...

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """Say what is known within ``timeout_ms``, or sooner when ``cancelled`` is set. Changes nothing."""
        ...

"""
The Attempt aggregate: one actual try of a Run (R2.2, R2.4).

Its state is what its facts say; ``apply`` is the only place where a fact changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from eventsourcing.domain import BaseAggregate

from runfacts.domain.lifecycle import ACTIVE_ATTEMPT, AttemptStatus
from runfacts.domain.payload_parts import Evidence, OutcomeKind
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptLateCallbackIgnored,
    AttemptLost,
    AttemptRunning,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    Payload,
)

if TYPE_CHECKING:
    from runfacts.domain.facts import Fact

ATTEMPT_STATUS_AFTER: Final[Mapping[type[Payload], AttemptStatus]] = MappingProxyType(
    {
        AttemptClaimed: AttemptStatus.CLAIMED,
        AttemptStarting: AttemptStatus.STARTING,
        AttemptRunning: AttemptStatus.RUNNING,
        AttemptSucceeded: AttemptStatus.SUCCEEDED,
        AttemptFailed: AttemptStatus.FAILED,
        AttemptCancelled: AttemptStatus.CANCELLED,
        AttemptTimedOut: AttemptStatus.TIMED_OUT,
        AttemptLost: AttemptStatus.LOST,
    }
)
"""The status that an Attempt has after each type of fact that changes it."""


class Attempt(BaseAggregate[str]):
    """One actual try of a Run, as its facts have it."""

    run_id: str
    number: int
    executor_type: str
    gated: bool
    worker_id: str | None
    status: AttemptStatus
    deadline_at_ms: int | None
    claimed_at_ms: int
    started_at_ms: int | None
    running_at_ms: int | None
    finished_at_ms: int | None
    exit_code: int | None
    signal: int | None
    error_code: str | None
    error_summary: str | None
    observed: OutcomeKind | None
    evidence: Evidence | None
    group_left: bool
    late_reports: frozenset[tuple[str, int | None, int | None]]
    """What was reported after the end: what, exit code, signal."""

    @classmethod
    def begin(cls, fact: Fact) -> Attempt:
        """Make the Attempt that its first fact creates; ``apply`` then fills in what the fact says."""
        attempt = object.__new__(cls)
        attempt.__base_init__(fact.aggregate_id, fact.aggregate_version, fact.timestamp)
        attempt.run_id = fact.run_id
        attempt.number = 0
        attempt.executor_type = ""
        attempt.gated = False
        attempt.worker_id = None
        attempt.status = AttemptStatus.CLAIMED
        attempt.deadline_at_ms = None
        attempt.claimed_at_ms = fact.recorded_at_ms
        attempt.started_at_ms = None
        attempt.running_at_ms = None
        attempt.finished_at_ms = None
        attempt.exit_code = None
        attempt.signal = None
        attempt.error_code = None
        attempt.error_summary = None
        attempt.observed = None
        attempt.evidence = None
        attempt.group_left = False
        attempt.late_reports = frozenset()
        return attempt

    @property
    def active(self) -> bool:
        """Whether the try is under way (R2.2)."""
        return self.status in ACTIVE_ATTEMPT

    def apply(self, fact: Fact) -> None:
        """Take in what one fact of this Attempt says."""
        payload = fact.payload
        status = ATTEMPT_STATUS_AFTER.get(type(payload))
        if status is None:
            # A late callback changes nothing but what is known to have been said (R2.7).
            if type(payload) is AttemptLateCallbackIgnored:
                self.late_reports |= {(payload.reported, payload.exit_code, payload.signal)}
            return
        self.status = status
        if status not in ACTIVE_ATTEMPT:
            self.finished_at_ms = fact.recorded_at_ms
        # Not isinstance, nor match, for the frequent types: pydantic makes both slow, and replays come here.
        if type(payload) is AttemptClaimed:
            self.number = payload.number
            self.executor_type = payload.executor_type
            self.gated = payload.gated
            self.worker_id = payload.worker_id
        elif type(payload) is AttemptStarting:
            self.started_at_ms = fact.recorded_at_ms
            self.deadline_at_ms = payload.deadline_at_ms
        elif type(payload) is AttemptRunning:
            self.running_at_ms = fact.recorded_at_ms
        elif type(payload) is AttemptLost:
            self.evidence = payload.evidence
        elif isinstance(payload, AttemptSucceeded | AttemptFailed | AttemptCancelled | AttemptTimedOut):
            self.exit_code = payload.exit_code
            self.signal = payload.signal
            self.error_code = payload.error_code
            self.error_summary = payload.error_summary
            self.group_left = payload.group_left is True
            if isinstance(payload, AttemptCancelled | AttemptTimedOut):
                self.observed = payload.observed

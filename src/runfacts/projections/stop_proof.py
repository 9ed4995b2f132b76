"""
The stop-proof report: what became of every request to stop, Run by Run (R6, R14.1).

It begins with the request. Deliveries say how far the signal got; that the Run has stopped is said by its end only,
and by what that rests on: a report of whoever executed it, a proof, or an operator's word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from runfacts.domain.facts import Fact
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.payload_parts import WithEvidence
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptFailed,
    AttemptLost,
    AttemptSucceeded,
    AttemptTimedOut,
    Payload,
    RunCancelDispatchAbandoned,
    RunCancelDispatchBlocked,
    RunCancelDispatched,
    RunCancelDispatchFailed,
    RunCancelDispatchRearmed,
    RunCancelled,
    RunCancelRequested,
    RunFailed,
    RunRecoveryAttested,
    RunStopConfirmed,
    RunSucceeded,
    RunTimedOut,
)
from runfacts.domain.projecting import ProjectionName, StopDelivery, StopEvidence
from runfacts.projections.folding import Counts


@dataclass(frozen=True, slots=True)
class Stop:
    """What is known of one request to stop."""

    project: str
    attempt_id: str | None
    kind: str
    requested_by_type: str
    requested_by_id: str | None
    requested_at_ms: int
    delivery: str | None = None
    result: str | None = None
    escalation: str | None = None
    delivered_at_ms: int | None = None
    status: str | None = None
    ended_at_ms: int | None = None
    evidence: str | None = None


class StopProofProjection:
    """See ``Projection``."""

    name: Final = ProjectionName.STOP_PROOF

    def apply(self, state: Stop | None, fact: Fact, counts: Counts) -> Stop | None:
        """See ``Projection``."""
        del counts
        payload = fact.payload
        if state is None:
            if not isinstance(payload, RunCancelRequested):
                return None
            return Stop(
                project=fact.project,
                attempt_id=fact.attempt_id,
                kind=payload.kind.value,
                requested_by_type=fact.actor.type.value,
                requested_by_id=fact.actor.id,
                requested_at_ms=fact.recorded_at_ms,
            )
        changes = _CHANGES.get(type(payload))
        return state if changes is None else changes(state, fact, payload)

    def task_of(self, state: Stop | None) -> str:
        """See ``Projection``. It has no totals."""
        del state
        return ""


Change = Callable[[Stop, Fact, Any], Stop]


def _delivered(state: Stop, fact: Fact, payload: RunCancelDispatched) -> Stop:
    first_at_ms = fact.recorded_at_ms if state.delivered_at_ms is None else state.delivered_at_ms
    return replace(
        state,
        delivery=StopDelivery.DISPATCHED.value,
        result=payload.result,
        escalation=payload.escalation.value,
        delivered_at_ms=first_at_ms,
    )


def _tried(delivery: StopDelivery) -> Change:
    def tried(state: Stop, fact: Fact, payload: RunCancelDispatchFailed | RunCancelDispatchBlocked) -> Stop:
        del fact
        return replace(state, delivery=delivery.value, result=payload.result)

    return tried


def _told(delivery: StopDelivery) -> Change:
    def told(state: Stop, fact: Fact, payload: Payload) -> Stop:
        del fact, payload
        return replace(state, delivery=delivery.value)

    return told


def _proven(state: Stop, fact: Fact, payload: WithEvidence) -> Stop:
    del fact
    return replace(state, evidence=payload.evidence.value)


def _attested(state: Stop, fact: Fact, payload: Payload) -> Stop:
    del fact, payload
    return replace(state, evidence=StopEvidence.ATTESTED.value)


def _reported(state: Stop, fact: Fact, payload: Payload) -> Stop:
    del fact, payload
    # The end of an Attempt whose stop was confirmed follows from that.
    return state if state.evidence is not None else replace(state, evidence=StopEvidence.REPORTED.value)


def _ended(status: RunStatus) -> Change:
    def ended(state: Stop, fact: Fact, payload: Payload) -> Stop:
        del payload
        evidence = state.evidence or StopEvidence.NO_ATTEMPT.value
        return replace(state, status=status.value, ended_at_ms=fact.recorded_at_ms, evidence=evidence)

    return ended


_CHANGES: Final[Mapping[type[Payload], Change]] = MappingProxyType(
    {
        RunCancelDispatched: _delivered,
        RunCancelDispatchFailed: _tried(StopDelivery.FAILED),
        RunCancelDispatchBlocked: _tried(StopDelivery.BLOCKED),
        RunCancelDispatchRearmed: _told(StopDelivery.REARMED),
        RunCancelDispatchAbandoned: _told(StopDelivery.ABANDONED),
        RunStopConfirmed: _proven,
        AttemptLost: _proven,
        RunRecoveryAttested: _attested,
        AttemptSucceeded: _reported,
        AttemptFailed: _reported,
        AttemptCancelled: _reported,
        AttemptTimedOut: _reported,
        RunSucceeded: _ended(RunStatus.SUCCEEDED),
        RunFailed: _ended(RunStatus.FAILED),
        RunCancelled: _ended(RunStatus.CANCELLED),
        RunTimedOut: _ended(RunStatus.TIMED_OUT),
    }
)

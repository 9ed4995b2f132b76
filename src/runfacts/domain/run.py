"""
The Run aggregate: one user-visible execution (R2).

Its state is what its facts say, and ``apply`` is the only place where a fact changes it. What may be recorded next is
decided in ``decisions.py``; this file decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from eventsourcing.domain import BaseAggregate

from runfacts.domain.lifecycle import TERMINAL_RUN, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    Payload,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunImported,
    RunLost,
    RunQueued,
    RunRecoveryAttested,
    RunRetryWait,
    RunRunning,
    RunStopConfirmed,
    RunSucceeded,
    RunTimedOut,
    RunWaitingApproval,
)
from runfacts.domain.retry import RetryPolicy

if TYPE_CHECKING:
    from runfacts.domain.facts import Fact

RUN_STATUS_AFTER: Final[Mapping[type[Payload], RunStatus]] = MappingProxyType(
    {
        RunCreated: RunStatus.CREATED,
        RunQueued: RunStatus.QUEUED,
        RunDispatching: RunStatus.DISPATCHING,
        RunRunning: RunStatus.RUNNING,
        RunWaitingApproval: RunStatus.WAITING_APPROVAL,
        RunRetryWait: RunStatus.RETRY_WAIT,
        RunLost: RunStatus.LOST,
        RunSucceeded: RunStatus.SUCCEEDED,
        RunFailed: RunStatus.FAILED,
        RunCancelled: RunStatus.CANCELLED,
        RunTimedOut: RunStatus.TIMED_OUT,
    }
)
"""The status that a Run has after each type of fact that changes it."""


@dataclass(frozen=True, slots=True)
class Intent:
    """That somebody asked a Run to stop (R6.1)."""

    kind: IntentKind
    reason: str | None
    requested_at_ms: int


class Run(BaseAggregate[str]):
    """One user-visible execution, as its facts have it."""

    project: str
    task: str
    policy: RetryPolicy
    execution_owner: ExecutionOwner
    idempotency_key: str | None
    retry_of_run_id: str | None
    deadline_at_ms: int | None
    timeout_ms: int | None
    status: RunStatus
    intent: Intent | None
    retry_due_at_ms: int | None
    group_left: bool
    attested: bool
    """Whether an operator's word stands where proof is missing (R6.2)."""
    created_at_ms: int
    finished_at_ms: int | None

    @classmethod
    def begin(cls, fact: Fact) -> Run:
        """Make the Run that its first fact creates; ``apply`` then fills in what the fact says."""
        run = object.__new__(cls)
        run.__base_init__(fact.aggregate_id, fact.aggregate_version, fact.timestamp)
        run.project = fact.project
        run.task = ""
        run.policy = RetryPolicy()
        run.execution_owner = ExecutionOwner.RUNTIME
        run.idempotency_key = None
        run.retry_of_run_id = None
        run.deadline_at_ms = None
        run.timeout_ms = None
        run.status = RunStatus.CREATED
        run.intent = None
        run.retry_due_at_ms = None
        run.group_left = False
        run.attested = False
        run.created_at_ms = fact.recorded_at_ms
        run.finished_at_ms = None
        return run

    @property
    def terminal(self) -> bool:
        """Whether the Run has ended for good (R2.1)."""
        return self.status in TERMINAL_RUN

    def apply(self, fact: Fact) -> None:
        """Take in what one fact of this Run says."""
        payload = fact.payload
        status = RUN_STATUS_AFTER.get(type(payload))
        if status is not None:
            self.status = status
            self.retry_due_at_ms = None
            if status in TERMINAL_RUN:
                self.finished_at_ms = fact.recorded_at_ms
        # Not isinstance, nor match: pydantic makes both slow, and every fact of every replay comes here. The types that
        # are not named say all they have to say to a Run by its status, or concern claims and operators only.
        if type(payload) is RunCreated:
            self.task = payload.task
            self.policy = payload.policy
            self.execution_owner = payload.execution_owner
            self.idempotency_key = payload.idempotency_key
            self.retry_of_run_id = payload.retry_of_run_id
            self.deadline_at_ms = payload.deadline_at_ms
            self.timeout_ms = payload.timeout_ms
        elif type(payload) is RunRetryWait:
            self.retry_due_at_ms = payload.due_at_ms
            self.group_left = payload.group_left is True
        elif type(payload) is RunCancelRequested:
            self.intent = Intent(payload.kind, payload.reason, fact.recorded_at_ms)
        elif type(payload) is RunStopConfirmed or type(payload) is RunLost:
            self.attested = self.attested or payload.evidence is Evidence.ATTESTED
        elif type(payload) is RunRecoveryAttested:
            self.attested = True
        elif type(payload) is RunImported:
            self.execution_owner = payload.execution_owner

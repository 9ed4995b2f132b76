"""The objects that the command writes as JSON. Their fields are API: add some, rename and remove none."""

from __future__ import annotations

import json
from typing import Any

from runfacts.domain.cancellation.operators import BlockedDispatch, UnprovenStop
from runfacts.domain.facts import Fact
from runfacts.domain.recovery.operators import ManualRecovery
from runfacts.domain.replay import PastAttempt, PastCancellation, PastRun
from runfacts.domain.views import (
    AttemptView,
    CancellationView,
    Difference,
    DispatchView,
    Head,
    RecordedRun,
    RecoveryView,
    RunSummary,
    RunView,
    VerifyReport,
)
from runfacts.infrastructure.cli.attempt_output import AttemptOutput, Outputs

Shape = dict[str, Any]


def summary_shape(run: RunSummary) -> Shape:
    """A Run on the board."""
    return {
        "run_id": run.run_id,
        "project": run.project,
        "task": run.task,
        "status": run.status.value,
        "version": run.version,
        "created_at_ms": run.created_at_ms,
        "intent_at_ms": run.intent_at_ms,
        "dispatch": None if run.dispatch is None else run.dispatch.value,
        "recovery": None if run.recovery is None else run.recovery.state.value,
    }


def run_shape(run: RunView, outputs: Outputs) -> Shape:
    """One Run with its Attempts and their output."""
    return _recorded_run(run) | {
        "attempts": [
            _attempt_shape(attempt) | _output_shape(outputs.get(attempt.attempt_id)) for attempt in run.attempts
        ],
        "cancellation": None if run.cancellation is None else _cancellation_shape(run.cancellation),
        "recovery": None if run.recovery is None else _recovery_shape(run.recovery),
    }


def past_run_shape(run: PastRun) -> Shape:
    """One Run as it was: as ``run_shape`` without leases and next times, which no fact says."""
    return _recorded_run(run) | {
        "attempts": [_recorded_attempt(attempt) | _times(attempt) for attempt in run.attempts],
        "cancellation": None if run.cancellation is None else _past_cancellation_shape(run.cancellation),
        "recovery": None
        if run.recovery is None
        else {"state": run.recovery.state.value, "purpose": run.recovery.purpose, "reason": run.recovery.reason},
        "unknown_types": list(run.unknown_types),
    }


def _recorded_run(run: RecordedRun) -> Shape:
    return {
        "run_id": run.run_id,
        "project": run.project,
        "task": run.task,
        "status": run.status.value,
        "version": run.version,
        "execution_owner": run.execution_owner.value,
        "idempotency_key": run.idempotency_key,
        "retry_of_run_id": run.retry_of_run_id,
        "created_at_ms": run.created_at_ms,
        "updated_at_ms": run.updated_at_ms,
        "finished_at_ms": run.finished_at_ms,
    }


def _attempt_shape(attempt: AttemptView) -> Shape:
    lease = {"lease": attempt.lease.value, "lease_expires_at_ms": attempt.lease_expires_at_ms}
    return _recorded_attempt(attempt) | lease | _times(attempt)


def _recorded_attempt(attempt: AttemptView | PastAttempt) -> Shape:
    return {
        "attempt_id": attempt.attempt_id,
        "number": attempt.number,
        "status": attempt.status.value,
        "executor_type": attempt.executor_type,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error_code": attempt.error_code,
        "error_summary": attempt.error_summary,
        "observed": attempt.observed,
        "evidence": None if attempt.evidence is None else attempt.evidence.value,
    }


def _times(attempt: AttemptView | PastAttempt) -> Shape:
    return {
        "claimed_at_ms": attempt.claimed_at_ms,
        "started_at_ms": attempt.started_at_ms,
        "running_at_ms": attempt.running_at_ms,
        "finished_at_ms": attempt.finished_at_ms,
    }


def _output_shape(found: AttemptOutput | None) -> Shape:
    if found is None:
        return {"output": None, "stdout_path": None, "stderr_path": None}
    return {"output": found.where.value, "stdout_path": found.stdout, "stderr_path": found.stderr}


def _cancellation_shape(cancellation: CancellationView) -> Shape:
    dispatch = cancellation.dispatch
    return _asked(cancellation) | {"dispatch": None if dispatch is None else _dispatch_shape(dispatch)}


def _past_cancellation_shape(cancellation: PastCancellation) -> Shape:
    dispatch = cancellation.dispatch
    return _asked(cancellation) | {
        "dispatch": None
        if dispatch is None
        else {
            "status": dispatch.status.value,
            "dispatch_count": dispatch.dispatch_count,
            "last_result": dispatch.last_result,
        }
    }


def _asked(cancellation: CancellationView | PastCancellation) -> Shape:
    return {
        "requested_at_ms": cancellation.requested_at_ms,
        "kind": cancellation.kind.value,
        "reason": cancellation.reason,
    }


def _dispatch_shape(dispatch: DispatchView) -> Shape:
    return {
        "status": dispatch.status.value,
        "version": dispatch.version,
        "dispatch_count": dispatch.dispatch_count,
        "last_result": None if dispatch.last_result is None else dispatch.last_result.value,
        "next_attempt_at_ms": dispatch.next_attempt_at_ms,
    }


def _recovery_shape(recovery: RecoveryView) -> Shape:
    return {
        "state": recovery.state.value,
        "purpose": recovery.purpose.value,
        "version": recovery.version,
        "reason": None if recovery.reason is None else recovery.reason.value,
        "next_claim_at_ms": recovery.next_claim_at_ms,
    }


def queued_shape(item: BlockedDispatch | UnprovenStop | ManualRecovery) -> Shape:
    """Something that an operator should look at."""
    return {
        "run_id": item.run_id,
        "attempt_id": item.attempt_id,
        "reason": item.reason,
        "since_ms": item.since_ms,
        "diagnosis": item.diagnosis,
        "version": item.version,
    }


def manual_shape(item: ManualRecovery) -> Shape:
    """Something that recovery cannot decide; the Run's version is for ``confirm-stopped``."""
    return queued_shape(item) | {"purpose": item.purpose.value, "run_version": item.run_version}


def fact_shape(fact: Fact) -> Shape:
    """A line of the audit trail."""
    return {
        "position": fact.position,
        "run_id": fact.run_id,
        "sequence": fact.sequence,
        "type": fact.type,
        "schema_version": fact.schema_version,
        "project": fact.project,
        "attempt_id": fact.attempt_id,
        "actor_type": str(fact.actor.type),
        "actor_id": fact.actor.id,
        "recorded_at_ms": fact.recorded_at_ms,
        "payload": _payload(fact),
    }


def _payload(fact: Fact) -> object:
    """Give what is stored, also where this release does not know the type; text that is no JSON stays text."""
    try:
        return json.loads(fact.payload_text)
    except ValueError:
        return fact.payload_text


def head_shape(head: Head) -> Shape:
    """A line of ``verify --heads``."""
    return {"run_id": head.run_id, "version": head.version, "hash": head.hash}


def report_shape(report: VerifyReport, differences: list[Difference]) -> Shape:
    """What ``verify`` found."""
    return {
        "runs": report.runs,
        "facts": report.facts,
        "unknown_types": report.unknown_types,
        "differences": [
            {
                "run_id": item.run_id,
                "kind": item.kind,
                "field": item.field,
                "recorded": item.recorded,
                "recomputed": item.recomputed,
                "sequence": item.sequence,
            }
            for item in differences
        ],
    }

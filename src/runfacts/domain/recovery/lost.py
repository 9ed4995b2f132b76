"""
What recovery records, decided purely: lost, stopped, tried again (R11.5, R12.1, R12.2).

Like ``decisions``, whose manner this is: a history and arguments in, drafts of facts out, or in a word why none. None
of these decisions creates an Attempt, changes a policy, infers an outcome or calls an executor. Each fact has a
dedupe key of its own that names what it is about, so that it is recorded once whoever finds it out (R3.3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from runfacts.domain.attempt import Attempt
from runfacts.domain.decisions import Decision, Refusal, confirm_stopped, require_attempt, require_runtime
from runfacts.domain.errors import IllegalTransition
from runfacts.domain.history import Draft, History
from runfacts.domain.lifecycle import (
    AttemptStatus,
    RunStatus,
    require_attempt_transition,
    require_run_transition,
    run_end,
)
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptLost,
    RunCancelled,
    RunFailed,
    RunLost,
    RunQueued,
    RunRetryWait,
    RunStopConfirmed,
)
from runfacts.domain.retry import RetryPolicy

WORKER_LOST: Final = "worker_lost"
"""The error code of a Run whose worker vanished and that is not tried again (R12.1)."""

_REPEATED: Final = Decision(refusal=Refusal.REPEATED)
_ENDED: Final = Decision(refusal=Refusal.ENDED)
_ASKED_TO_STOP: Final = Decision(refusal=Refusal.CANCELLATION_REQUESTED)


def lost(history: History, attempt_id: str, evidence: Evidence | None, provider_type: str | None) -> Decision:
    """Declare an Attempt and its Run lost (R11.5).

    An Attempt that is lost already lets a still active Run follow, by the Attempt's own evidence: ``evidence`` may
    then be None. Anything but an active Attempt needs one (``ValueError``). Refused where somebody asked the Run to
    stop: that has its own proof (R12.2).
    """
    require_runtime(history)
    attempt = require_attempt(history, attempt_id)
    run = history.run
    if run.terminal:
        return _ENDED
    if attempt.status is AttemptStatus.LOST and run.status is RunStatus.LOST:
        return _REPEATED
    if run.intent is not None:
        return _ASKED_TO_STOP
    if attempt.active:
        if evidence is None:
            msg = "an active attempt is lost by evidence only"
            raise ValueError(msg)
        require_attempt_transition(attempt.status, AttemptStatus.LOST)
        require_run_transition(run.status, RunStatus.LOST)
        of_attempt = AttemptLost(evidence=evidence, provider_type=provider_type)
        of_run = RunLost(evidence=evidence, provider_type=provider_type)
        return Decision(
            (Draft(of_attempt, attempt_id, lost_key(attempt_id)), Draft(of_run, attempt_id, run_lost_key(attempt_id)))
        )
    if attempt.evidence is None or history.latest_attempt is not attempt:
        return _ENDED
    require_run_transition(run.status, RunStatus.LOST)
    return Decision((Draft(RunLost(evidence=attempt.evidence), attempt_id, run_lost_key(attempt_id)),))


def stopped(history: History, evidence: Evidence | None, provider_type: str | None) -> Decision:
    """End a Run that was asked to stop and is proven to have stopped (R12.2).

    Attempt and Run end together; where no Attempt is active any more, the Run alone. Without ``evidence`` it is what
    is recorded of the latest Attempt: by what it was lost, or that there never was one (else ``ValueError``).
    """
    require_runtime(history)
    if evidence is None:
        evidence = _recorded_evidence(history)
    decision = confirm_stopped(history, RunStopConfirmed(evidence=evidence, provider_type=provider_type))
    if not decision.drafts:
        return decision
    confirmed, *ends = decision.drafts
    return Decision((replace(confirmed, dedupe_key=stop_key(history.run_id, confirmed.attempt_id)), *ends))


def retry_lost(history: History, now_ms: int) -> Decision:
    """Move a lost Run on: to be tried again where its policy allows that, else failed (R12.1).

    Lost work may be half done, so it is repeated only where that was declared safe. A lost Run that somebody asked to
    stop is cancelled, not retried.
    """
    require_runtime(history)
    run = history.run
    if run.terminal:
        return _ENDED
    if run.status is not RunStatus.LOST:
        return Decision(refusal=Refusal.NOT_LOST)
    attempt = _latest(history)
    key = retry_key(history.run_id, attempt.number)
    if run.intent is not None:
        require_run_transition(run.status, run_end(run.status, run.intent.kind))
        # The table has no timed_out for a lost Run: a timeout is said by the reason (R2.5).
        return Decision((Draft(RunCancelled(reason=run.intent.kind), attempt.id, key),))
    if retried_when_lost(run.policy, attempt.number):
        require_run_transition(run.status, RunStatus.RETRY_WAIT)
        due_at_ms = max(now_ms, history.recorded_at_ms) + run.policy.wait_ms(attempt.number)
        return Decision((Draft(RunRetryWait(due_at_ms=due_at_ms), attempt.id, key),))
    require_run_transition(run.status, RunStatus.FAILED)
    return Decision((Draft(RunFailed(error_code=WORKER_LOST), attempt.id, key),))


def requeue(history: History, now_ms: int, *, group_gone: bool) -> Decision:
    """Queue a retry that is due; after ``group_left`` only where the group is proven gone (R12.1)."""
    require_runtime(history)
    run = history.run
    if run.terminal:
        return _ENDED
    if run.status is RunStatus.QUEUED:
        return _REPEATED
    if run.status is not RunStatus.RETRY_WAIT:
        raise IllegalTransition("run", run.status.value, RunStatus.QUEUED.value)
    if run.intent is not None:
        return _ASKED_TO_STOP
    if run.retry_due_at_ms is not None and now_ms < run.retry_due_at_ms:
        return Decision(refusal=Refusal.NOT_DUE)
    if run.group_left and not group_gone:
        return Decision(refusal=Refusal.GROUP_LIVES)
    require_run_transition(run.status, RunStatus.QUEUED)
    return Decision((Draft(RunQueued(), dedupe_key=requeue_key(history.run_id, _latest(history).number)),))


def retried_when_lost(policy: RetryPolicy, attempts: int) -> bool:
    """Tell whether a Run is tried again that was lost with ``attempts`` Attempts (R12.1).

    A policy that retries without a declaration of safety is refused when it is made.
    """
    return policy.retry_on_lost and policy.allows_another(attempts)


def lost_key(attempt_id: str) -> str:
    """The dedupe key of attempt.lost."""
    return f"lost:{attempt_id}"


def run_lost_key(attempt_id: str) -> str:
    """The dedupe key of run.lost."""
    return f"run-lost:{attempt_id}"


def stop_key(run_id: str, attempt_id: str | None) -> str:
    """The dedupe key of run.stop_confirmed."""
    return f"stop-confirmed:{run_id}:{attempt_id or 'none'}"


def retry_key(run_id: str, number: int) -> str:
    """The dedupe key of what becomes of a Run that was lost with its Attempt of that number."""
    return f"retry:{run_id}:{number}"


def requeue_key(run_id: str, number: int) -> str:
    """The dedupe key of run.queued after the Attempt of that number."""
    return f"requeue:{run_id}:{number}"


def _recorded_evidence(history: History) -> Evidence:
    attempt = history.latest_attempt
    if attempt is None:
        return Evidence.PRE_START
    if attempt.evidence is None:
        msg = "only a lost attempt has its evidence recorded"
        raise ValueError(msg)
    return attempt.evidence


def _latest(history: History) -> Attempt:
    attempt = history.latest_attempt
    if attempt is None:
        msg = "a run is lost or retried with an attempt only"
        raise LookupError(msg)
    return attempt

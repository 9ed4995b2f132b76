"""
What each command records, decided purely (R2.6).

A decision takes a Run's history and arguments and gives the drafts of facts to record, in the order of
``lifecycle.COMMANDS``, or says in a word why nothing is. It reads no clock, draws no id and touches nothing: times
and ids come in. A status that the tables do not allow is refused as ``IllegalTransition``; a Run that another system
executes as ``LegacyRun``. What recovery decides is in ``recovery.lost``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runfacts.domain.attempt import Attempt
from runfacts.domain.errors import AttemptNotFound, IllegalTransition, LegacyRun, UnknownFactsInRun
from runfacts.domain.history import Draft, History
from runfacts.domain.lifecycle import (
    AttemptStatus,
    ExecutionOwner,
    IntentKind,
    RunStatus,
    attempt_end,
    require_attempt_transition,
    require_run_transition,
    run_end,
)
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payload_parts import OutcomeKind
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptLateCallbackIgnored,
    AttemptRunning,
    AttemptStarting,
    AttemptSucceeded,
    AttemptTimedOut,
    Payload,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunQueued,
    RunRetryWait,
    RunRunning,
    RunStopConfirmed,
    RunSucceeded,
    RunTimedOut,
    RunWaitingApproval,
)
from runfacts.domain.texts import REASON_MAX, bounded


class Refusal(StrEnum):
    """Why a command records nothing, or ends what it was asked to begin."""

    REPEATED = "repeated"
    """It is done already."""
    CANCELLATION_REQUESTED = "cancellation_requested"
    """Somebody asked the Run to stop (R2.8, R6.4)."""
    NOT_QUEUED = "not_queued"
    """The Run does not wait to be claimed."""
    NOT_DUE = "not_due"
    """The retry's wait is not over (R12.1)."""
    ENDED = "ended"
    """The Run or the Attempt has ended (R2.7)."""
    RECOVERING = "recovering"
    """Recovery is finding out what became of the Attempt (R10.3)."""
    NOT_REQUESTED = "not_requested"
    """Nobody asked the Run to stop (R13.2)."""
    NOT_LOST = "not_lost"
    """The Run is not lost, or not any more (R12.1)."""
    GROUP_LIVES = "group_lives"
    """Members of the process group are not proven gone.

    The Run has not stopped (R6.5), or must not start again (R12.1).
    """


@dataclass(frozen=True, slots=True)
class Decision:
    """What to record, and why it is not what was asked for, if it is not."""

    drafts: tuple[Draft, ...] = ()
    refusal: Refusal | None = None


_REPEATED: Final = Decision(refusal=Refusal.REPEATED)
_ENDED: Final = Decision(refusal=Refusal.ENDED)

_RUN_END: Final[dict[RunStatus, type[RunCancelled | RunTimedOut]]] = {
    RunStatus.CANCELLED: RunCancelled,
    RunStatus.TIMED_OUT: RunTimedOut,
}
_ATTEMPT_END: Final[dict[AttemptStatus, type[AttemptCancelled | AttemptTimedOut]]] = {
    AttemptStatus.CANCELLED: AttemptCancelled,
    AttemptStatus.TIMED_OUT: AttemptTimedOut,
}
_REPORTED: Final[dict[OutcomeKind, tuple[AttemptStatus, RunStatus, type[Payload], type[Payload]]]] = {
    OutcomeKind.SUCCEEDED: (AttemptStatus.SUCCEEDED, RunStatus.SUCCEEDED, AttemptSucceeded, RunSucceeded),
    OutcomeKind.FAILED: (AttemptStatus.FAILED, RunStatus.FAILED, AttemptFailed, RunFailed),
    OutcomeKind.CANCELLED: (AttemptStatus.CANCELLED, RunStatus.CANCELLED, AttemptCancelled, RunCancelled),
    OutcomeKind.TIMED_OUT: (AttemptStatus.TIMED_OUT, RunStatus.TIMED_OUT, AttemptTimedOut, RunTimedOut),
}


def require_runtime(history: History) -> None:
    """Refuse what this product must not execute, or does not wholly understand (R2.10, R3.7)."""
    if history.unknown_types:
        raise UnknownFactsInRun(history.run_id, tuple(dict.fromkeys(history.unknown_types)))
    if history.run.execution_owner is not ExecutionOwner.RUNTIME:
        raise LegacyRun(history.run_id)


def require_attempt(history: History, attempt_id: str) -> Attempt:
    """Give an Attempt of the Run (``AttemptNotFound``)."""
    try:
        return history.attempts[attempt_id]
    except KeyError:
        raise AttemptNotFound(attempt_id) from None


def create(payload: RunCreated, *, queued: bool = False) -> Decision:
    """Record that a Run exists, and that it waits to be claimed where ``queued`` says so."""
    return Decision((Draft(payload), Draft(RunQueued())) if queued else (Draft(payload),))


def queue(history: History, now_ms: int) -> Decision:
    """Let the Run wait to be claimed; a retry only when it is due (R12.1)."""
    run = history.run
    if run.status is RunStatus.QUEUED:
        return _REPEATED
    if run.terminal:
        return _ENDED
    require_run_transition(run.status, RunStatus.QUEUED)
    if run.status is RunStatus.LOST:
        # A lost Run is queued again by the retry authority alone, which has its own claims (R12.1).
        return Decision(refusal=Refusal.NOT_DUE)
    if run.retry_due_at_ms is not None and now_ms < run.retry_due_at_ms:
        return Decision(refusal=Refusal.NOT_DUE)
    if run.group_left and run.status is RunStatus.RETRY_WAIT:
        # The retry authority queues it when the last Attempt's group is proven gone (R12.1): never two of one run at
        # once.
        return Decision(refusal=Refusal.GROUP_LIVES)
    return Decision((Draft(RunQueued()),))


def claim(history: History, attempt_id: str, claimed: AttemptClaimed, queue_at_ms: int | None = None) -> Decision:
    """Begin the next Attempt (R2.8). ``claimed.number`` must be ``next_number(history)``.

    With ``queue_at_ms``, which is now, a Run that could be queued is, so that nobody else can take it in between.
    """
    run = history.run
    if run.intent is not None:
        return Decision(refusal=Refusal.CANCELLATION_REQUESTED)
    queued: tuple[Draft, ...] = ()
    if queue_at_ms is not None and run.status in {RunStatus.CREATED, RunStatus.RETRY_WAIT}:
        decision = queue(history, queue_at_ms)
        if decision.refusal is not None:
            return decision
        queued = decision.drafts
    elif run.status is not RunStatus.QUEUED:
        return Decision(refusal=Refusal.NOT_QUEUED)
    require_run_transition(RunStatus.QUEUED, RunStatus.DISPATCHING)
    return Decision(
        (
            *queued,
            Draft(RunDispatching(number=claimed.number), attempt_id),
            Draft(claimed, attempt_id),
        )
    )


def next_number(history: History) -> int:
    """The number of the Run's next Attempt: 1, 2, 3 … (R2.8)."""
    return len(history.attempts) + 1


def start(history: History, attempt_id: str, deadline_at_ms: int | None) -> Decision:
    """Pass the start barrier, or end Attempt and Run if an intent was first (R6.4)."""
    attempt = require_attempt(history, attempt_id)
    if not attempt.active:
        return _ENDED
    if attempt.status is not AttemptStatus.CLAIMED:
        return _REPEATED
    if history.run.intent is not None:
        return Decision(_end_both(history, attempt), Refusal.CANCELLATION_REQUESTED)
    require_attempt_transition(attempt.status, AttemptStatus.STARTING)
    return Decision((Draft(AttemptStarting(deadline_at_ms=deadline_at_ms), attempt_id),))


def confirm_running(history: History, attempt_id: str) -> Decision:
    """Confirm the process, or end Attempt and Run if an intent was first (R6.4)."""
    attempt = require_attempt(history, attempt_id)
    if not attempt.active:
        return _ENDED
    if attempt.status is AttemptStatus.RUNNING:
        return _REPEATED
    if history.run.intent is not None and attempt.status is AttemptStatus.STARTING:
        return Decision(_end_both(history, attempt), Refusal.CANCELLATION_REQUESTED)
    require_attempt_transition(attempt.status, AttemptStatus.RUNNING)
    require_run_transition(history.run.status, RunStatus.RUNNING)
    return Decision((Draft(AttemptRunning(), attempt_id), Draft(RunRunning(), attempt_id)))


def wait_for_approval(history: History, attempt_id: str, reason: str | None) -> Decision:
    """Let the Run wait for somebody's approval; its Attempt stays active (R2.3)."""
    if not require_attempt(history, attempt_id).active:
        return _ENDED
    if history.run.status is RunStatus.WAITING_APPROVAL:
        return _REPEATED
    require_run_transition(history.run.status, RunStatus.WAITING_APPROVAL)
    return Decision((Draft(waiting_approval(reason), attempt_id),))


def waiting_approval(reason: str | None) -> RunWaitingApproval:
    """What the fact of waiting says."""
    return RunWaitingApproval.model_validate({} if reason is None else bounded(reason, REASON_MAX).fields("reason"))


def go_on(history: History, attempt_id: str) -> Decision:
    """Let a waiting Run go on."""
    if not require_attempt(history, attempt_id).active:
        return _ENDED
    if history.run.status is RunStatus.RUNNING:
        return _REPEATED
    if history.run.status is not RunStatus.WAITING_APPROVAL:
        # The table lets a dispatching Run become running, but only by ``confirm_running``: it needs the process (R2.6).
        raise IllegalTransition("run", history.run.status.value, RunStatus.RUNNING.value)
    require_run_transition(history.run.status, RunStatus.RUNNING)
    return Decision((Draft(RunRunning(), attempt_id),))


def finish(history: History, attempt_id: str, outcome: Outcome, now_ms: int, *, group_left: bool) -> Decision:
    """End the Attempt with what was reported, and move the Run with it (R2.7, R6.5, R12.1).

    ``group_left``: members of the command's process group are not proven gone.
    """
    attempt = require_attempt(history, attempt_id)
    if not attempt.active:
        return _ENDED
    if history.run.intent is not None:
        if group_left:
            return Decision(refusal=Refusal.GROUP_LIVES)
        return Decision(_end_both(history, attempt, outcome))
    attempt_status, run_status, attempt_payload, run_payload = _REPORTED[outcome.kind]
    fields = outcome.fields()
    left = {"group_left": True} if group_left else {}
    policy = history.run.policy
    drafts = [Draft(attempt_payload.model_validate(fields | left), attempt_id)]
    require_attempt_transition(attempt.status, attempt_status)
    if run_status is RunStatus.FAILED and policy.retry_on_failure and policy.allows_another(attempt.number):
        require_run_transition(history.run.status, RunStatus.RETRY_WAIT)
        due_at_ms = max(now_ms, history.recorded_at_ms) + policy.wait_ms(attempt.number)
        drafts.append(Draft(RunRetryWait.model_validate({"due_at_ms": due_at_ms} | left), attempt_id))
    else:
        require_run_transition(history.run.status, run_status)
        drafts.append(Draft(run_payload.model_validate(fields | left), attempt_id))
    return Decision(tuple(drafts))


def late_callback(attempt_id: str, sequence: int, reported: str, outcome: Outcome | None = None) -> Draft:
    """Note a report that came after the Attempt had ended (R2.7)."""
    return Draft(
        AttemptLateCallbackIgnored(
            sequence=sequence,
            reported=reported,
            exit_code=None if outcome is None else outcome.exit_code,
            signal=None if outcome is None else outcome.signal,
        ),
        attempt_id,
    )


def request_cancellation(history: History, kind: IntentKind, reason: str | None) -> Decision:
    """Record that somebody wants the Run to stop; end it where there is nothing to stop (R6.1, R6.3)."""
    run = history.run
    if run.terminal:
        return _ENDED
    if run.intent is not None:
        return _REPEATED
    requested = Draft(cancel_requested(kind, reason), _active_id(history))
    if history.active_attempt is not None:
        return Decision((requested,))
    end = run_end(run.status, kind)
    require_run_transition(run.status, end)
    return Decision((requested, Draft(_RUN_END[end](reason=kind))))


def cancel_requested(kind: IntentKind, reason: str | None) -> RunCancelRequested:
    """What the fact of asking says."""
    texts = {} if reason is None else bounded(reason, REASON_MAX).fields("reason")
    return RunCancelRequested.model_validate({"kind": kind} | texts)


def confirm_stopped(history: History, confirmation: RunStopConfirmed) -> Decision:
    """End a Run that was asked to stop because it is known to have stopped: Attempt and Run together (R12.2, R13.2)."""
    run = history.run
    if run.terminal:
        return _ENDED
    if run.intent is None:
        return Decision(refusal=Refusal.NOT_REQUESTED)
    attempt = history.active_attempt
    confirmed = Draft(confirmation, _active_id(history))
    if attempt is not None:
        return Decision((confirmed, *_end_both(history, attempt)))
    end = run_end(run.status, run.intent.kind)
    require_run_transition(run.status, end)
    return Decision((confirmed, Draft(_RUN_END[end](reason=run.intent.kind))))


def _active_id(history: History) -> str | None:
    attempt = history.active_attempt
    return None if attempt is None else attempt.id


def _end_both(history: History, attempt: Attempt, outcome: Outcome | None = None) -> tuple[Draft, ...]:
    """End Attempt and Run as the intent says (E of R2.6), with what was observed, if something was (R6.5)."""
    intent = history.run.intent
    if intent is None:
        msg = "only an intent ends a run this way"
        raise LookupError(msg)
    observed = {} if outcome is None else {"observed": outcome.kind} | outcome.fields()
    fields = {"reason": intent.kind} | observed
    attempt_to = attempt_end(attempt.status, intent.kind)
    run_to = run_end(history.run.status, intent.kind)
    require_attempt_transition(attempt.status, attempt_to)
    require_run_transition(history.run.status, run_to)
    return (
        Draft(_ATTEMPT_END[attempt_to].model_validate(fields), attempt.id),
        Draft(_RUN_END[run_to].model_validate(fields), attempt.id),
    )

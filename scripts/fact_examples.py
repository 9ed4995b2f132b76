"""
One example of every type of fact, for the catalogue in docs/facts.md.

The examples are the histories of a few made-up Runs, recorded and hashed by the product's own code. Ids and times are
fixed, so that the catalogue changes only when what is stored changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runfacts.domain.actors import Actor, ActorType
from runfacts.domain.facts import Fact
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.lifecycle import ExecutionOwner, IntentKind
from runfacts.domain.outcomes import Outcome
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
    Escalation,
    Payload,
    RunCancelDispatchAbandoned,
    RunCancelDispatchBlocked,
    RunCancelDispatched,
    RunCancelDispatchFailed,
    RunCancelDispatchRearmed,
    RunCancelDispatchTakenOver,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunImported,
    RunLost,
    RunQueued,
    RunRecoveryAttested,
    RunRecoveryManual,
    RunRecoveryReleased,
    RunRetryWait,
    RunRunning,
    RunStopConfirmed,
    RunSucceeded,
    RunTimedOut,
    RunWaitingApproval,
)
from runfacts.domain.retry import RetryPolicy, Safety

_BEGAN_AT_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z
_ANA = Actor.user("ana")
_BO = Actor.operator("bo")
_WORKER = Actor.worker("6b0f5c1e")
_SUPERVISOR = Actor(ActorType.SUPERVISOR, "6b0f5c1e")
_RECONCILER = Actor(ActorType.RECONCILER, "6b0f5c1e")
_OUTCOME = Outcome.failed(exit_code=7, error_code="no_login", error_summary="refused: password=hunter2").fields()

Step = tuple[Actor, Payload]


def examples() -> Iterator[Fact]:
    """Give the facts of all made-up Runs: at least one of every type."""
    stories = (_retried(), _cancelled(), _timed_out(), _lost(), _confirmed(), _failed(), _imported())
    for number, story in enumerate(stories, start=1):
        yield from _record(number, story)


def _retried() -> Sequence[Step]:
    policy = RetryPolicy(max_attempts=2, retry_on_failure=True)
    return (
        (_ANA, RunCreated(task="nightly import", policy=policy, idempotency_key="import-2026-01-01")),
        (_ANA, RunQueued()),
        *_up(1),
        (_WORKER, RunWaitingApproval(reason="production data")),
        (_BO, RunRunning()),
        (_WORKER, AttemptFailed.model_validate(_OUTCOME)),
        (_WORKER, RunRetryWait(due_at_ms=_BEGAN_AT_MS + 60_000)),
        (Actor.scheduler("nightly"), RunQueued()),
        *_up(2),
        (_WORKER, AttemptSucceeded(exit_code=0)),
        (_WORKER, RunSucceeded(exit_code=0)),
        (_WORKER, AttemptLateCallbackIgnored(sequence=3, reported="failed", exit_code=7)),
    )


def _cancelled() -> Sequence[Step]:
    attempt_id = _attempt_id(2, 1)
    return (
        (_ANA, RunCreated(task="rebuild search index", policy=RetryPolicy())),
        (_ANA, RunQueued()),
        *_up(1),
        (_ANA, RunCancelRequested(kind=IntentKind.USER, reason="wrong branch")),
        (
            _SUPERVISOR,
            RunCancelDispatchTakenOver(attempt_id=attempt_id, dispatch_count=2, previous_owner="91c04d27"),
        ),
        (
            _SUPERVISOR,
            RunCancelDispatchFailed(attempt_id=attempt_id, dispatch_count=2, result="controller_missing"),
        ),
        (
            _SUPERVISOR,
            RunCancelDispatchBlocked(attempt_id=attempt_id, dispatch_count=3, result="not_permitted"),
        ),
        (_BO, RunCancelDispatchRearmed(attempt_id=attempt_id, delay_ms=1_000, reason="permissions mended")),
        (
            _SUPERVISOR,
            RunCancelDispatched(
                attempt_id=attempt_id,
                dispatch_count=4,
                result="termination_requested",
                escalation=Escalation.TERM,
            ),
        ),
        (_WORKER, AttemptCancelled(reason=IntentKind.USER, observed=OutcomeKind.FAILED, signal=15)),
        (_WORKER, RunCancelled(reason=IntentKind.USER, observed=OutcomeKind.FAILED, signal=15)),
    )


def _timed_out() -> Sequence[Step]:
    return (
        (_ANA, RunCreated(task="export", policy=RetryPolicy(), timeout_ms=60_000)),
        (_ANA, RunQueued()),
        *_up(1, deadline_at_ms=_BEGAN_AT_MS + 64_000),
        (_SUPERVISOR, RunCancelRequested(kind=IntentKind.TIMEOUT)),
        (_WORKER, AttemptTimedOut(reason=IntentKind.TIMEOUT, observed=OutcomeKind.FAILED, signal=9)),
        (_WORKER, RunTimedOut(reason=IntentKind.TIMEOUT, observed=OutcomeKind.FAILED, signal=9)),
    )


def _lost() -> Sequence[Step]:
    policy = RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.IDEMPOTENT)
    return (
        (_ANA, RunCreated(task="sync", policy=policy)),
        (_ANA, RunQueued()),
        *_up(1),
        (_RECONCILER, RunRecoveryManual(purpose="recovery", reason="identity_unverifiable")),
        (_BO, RunRecoveryReleased(purpose="recovery", reason="the host is back")),
        (_RECONCILER, RunRecoveryManual(purpose="recovery", reason="identity_unverifiable")),
        (_BO, RunRecoveryAttested(reason="the machine was scrapped")),
        (_BO, AttemptLost(evidence=Evidence.ATTESTED)),
        (_BO, RunLost(evidence=Evidence.ATTESTED)),
    )


def _confirmed() -> Sequence[Step]:
    return (
        (_ANA, RunCreated(task="report", policy=RetryPolicy())),
        (_ANA, RunQueued()),
        *_up(1),
        (_ANA, RunCancelRequested(kind=IntentKind.USER)),
        (_BO, RunCancelDispatchAbandoned(attempt_id=_attempt_id(5, 1), reason="the host is gone for good")),
        (_RECONCILER, RunStopConfirmed(evidence=Evidence.NOT_RUNNING, provider_type="local")),
        (_RECONCILER, AttemptCancelled(reason=IntentKind.USER)),
        (_RECONCILER, RunCancelled(reason=IntentKind.USER)),
    )


def _failed() -> Sequence[Step]:
    return (
        (_ANA, RunCreated(task="backup", policy=RetryPolicy())),
        (_ANA, RunQueued()),
        *_up(1),
        (_WORKER, AttemptFailed.model_validate(_OUTCOME)),
        (_WORKER, RunFailed.model_validate(_OUTCOME)),
    )


def _imported() -> Sequence[Step]:
    return (
        (_ANA, RunCreated(task="backup", policy=RetryPolicy())),
        (_ANA, RunQueued()),
        *_up(1),
        (_BO, RunImported(execution_owner=ExecutionOwner.LEGACY)),
    )


def _up(number: int, deadline_at_ms: int | None = None) -> Sequence[Step]:
    """Give what every Attempt begins with."""
    return (
        (_WORKER, RunDispatching(number=number)),
        (
            _WORKER,
            AttemptClaimed(number=number, executor_type="local", gated=True, worker_id=_WORKER.id),
        ),
        (_WORKER, AttemptStarting(deadline_at_ms=deadline_at_ms)),
        (_WORKER, AttemptRunning()),
        (_WORKER, RunRunning()),
    )


def _record(number: int, story: Sequence[Step]) -> Iterator[Fact]:
    history = History(_id(number), "shop")
    attempts = 0
    for second, (actor, payload) in enumerate(story):
        if isinstance(payload, RunDispatching):
            attempts += 1
        attempt_id = _attempt_id(number, attempts) if attempts and not isinstance(payload, RunQueued) else None
        by = RecordedBy(actor, _BEGAN_AT_MS + second * 1_000, correlation_id="release-42")
        yield from history.record([Draft(payload, attempt_id, _dedupe_key(payload))], by)


def _dedupe_key(payload: Payload) -> str | None:
    """Give the key that the product uses for the fact (R7.4)."""
    match payload:
        case RunCancelDispatchTakenOver():
            return f"cancel-takeover:{payload.attempt_id}:{payload.dispatch_count}"
        case RunCancelDispatched() | RunCancelDispatchFailed() | RunCancelDispatchBlocked():
            return f"cancel-dispatch:{payload.attempt_id}:{payload.dispatch_count}"
        case _:
            return None


def _id(number: int) -> str:
    return f"019b76da-a800-7000-8000-{number:012x}"


def _attempt_id(run: int, attempt: int) -> str:
    return _id(run * 0x100 + attempt)

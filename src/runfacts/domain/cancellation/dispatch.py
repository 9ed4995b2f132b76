"""
CancellationDispatch: the claim to deliver one Run's cancellation (R7).

One row per Run, bound for ever to the Attempt that was active when the cancellation was requested. Whoever wants to
deliver it claims the row for a time; each claim is one *term*, named by owner, token and version, so that a late
settle of an old term changes nothing. A lease that has expired proves nothing about the process: the next term proves
it again before every signal.

This file decides, from what a row says and what the store found its times to be worth; it reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runfacts.domain.attempt import Attempt
from runfacts.domain.cancellation.results import FINISHED_DISPATCH, DispatchResult, DispatchStatus
from runfacts.domain.history import History
from runfacts.domain.lifecycle import ExecutionOwner

NOT_DUE_MAX_MS: Final = 24 * 60 * 60 * 1_000
"""A next attempt further ahead than this comes from a clock that has stepped back since, and is due (R5.3, R15)."""


@dataclass(frozen=True, slots=True)
class CancellationDispatch:
    """The row, as it is stored; the token only as its digest (R7.1)."""

    run_id: str
    attempt_id: str
    executor_type: str
    scope: str
    status: DispatchStatus
    version: int
    dispatch_count: int
    tries_since_rearm: int
    next_attempt_at_ms: int | None
    due_at_ms: int | None
    lease_owner: str | None
    lease_token_digest: str | None
    lease_expires_at_ms: int | None
    last_result: DispatchResult | None
    last_dispatched_at_ms: int | None
    created_at_ms: int
    updated_at_ms: int


class Times(StrEnum):
    """What a row's times are worth at the moment of the decision; the store judges (R5)."""

    LEASE_VALID = "lease_valid"
    NOT_DUE = "not_due"
    DUE = "due"
    """No valid lease, and nothing to wait for."""


class ClaimAnswer(StrEnum):
    """What a claim is answered where it is not granted (R7.2)."""

    NOT_ELIGIBLE = "not_eligible"
    BINDING_CONFLICT = "binding_conflict"
    DISPATCHED = "dispatched"
    BLOCKED = "blocked"
    LEASED = "leased"
    NOT_DUE = "not_due"


@dataclass(frozen=True, slots=True)
class Grant:
    """A claim that may be granted."""

    taken_over_from: str | None
    """The owner whose lease had expired, where there was one (R1.5)."""


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The claim would be one try too many: the row becomes blocked with result ``limit`` (R7.5)."""


def eligible_attempt(
    history: History, attempt_id: str, requested_at_ms: int, served: frozenset[tuple[str, str]], scope: str
) -> Attempt | None:
    """Give the Attempt whose cancellation may be claimed; None is ``not_eligible`` (R7.2)."""
    run = history.run
    if run.terminal or run.execution_owner is not ExecutionOwner.RUNTIME or history.unknown_types:
        return None
    if run.intent is None or run.intent.requested_at_ms != requested_at_ms:
        return None
    attempt = history.attempts.get(attempt_id)
    if attempt is None or not attempt.active or (attempt.executor_type, scope) not in served:
        return None
    # More than one, which the tables do not allow (R2.8): fail closed, nobody guesses which is meant (R9.1).
    return attempt if sum(other.active for other in history.attempts.values()) == 1 else None


def decide_claim(
    row: CancellationDispatch | None, attempt_id: str, times: Times, dispatch_limit: int
) -> Grant | Exhausted | ClaimAnswer:
    """Answer a claim of an eligible Attempt: the first that applies (R7.2). A missing row is created by the claim."""
    if row is None:
        return Grant(None)
    if row.attempt_id != attempt_id:
        # Fail closed: the row is bound for ever, and the newest process is nobody's guess.
        return ClaimAnswer.BINDING_CONFLICT
    if row.status in FINISHED_DISPATCH:
        return ClaimAnswer(row.status.value)
    if row.status is DispatchStatus.LEASED and times is Times.LEASE_VALID:
        return ClaimAnswer.LEASED
    if times is Times.NOT_DUE:
        return ClaimAnswer.NOT_DUE
    if row.tries_since_rearm >= dispatch_limit:
        return Exhausted()
    return Grant(row.lease_owner if row.status is DispatchStatus.LEASED else None)


def backoff_ms(tries: int, *, base_ms: int, max_ms: int, exponent_cap: int) -> int:
    """How long to wait after ``tries`` tries since the last rearm, in milliseconds (R7.5)."""
    return min(max_ms, base_ms << min(max(tries - 1, 0), exponent_cap))


def settle_key(attempt_id: str, dispatch_count: int) -> str:
    """The dedupe key of a settle's fact (R7.4)."""
    return f"cancel-dispatch:{attempt_id}:{dispatch_count}"


def takeover_key(attempt_id: str, dispatch_count: int) -> str:
    """The dedupe key of a take-over's fact; the count is the new one (R7.4)."""
    return f"cancel-takeover:{attempt_id}:{dispatch_count}"


def limit_key(attempt_id: str, dispatch_count: int) -> str:
    """The dedupe key of the fact that the tries are used up (R7.4)."""
    return f"cancel-limit:{attempt_id}:{dispatch_count}"


def verb_key(verb: str, item: str, expected_version: int) -> str:
    """The dedupe key of an operator's verb (R7.4)."""
    return f"{verb}:{item}:{expected_version}"

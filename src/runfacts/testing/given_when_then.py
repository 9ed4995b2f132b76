"""
Given facts, when something is decided or commanded, then these facts (R14.3).

``given(…)`` is for pure decisions: it replays facts into a history and needs no database. ``given_in(ledger, …)``
records the same facts in a real ledger, with the rows of current state and the claims that go with them, so that a
command finds what it would find in real life.

Facts are written as payloads, in the order of the Run's ledger: ``RunCreated(…), RunQueued()``. An Attempt begins
with its ``RunDispatching`` and ``AttemptClaimed``; facts that follow belong to the latest one. A ``Draft`` says its
Attempt itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from runfacts.domain.actors import Actor
from runfacts.domain.answers import AttemptClaim
from runfacts.domain.attempt import Attempt
from runfacts.domain.decisions import Decision, Refusal
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.leases import TokenPurpose, digest
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptPayload,
    AttemptRunning,
    Payload,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunLost,
    RunQueued,
    RunRetryWait,
)
from runfacts.domain.recovery.claims import Purpose
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.transactions import Change, Transaction
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.stores.executions import (
    END_EXECUTION,
    INSERT_EXECUTION,
    LEAVE_TO_STOP,
    STORE_HANDLE,
    LeaseTimes,
)
from runfacts.infrastructure.stores.recovery_rows import available, place_of, resolved
from runfacts.infrastructure.stores.writes import Before, write
from runfacts.infrastructure.tokens import new_id, new_token
from runfacts.testing.clock import EPOCH_MS

Answer = TypeVar("Answer")

RUN_ID: Final = "01900000-0000-7000-8000-000000000000"
"""The id of the Run that ``given`` makes."""
SOMEBODY: Final = Actor.system("given")
"""The actor of given facts."""
HANDLE: Final = "given"
"""The handle of a given Attempt that is gated and runs."""


def attempt_id(number: int) -> str:
    """Give the id of the Attempt of that number of the Run that ``given`` makes."""
    return f"01900000-0000-7000-8000-{number:012d}"


@dataclass(frozen=True, slots=True)
class Then:
    """What came of it: check it with ``then``."""

    recorded: tuple[Payload, ...]
    """The payloads of the new facts."""
    refusal: Refusal | None = None

    def then(self, *expected: Payload, refusal: Refusal | None = None) -> None:
        """Insist on exactly these facts, in this order, and on this refusal, or on none."""
        _insist(self.recorded, expected)
        if self.refusal is not refusal:
            msg = f"refused as {self.refusal}, not as {refusal}"
            raise AssertionError(msg)


@dataclass(frozen=True, slots=True)
class Given:
    """A Run's history, for decisions."""

    history: History

    def when(self, decide: Callable[[History], Decision]) -> Then:
        """Decide on the history; what the decision raises goes up."""
        decision = decide(self.history)
        return Then(tuple(draft.payload for draft in decision.drafts), decision.refusal)


def given(*past: Payload | Draft, at_ms: int = EPOCH_MS) -> Given:
    """Replay facts that were all recorded at ``at_ms``; its Attempts have the ids of ``attempt_id``."""
    history = History(RUN_ID, "default")
    history.record(_drafts(past, attempt_id), RecordedBy(SOMEBODY, at_ms))
    return Given(history)


@dataclass(frozen=True, slots=True)
class Answered(Generic[Answer]):
    """What a command answered and recorded: check it with ``then``."""

    answer: Answer
    recorded: tuple[Payload, ...]
    """The payloads of the new facts."""

    def then(self, *expected: Payload) -> Answer:
        """Insist on exactly these facts, in this order; give the answer, to be looked at."""
        _insist(self.recorded, expected)
        return self.answer


@dataclass(frozen=True, slots=True)
class GivenRun:
    """A Run that is recorded in a ledger, with the claims of its Attempts."""

    ledger: Ledger
    run_id: str
    claims: tuple[AttemptClaim, ...]

    @property
    def claim(self) -> AttemptClaim:
        """The claim of the latest Attempt."""
        return self.claims[-1]

    def when(self, command: Callable[[], Answer]) -> Answered[Answer]:
        """Run a command, and see what it recorded about this Run; what it raises goes up."""
        before = len(self.ledger.history(self.run_id))
        answer = command()
        new = self.ledger.history(self.run_id)[before:]
        return Answered(answer, tuple(fact.payload for fact in new))


def given_in(ledger: Ledger, *past: Payload | Draft, project: str = "default", lease_ms: int = 30_000) -> GivenRun:
    """Record facts of a new Run in a ledger, now, with everything that belongs to them.

    Every Attempt gets an execution whose lease lasts ``lease_ms`` from now, and a claim with good tokens.
    """
    run_id = new_id()
    claims: dict[str, AttemptClaim] = {}
    ids: dict[int, str] = {}
    drafts = _drafts(past, lambda number: ids.setdefault(number, new_id()))
    with ledger.database.transaction() as transaction:
        history = History(run_id, project)
        by = RecordedBy(SOMEBODY, transaction.now_ms())
        for draft in drafts:
            before = Before.of(history)
            waited = history.version > 0 and history.run.status in {RunStatus.LOST, RunStatus.RETRY_WAIT}
            facts = history.record([draft], by)
            if isinstance(draft.payload, AttemptClaimed) and draft.attempt_id is not None:
                attempt = history.attempts[draft.attempt_id]
                claim = AttemptClaim(run_id, attempt.id, attempt.number, new_token(), new_token())
                claims[attempt.id] = claim
                lease = _lease(transaction, by.now_ms, lease_ms)
                execution = _execution(attempt, claim) | lease.columns(by.now_ms)
                changes: tuple[Change, ...] = (Change(INSERT_EXECUTION, execution),)
            else:
                changes = _execution_changes(history, draft, by.now_ms)
            if waited and history.run.status not in {RunStatus.LOST, RunStatus.RETRY_WAIT}:
                changes = (resolved(Purpose.RETRY, place_of(history), by.now_ms), *changes)
            changes = (*_recovery_changes(history, draft, by.now_ms, lease_ms), *changes)
            write(transaction, before, history, facts, changes)
    return GivenRun(ledger, run_id, tuple(claims.values()))


def _drafts(past: Iterable[Payload | Draft], id_of: Callable[[int], str]) -> Iterator[Draft]:
    """Say of each fact to which Attempt it belongs."""
    current: str | None = None
    for item in past:
        if isinstance(item, Draft):
            current = item.attempt_id or current
            yield item
            continue
        if isinstance(item, RunDispatching | AttemptClaimed):
            current = id_of(item.number)
        if current is None and isinstance(item, AttemptPayload):
            msg = f"{item.TYPE} needs an attempt.claimed before it"
            raise ValueError(msg)
        yield Draft(item, None if isinstance(item, RunCreated | RunQueued) else current)


def _execution(attempt: Attempt, claim: AttemptClaim) -> dict[str, object]:
    """Give the execution of an Attempt that was just claimed, but for its lease."""
    return {
        "attempt_id": attempt.id,
        "run_id": attempt.run_id,
        "executor_type": attempt.executor_type,
        "gated": int(attempt.gated),
        "scope": "",
        "worker_id": attempt.worker_id,
        "lease_token_digest": digest(TokenPurpose.LEASE, claim.lease_token),
        "callback_sequence": 0,
        "callback_token_digest": digest(TokenPurpose.CALLBACK, claim.callback_token),
        **dict.fromkeys(("handle", "pid", "deadline_at_ms", "log_path", "receipt_path", "closed_at_ms")),
    }


def _lease(transaction: Transaction, now_ms: int, lease_ms: int) -> LeaseTimes:
    if transaction.dialect != SQLITE:
        return LeaseTimes(now_ms + lease_ms, None, None)
    clock = transaction.clock
    return LeaseTimes(now_ms + lease_ms, clock.boot_id(), clock.boot_ms() + lease_ms)


def _recovery_changes(history: History, draft: Draft, now_ms: int, lease_ms: int) -> tuple[Change, ...]:
    """Say what a fact changes in the rows of recovery: a Run to be stopped or tried again has one (R7.1, R12.1)."""
    place = place_of(history)
    match draft.payload:
        case RunCancelRequested() if history.active_attempt is not None:
            leave = Change(LEAVE_TO_STOP, {"key_attempt_id": history.active_attempt.id})
            return (available(Purpose.STOP, place, now_ms + lease_ms, now_ms), leave)
        case RunLost():
            return (available(Purpose.RETRY, place, now_ms, now_ms),)
        case RunRetryWait(due_at_ms=due_at_ms):
            return (available(Purpose.RETRY, place, due_at_ms, now_ms),)
        case _:
            pass
    if history.run.terminal and history.run.intent is not None and not draft.of_attempt:
        return (resolved(Purpose.STOP, place, now_ms),)
    return ()


def _execution_changes(history: History, draft: Draft, now_ms: int) -> tuple[Change, ...]:
    """Say what a fact changes in the execution that is there."""
    if not draft.of_attempt or draft.attempt_id is None:
        return ()
    attempt = history.attempts[draft.attempt_id]
    key: dict[str, object] = {"key_attempt_id": attempt.id, "expected_sequence": 0, "callback_sequence": 0}
    if isinstance(draft.payload, AttemptRunning) and attempt.gated:
        return (Change(STORE_HANDLE, {"handle": HANDLE, "pid": None, "seen_at_ms": now_ms} | key),)
    if not attempt.active:
        return (Change(END_EXECUTION, key | {"closed_at_ms": now_ms}),)
    return ()


def _insist(recorded: tuple[Payload, ...], expected: tuple[Payload, ...]) -> None:
    if recorded != expected:
        lines = [
            "recorded:",
            *(f"  {item.TYPE} {item!r}" for item in recorded),
            "expected:",
            *(f"  {item.TYPE} {item!r}" for item in expected),
        ]
        raise AssertionError("\n".join(lines))

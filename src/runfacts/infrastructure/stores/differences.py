"""
What is wrong with what is recorded of one Run: all comparisons of a verification (R1.3, R2, R3, R14.2).

Of the ledger alone: sequences are dense and positions rise with them; the hash chain holds; aggregate versions are
dense; times never go back; dedupe keys are unique; payloads are canonical and fit their types; every fact belongs to
its Run's project and to the aggregate that its type speaks of; every transition is one of the tables'; Attempts are
numbered 1, 2, 3 … and at most one is active. Of the rows: ``runs`` and ``attempts`` are what the facts amount to, and
every Attempt has its execution, which says what its facts say. Of claims: none is left over, and a Run that somebody
has to look after has its row, or nobody ever would (R12).

A difference is named where it is, and not again in what follows from it: behind a missing fact the chain goes on from
the next one, and a fact that cannot be read, or that a later release wrote, leaves open what it did.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from eventsourcing.domain import EventSourcingError
from sqlalchemy import Column

from runfacts.domain.attempt import ATTEMPT_STATUS_AFTER, Attempt
from runfacts.domain.canonical import GENESIS, canonical_json
from runfacts.domain.facts import MALFORMED, Fact, UnknownPayload
from runfacts.domain.history import History
from runfacts.domain.lifecycle import (
    ACTIVE_ATTEMPT,
    ATTEMPT_TRANSITIONS,
    RUN_TRANSITIONS,
    RUN_WITH_ATTEMPT,
    AttemptStatus,
    ExecutionOwner,
    RunStatus,
)
from runfacts.domain.payloads import AttemptClaimed, AttemptPayload
from runfacts.domain.recovery.claims import ClaimState, Purpose
from runfacts.domain.run import RUN_STATUS_AFTER
from runfacts.domain.views import Difference
from runfacts.infrastructure.database.tables import attempts as attempts_table
from runfacts.infrastructure.database.tables import executions as executions_table
from runfacts.infrastructure.database.tables import runs as runs_table
from runfacts.infrastructure.database.transactions import Row
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of
from runfacts.infrastructure.stores.state import attempt_row, run_row

_FIELDS: Final[tuple[tuple[str, type, bool], ...]] = tuple(
    (column.name, column.type.python_type, bool(column.nullable)) for column in FACT_COLUMNS
)
# What a Run's row says of its ledger, also where some of its facts cannot be understood.
_OF_THE_LEDGER: Final = frozenset({"run_id", "project", "version", "head_hash", "created_at_ms", "updated_at_ms"})
_SEQUENCE: Final = [name for name, _, _ in _FIELDS].index("sequence")

_Stored = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that is recorded of one Run, as it was at one moment."""

    run_id: str
    facts: tuple[Fact, ...]
    unreadable: tuple[Difference, ...]
    """Values that no fact can have; where there are any, the facts are not compared further."""
    run: _Stored | None
    attempts: dict[str, _Stored]
    executions: dict[str, _Stored]
    claims: dict[str, str]
    """The states of its stop and its retry row, by purpose."""

    @classmethod
    def of(
        cls,
        run_id: str,
        *,
        facts: Sequence[Row],
        run: Row | None,
        attempts: Sequence[Row],
        executions: Sequence[Row],
        claims: Sequence[Row],
    ) -> Self:
        """Take in rows of ``FACT_COLUMNS`` and whole rows of the other tables."""
        unreadable = tuple(item for row in facts for item in _unreadable(run_id, row))
        return cls(
            run_id,
            () if unreadable else tuple(map(fact_of, facts)),
            unreadable,
            None if run is None else _stored(runs_table.c, run),
            {str(row[0]): _stored(attempts_table.c, row) for row in attempts},
            {str(row[0]): _stored(executions_table.c, row) for row in executions},
            {str(purpose): str(state) for purpose, state in claims},
        )

    @property
    def empty(self) -> bool:
        """Whether nothing is recorded of that Run."""
        return not (self.facts or self.unreadable or self.run or self.attempts or self.executions)


def run_differences(recorded: Recorded) -> Iterator[Difference]:
    """Give every difference of one Run."""
    yield from recorded.unreadable
    if recorded.unreadable:
        return
    yield from ledger_differences(recorded.run_id, recorded.facts)
    yield from _row_differences(recorded)


def ledger_differences(run_id: str, facts: Sequence[Fact]) -> Iterator[Difference]:
    """Check everything about a Run's facts that concerns facts alone."""
    tracker = LedgerTracker(run_id)
    for fact in facts:
        yield from tracker.follow(fact)


class LedgerTracker:
    """Follows a Run's facts and remembers what the next one must go on from."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._next_sequence = 1
        self._previous: str | None = GENESIS
        self._repaired: str | None = None
        self._position = 0
        self._at_ms = 0
        self._project: str | None = None
        self._versions: Counter[str] = Counter()
        self._keys: set[str] = set()
        self._statuses: dict[str, RunStatus | AttemptStatus] = {}
        self._untracked: set[str] = set()
        self._attempts = 0

    def follow(self, fact: Fact) -> Iterator[Difference]:
        """Give what is wrong with the next fact, after all that was followed."""
        if fact.sequence != self._next_sequence:
            missing = self._next_sequence
            yield difference(self._run_id, "sequence", "sequence", fact.sequence, missing, sequence=missing)
            self._previous = None
        self._next_sequence = fact.sequence + 1
        for kind, field, recorded, recomputed in (*self._envelope(fact), *self._payload(fact), *self._life(fact)):
            yield difference(self._run_id, kind, field, recorded, recomputed, sequence=fact.sequence)

    def _envelope(self, fact: Fact) -> Iterator[tuple[str, str, object, object]]:
        # Nobody knows the hash of a fact that is not there.
        computed = fact.hash if self._previous is None else fact.computed_hash(self._previous)
        if computed != fact.hash and (self._repaired is None or fact.computed_hash(self._repaired) != fact.hash):
            yield "hash", "hash", fact.hash, computed
        # If only the stored hash was changed, the next fact still goes on from what it should be.
        self._repaired = computed if computed != fact.hash else None
        self._previous = fact.hash
        if (fact.position or 0) <= self._position:
            yield "position", "position", fact.position, f"above {self._position}"
        self._position = fact.position or 0
        version = self._versions[fact.aggregate_id] + 1
        if fact.aggregate_version != version:
            yield "version", "aggregate_version", fact.aggregate_version, version
        self._versions[fact.aggregate_id] = fact.aggregate_version
        if fact.recorded_at_ms < self._at_ms:
            yield "time", "recorded_at_ms", fact.recorded_at_ms, f"at least {self._at_ms}"
        self._at_ms = fact.recorded_at_ms
        if self._project is not None and fact.project != self._project:
            yield "project", "project", fact.project, self._project
        self._project = self._project or fact.project
        if fact.dedupe_key is not None:
            if fact.dedupe_key in self._keys:
                yield "dedupe", "dedupe_key", fact.dedupe_key, "a key of its own"
            self._keys.add(fact.dedupe_key)

    def _payload(self, fact: Fact) -> Iterator[tuple[str, str, object, object]]:
        if _malformed(fact):
            yield "payload", "payload", fact.payload_text, "a payload of its type"
        elif (text := _canonical(fact.payload_text)) != fact.payload_text:
            yield "payload", "payload", fact.payload_text, text or "canonical JSON"
        if fact.known and isinstance(fact.payload, AttemptPayload) != fact.of_attempt:
            yield "aggregate", "aggregate_id", fact.aggregate_id, f"that of what {fact.type} speaks of"
        if fact.of_attempt and fact.attempt_id != fact.aggregate_id:
            yield "aggregate", "attempt_id", fact.attempt_id, fact.aggregate_id

    def _life(self, fact: Fact) -> Iterator[tuple[str, str, object, object]]:
        """Check transitions (R2.3 to R2.5), and that Attempts come one after the other (R2.8)."""
        aggregate = fact.aggregate_id
        if not fact.known:
            self._untracked.add(aggregate)
            return
        payload = fact.payload
        if isinstance(payload, AttemptClaimed):
            self._attempts += 1
            if payload.number != self._attempts:
                yield "attempt", "number", payload.number, self._attempts
                self._attempts = payload.number
            if any(status in ACTIVE_ATTEMPT for status in self._statuses.values() if isinstance(status, AttemptStatus)):
                yield "attempt", "type", fact.type, "no second active attempt"
        after: dict[type, RunStatus | AttemptStatus] = {**RUN_STATUS_AFTER, **ATTEMPT_STATUS_AFTER}
        target = after.get(type(payload))
        if target is None:
            return
        current = self._statuses.get(aggregate)
        self._statuses[aggregate] = target
        if aggregate in self._untracked:
            self._untracked.discard(aggregate)
        elif target not in _targets(current):
            yield "transition", "type", f"{current or 'nothing'} to {target}", "a transition of the table"


def _targets(current: RunStatus | AttemptStatus | None) -> frozenset[RunStatus | AttemptStatus]:
    match current:
        case RunStatus():
            return frozenset(RUN_TRANSITIONS[current])
        case AttemptStatus():
            return frozenset(ATTEMPT_TRANSITIONS[current])
        case None:
            return frozenset({RunStatus.CREATED, AttemptStatus.CLAIMED})


def _row_differences(recorded: Recorded) -> Iterator[Difference]:
    """Compare the current-state rows with what the facts amount to (R1.3)."""
    run_id = recorded.run_id
    if not recorded.facts:
        yield from _rows_without_facts(recorded)
        return
    if recorded.run is None:
        yield difference(run_id, "run", "run_id", None, run_id)
    history = _replayed(recorded.facts)
    if history is None:
        # The facts make no history; why is named already.
        return
    understood = not history.unknown_types
    stored = recorded.run or {}
    for name, value in run_row(history).items():
        if stored and stored[name] != value and (understood or name in _OF_THE_LEDGER):
            yield difference(run_id, "run", name, stored[name], value)
    if understood:
        if history.active_attempt is not None and history.run.status not in RUN_WITH_ATTEMPT:
            yield difference(run_id, "run", "status", history.run.status, "the status of a run with an attempt")
        yield from _attempt_differences(recorded, history)
        yield from _claim_differences(recorded, history)


def _rows_without_facts(recorded: Recorded) -> Iterator[Difference]:
    run_id = recorded.run_id
    if recorded.run is not None:
        yield difference(run_id, "run", "run_id", run_id, None)
    for attempt_id in recorded.attempts:
        yield difference(run_id, "attempt", "attempt_id", attempt_id, None)
    for attempt_id in recorded.executions.keys() - recorded.attempts.keys():
        yield difference(run_id, "execution", "attempt_id", attempt_id, None)


def _attempt_differences(recorded: Recorded, history: History) -> Iterator[Difference]:
    """Compare the rows of ``attempts`` and ``executions`` (R1.3, R11.1)."""
    run_id = recorded.run_id
    for attempt in history.attempts.values():
        stored = recorded.attempts.get(attempt.id)
        if stored is None:
            yield difference(run_id, "attempt", "attempt_id", None, attempt.id)
        else:
            for name, value in attempt_row(attempt).items():
                if stored[name] != value:
                    yield difference(run_id, "attempt", name, stored[name], value)
        execution = recorded.executions.get(attempt.id)
        if execution is None:
            yield difference(run_id, "execution", "attempt_id", None, attempt.id)
        else:
            yield from _execution_differences(attempt, execution, asked_to_stop=history.run.intent is not None)
    for attempt_id in recorded.attempts.keys() - history.attempts.keys():
        yield difference(run_id, "attempt", "attempt_id", attempt_id, None)
    for attempt_id in recorded.executions.keys() - history.attempts.keys():
        yield difference(run_id, "execution", "attempt_id", attempt_id, None)


def _claim_differences(recorded: Recorded, history: History) -> Iterator[Difference]:
    """See that those look after a Run who should, and nobody else (R12, R14.2).

    What somebody holds is left to its holder, who settles after the Run has moved on (R11.7).
    """
    run = history.run
    if run.execution_owner is not ExecutionOwner.RUNTIME:
        return
    wanted = {
        Purpose.STOP: run.intent is not None and not run.terminal,
        Purpose.RETRY: run.status in {RunStatus.LOST, RunStatus.RETRY_WAIT},
    }
    for purpose, open_row in wanted.items():
        state = recorded.claims.get(purpose)
        if state != ClaimState.CLAIMED and (state not in {None, ClaimState.RESOLVED}) is not open_row:
            expected = "a row that somebody will look at" if open_row else ClaimState.RESOLVED
            yield difference(recorded.run_id, "claim", purpose, state, expected)


def _execution_differences(attempt: Attempt, stored: _Stored, *, asked_to_stop: bool) -> Iterator[Difference]:
    """Compare what an execution says of its Attempt with what the facts say; the rest of it are claims (R1.2)."""
    run_id = attempt.run_id
    said = {
        "run_id": run_id,
        "executor_type": attempt.executor_type,
        "gated": int(attempt.gated),
        "worker_id": attempt.worker_id,
        "deadline_at_ms": attempt.deadline_at_ms,
        "closed_at_ms": attempt.finished_at_ms,
    }
    for name, value in said.items():
        if stored[name] != value:
            yield difference(run_id, "execution", name, stored[name], value)
    # The statement that confirms a gated process is the one that stores its handle (R10.1).
    if attempt.gated and (stored["handle"] is None) != (attempt.running_at_ms is None):
        words = ("no handle", "a handle")
        yield difference(
            run_id, "execution", "handle", words[stored["handle"] is not None], words[attempt.running_at_ms is not None]
        )
    if (asked_to_stop or not attempt.active) and stored["recover_at_ms"] is not None:
        yield difference(run_id, "execution", "recover_at_ms", stored["recover_at_ms"], None)


def _replayed(facts: Sequence[Fact]) -> History | None:
    """Replay facts that may have been tampered with; None where they make no history."""
    if not facts:
        return None
    try:
        history = History.of(facts)
        _ = history.run
    except (EventSourcingError, LookupError):
        return None
    return history


def _unreadable(run_id: str, row: Row) -> Iterator[Difference]:
    """Name the values of a stored fact that are of no type that a fact has: somebody changed the table first."""
    for (name, kind, nullable), value in zip(_FIELDS, row, strict=True):
        if not isinstance(value, kind) and not (nullable and value is None):
            sequence = row[_SEQUENCE] if isinstance(row[_SEQUENCE], int) else None
            yield difference(run_id, "fact", name, value, f"a value of type {kind.__name__}", sequence=sequence)


def _stored(columns: Iterable[Column[Any]], row: Row) -> _Stored:
    return {column.name: value for column, value in zip(columns, row, strict=True)}


def _malformed(fact: Fact) -> bool:
    return isinstance(fact.payload, UnknownPayload) and fact.payload.reason == MALFORMED


def _canonical(text: str) -> str | None:
    """Give a JSON object's canonical text; None where ``text`` is none that has one."""
    try:
        raw = json.loads(text)
        return canonical_json(raw) if isinstance(raw, dict) else None
    except (ValueError, TypeError, RecursionError):
        return None


def difference(
    run_id: str, kind: str, field: str, recorded: object, recomputed: object, *, sequence: int | None = None
) -> Difference:
    """Make a difference that can be printed, whatever bytes were found."""
    return Difference(_shown(run_id) or "", kind, field, _shown(recorded), _shown(recomputed), sequence)


def _shown(value: object) -> str | None:
    return None if value is None else str(value).encode("utf-8", "backslashreplace").decode()

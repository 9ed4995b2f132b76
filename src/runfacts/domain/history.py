"""
The history of one Run: its facts replayed, and the next ones made (R3).

A Run and its Attempts share one ledger: ``sequence`` is dense over the facts of all of them, equals the Run's
``version`` (R3.2), and each fact's hash covers the one before. ``History`` replays the ledger into the aggregates and
turns what a decision wants recorded (``Draft``) into facts with their sequence, aggregate version, time and hash. It
changes its own aggregates when it does; after a write that did not happen it must be thrown away and read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eventsourcing.domain import OriginatorIDError, OriginatorVersionError

from runfacts.domain.actors import Actor
from runfacts.domain.attempt import Attempt
from runfacts.domain.canonical import GENESIS, chained_hash
from runfacts.domain.facts import Fact, encode_payload
from runfacts.domain.payloads import AttemptPayload, Payload
from runfacts.domain.run import Run


@dataclass(frozen=True, slots=True)
class Draft:
    """What a decision wants recorded."""

    payload: Payload
    attempt_id: str | None = None
    """The Attempt that it is about; for an Attempt's own fact also its aggregate."""
    dedupe_key: str | None = None

    @property
    def of_attempt(self) -> bool:
        """Whether it belongs to the Attempt, not to the Run itself."""
        return isinstance(self.payload, AttemptPayload)


@dataclass(frozen=True, slots=True)
class RecordedBy:
    """Who records, when, and in which of the platform's own threads of work."""

    actor: Actor
    now_ms: int
    correlation_id: str | None = None
    causation_id: str | None = None


class History:
    """A Run's ledger: its aggregates, its version and the end of its hash chain."""

    def __init__(self, run_id: str, project: str) -> None:
        """Begin an empty ledger."""
        self.run_id = run_id
        self.project = project
        self.version = 0
        self.head_hash = GENESIS
        self.recorded_at_ms = 0
        self.attempts: dict[str, Attempt] = {}
        self.unknown_types: list[str] = []
        self._run: Run | None = None
        self._recorded: dict[str, Fact] = {}

    @classmethod
    def of(cls, facts: Sequence[Fact]) -> History:
        """Replay a Run's facts, which are all of them from the first, in order of ``sequence``."""
        history = cls(facts[0].run_id, facts[0].project)
        for fact in facts:
            history.take(fact)
        return history

    @property
    def run(self) -> Run:
        """The Run."""
        if self._run is None:
            msg = "the ledger has no fact of its run yet"
            raise LookupError(msg)
        return self._run

    @property
    def active_attempt(self) -> Attempt | None:
        """The Attempt that is under way, if one is (R2.8)."""
        return next((attempt for attempt in reversed(self.attempts.values()) if attempt.active), None)

    @property
    def latest_attempt(self) -> Attempt | None:
        """The Attempt of the highest number, if there is one."""
        return next(reversed(self.attempts.values()), None)

    def recorded_with(self, dedupe_key: str) -> Fact | None:
        """Give the fact that was recorded with this dedupe key (R3.4)."""
        return self._recorded.get(dedupe_key)

    def at_ms(self, now_ms: int) -> int:
        """Give the time of what is recorded now: it never goes back within a Run (R3.4)."""
        return max(now_ms, self.recorded_at_ms)

    def take(self, fact: Fact) -> None:
        """Take in the next fact."""
        if not fact.of_attempt:
            self._run = evolve(fact, self._run)
        else:
            self.attempts[fact.aggregate_id] = evolve(fact, self.attempts.get(fact.aggregate_id))
        if not fact.known:
            self.unknown_types.append(fact.type)
        self.version = fact.sequence
        self.head_hash = fact.hash
        self.recorded_at_ms = max(self.recorded_at_ms, fact.recorded_at_ms)
        if fact.dedupe_key is not None:
            self._recorded[fact.dedupe_key] = fact

    def record(self, drafts: Iterable[Draft], by: RecordedBy) -> tuple[Fact, ...]:
        """Make facts of what was decided and take them in."""
        at_ms = self.at_ms(by.now_ms)
        facts = []
        for draft in drafts:
            fact = self._fact(draft, by, at_ms)
            self.take(fact)
            facts.append(fact)
        return tuple(facts)

    def _fact(self, draft: Draft, by: RecordedBy, at_ms: int) -> Fact:
        if draft.of_attempt and draft.attempt_id is not None:
            aggregate_id = draft.attempt_id
            known = self.attempts.get(aggregate_id)
            aggregate_version = 1 if known is None else known.version + 1
        else:
            aggregate_id = self.run_id
            aggregate_version = 1 if self._run is None else self._run.version + 1
        payload = draft.payload
        text = encode_payload(payload)
        fields: dict[str, Any] = {
            "run_id": self.run_id,
            "sequence": self.version + 1,
            "type": payload.TYPE,
            "schema_version": payload.VERSION,
            "project": self.project,
            "attempt_id": draft.attempt_id,
            "dedupe_key": draft.dedupe_key,
            "correlation_id": by.correlation_id,
            "causation_id": by.causation_id,
            "recorded_at_ms": at_ms,
            "aggregate_id": aggregate_id,
            "aggregate_version": aggregate_version,
        }
        hashed = {**fields, "actor_type": by.actor.type.value, "actor_id": by.actor.id}
        return Fact(
            **fields,
            actor=by.actor,
            payload=payload,
            payload_text=text,
            hash=chained_hash(self.head_hash, hashed, text),
        )


def evolve(fact: Fact, aggregate: Any) -> Any:  # noqa: ANN401 - a Run or an Attempt, as the fact says
    """Apply a fact to its aggregate, or to a new one if it is None."""
    if aggregate is None:
        aggregate = (Attempt if fact.of_attempt else Run).begin(fact)
    elif fact.aggregate_id != aggregate.id:
        raise OriginatorIDError(fact.aggregate_id, aggregate.id)
    elif fact.aggregate_version != aggregate.version + 1:
        raise OriginatorVersionError(fact.aggregate_version, aggregate.version + 1)
    aggregate.version = fact.aggregate_version
    aggregate.apply(fact)
    return aggregate

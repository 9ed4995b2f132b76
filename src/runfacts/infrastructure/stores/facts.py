"""
The facts of a Run: read whole, in order, and appended (R3).

Rows become ``Fact`` values and back here and nowhere else. A read never fails on what it finds: an unknown type or a
payload that was tampered with becomes an ``UnknownPayload`` (R3.7).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from eventsourcing.domain import EventSourcingError
from sqlalchemy import bindparam, insert, select

from runfacts.domain.actors import Actor
from runfacts.domain.errors import DatabaseCorrupt
from runfacts.domain.facts import Fact, decode_payload, envelope
from runfacts.domain.history import History
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts as table
from runfacts.infrastructure.database.transactions import Reading

FACT_COLUMNS: Final = (
    table.c.position,
    table.c.run_id,
    table.c.sequence,
    table.c.type,
    table.c.schema_version,
    table.c.project,
    table.c.attempt_id,
    table.c.actor_type,
    table.c.actor_id,
    table.c.dedupe_key,
    table.c.correlation_id,
    table.c.causation_id,
    table.c.recorded_at_ms,
    table.c.payload,
    table.c.aggregate_id,
    table.c.aggregate_version,
    table.c.hash,
)
"""The columns of a fact, in the order in which ``fact_of`` takes them."""

SELECT_HISTORY: Final = Statement(
    "select_history",
    select(*FACT_COLUMNS).where(table.c.run_id == bindparam("run_id")).order_by(table.c.sequence),
)
INSERT_FACT: Final = Statement(
    "insert_fact",
    insert(table)
    .values({column.name: bindparam(column.name) for column in FACT_COLUMNS if column.name != "position"})
    .returning(table.c.position),
)


class _Unfrozen:
    """
    A fact while it is being made: laid out as ``Fact``, and with fields that can be set.

    A frozen dataclass is made field by field through ``object.__setattr__``, which takes longer than reading and
    decoding a fact. A page, a replay and a rebuild make nothing but facts.
    """

    __slots__ = Fact.__slots__

    def __init__(self, row: Sequence[Any]) -> None:
        (
            self.position,
            self.run_id,
            self.sequence,
            self.type,
            self.schema_version,
            self.project,
            self.attempt_id,
            actor_type,
            actor_id,
            self.dedupe_key,
            self.correlation_id,
            self.causation_id,
            self.recorded_at_ms,
            self.payload_text,
            self.aggregate_id,
            self.aggregate_version,
            self.hash,
        ) = row
        self.actor = _actor(actor_type, actor_id)
        self.payload = decode_payload(self.type, self.schema_version, self.payload_text)


# The same few record most facts, and being frozen one object can stand for each.
_actor: Final = lru_cache(maxsize=1_024)(Actor.recorded)


def fact_of(row: Sequence[Any]) -> Fact:
    """Make a fact of a row of ``FACT_COLUMNS``."""
    made: Any = _Unfrozen(row)
    # From here on it is a fact like any other, frozen.
    made.__class__ = Fact
    fact: Fact = made
    return fact


def read_facts(transaction: Reading, run_id: str) -> tuple[Fact, ...]:
    """Give all facts of a Run by ``sequence``; none where there is no such Run."""
    return tuple(fact_of(row) for row in transaction.rows(SELECT_HISTORY, {"run_id": run_id}))


def read_history(transaction: Reading, run_id: str) -> History | None:
    """Replay a Run (``DatabaseCorrupt`` where that cannot be); None where there is no such Run."""
    facts = read_facts(transaction, run_id)
    return replayed(run_id, facts) if facts else None


def replayed(run_id: str, facts: Sequence[Fact], onto: History | None = None) -> History:
    """Make a Run's history of its facts, or let an earlier one go on with the next of them (``DatabaseCorrupt``)."""
    no_history = f"what is recorded of run {run_id} makes no history; `runfacts verify` names what is wrong"
    last = len(facts) + (0 if onto is None else onto.version)
    try:
        if onto is None:
            onto = History.of(facts)
        else:
            for fact in facts:
                onto.take(fact)
        _ = onto.run
    except (EventSourcingError, LookupError) as error:
        raise DatabaseCorrupt(no_history) from error
    if onto.version != last:
        raise DatabaseCorrupt(no_history)
    return onto


def fact_row(fact: Fact) -> dict[str, str | int | None]:
    """Give the columns of a fact but its position."""
    return {**envelope(fact), "payload": fact.payload_text, "hash": fact.hash}

"""
The facts of a Run: read whole, in order, and appended (R3).

Rows become ``Fact`` values and back here and nowhere else. A read never fails on what it finds: an unknown type or a
payload that was tampered with becomes an ``UnknownPayload`` (R3.7).
"""

from __future__ import annotations

from collections.abc import Sequence
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


def fact_of(row: Sequence[Any]) -> Fact:
    """Make a fact of a row of ``FACT_COLUMNS``."""
    return Fact(
        position=row[0],
        run_id=row[1],
        sequence=row[2],
        type=row[3],
        schema_version=row[4],
        project=row[5],
        attempt_id=row[6],
        actor=Actor.recorded(row[7], row[8]),
        dedupe_key=row[9],
        correlation_id=row[10],
        causation_id=row[11],
        recorded_at_ms=row[12],
        payload=decode_payload(row[3], row[4], row[13]),
        payload_text=row[13],
        aggregate_id=row[14],
        aggregate_version=row[15],
        hash=row[16],
    )


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

"""
Our facts for readers of the ``eventsourcing`` package: its repositories, projections and notification logs.

``FactRecorder`` gives facts as stored events, by aggregate or in order; it writes none, since facts are written by the
ledger's commands alone, with the rows that belong to them. ``FactMapper`` makes facts of them again, through our own
registry of types: the package's own mapper would import whatever module the database names (R3.7).

A stored event's topic is the fact's type; its state is the whole fact as JSON, the payload as the very text that is
hashed. So a reader elsewhere, that has only notifications, can check the chain, too.

    recorder = FactRecorder(ledger.database)
    runs = Repository(EventStore(FactMapper(), recorder))
    run = runs.get(run_id)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import (
    JSONTranscoder,
    Mapper,
    MapperDeserialisationError,
    Notification,
    NotSupportedError,
    StoredEvent,
)
from sqlalchemy import Column

from runfacts.domain.facts import Fact, envelope
from runfacts.infrastructure.commands import Caller
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.tables import facts as table
from runfacts.infrastructure.database.transactions import Row
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of
from runfacts.infrastructure.stores.recorder import POLL_S, Shape, SqlApplicationRecorder

_COLUMNS: Final = tuple(column for column in FACT_COLUMNS if column.name != "position")
_NAMES: Final = tuple(column.name for column in _COLUMNS)
_TYPE: Final = _NAMES.index("type")


def _stored_event(row: Row) -> StoredEvent:
    return stored_event_of(dict(zip(_NAMES, row, strict=True)))


def stored_event_of(fields: dict[str, Any]) -> StoredEvent:
    """Make the stored event of a fact's columns."""
    state = {name: value for name, value in fields.items() if value is not None}
    return StoredEvent(
        fields["aggregate_id"],
        fields["aggregate_version"],
        fields["type"],
        json.dumps(state, separators=(",", ":"), sort_keys=True).encode(),
    )


SHAPE: Final[Shape] = Shape(
    table, table.c.aggregate_id, table.c.aggregate_version, _COLUMNS, _stored_event, lambda row: str(row[_TYPE])
)
"""Where the table of facts keeps what the package wants to know."""


class FactRecorder(SqlApplicationRecorder):
    """Reads a ledger's facts. Close it before the ledger: on PostgreSQL it keeps a session."""

    def __init__(self, database: Database, *, poll_s: float = POLL_S) -> None:
        """Read the facts of ``Ledger.database``."""
        super().__init__(database, SHAPE, poll_s=poll_s)

    def _inserted(
        self, stored_events: Sequence[StoredEvent], connection: Caller | None, more: Mapping[str, object]
    ) -> list[int]:
        """Refuse to write: only the ledger's commands record facts."""
        del connection, more
        if stored_events:
            raise NotSupportedError("facts are recorded by the commands of the ledger, never as events")
        return []


class FactMapper(Mapper[str]):
    """Makes facts of stored events and back, by our own registry of types."""

    def __init__(self) -> None:
        """Need nothing: facts are stored as they are, neither compressed nor encrypted."""
        super().__init__(JSONTranscoder())

    def to_stored_event(self, domain_event: DomainEventProtocol[str]) -> StoredEvent:
        """Give a fact as a stored event."""
        if not isinstance(domain_event, Fact):
            raise TypeError("only facts can be mapped")
        fields = {**envelope(domain_event), "payload": domain_event.payload_text, "hash": domain_event.hash}
        return stored_event_of(fields)

    def to_domain_event(self, stored_event: StoredEvent) -> Fact:
        """Give a stored event as a fact, whatever its type; ``MapperDeserialisationError`` where it holds none."""
        position = stored_event.id if isinstance(stored_event, Notification) else None
        try:
            fields = json.loads(stored_event.state)
            # The columns' own types: what comes from elsewhere may be anything.
            row = [fields.pop(name, None) for name in _NAMES]
        except (ValueError, TypeError, AttributeError) as error:
            raise _no_fact(stored_event) from error
        if fields or not all(_fits(column, value) for column, value in zip(_COLUMNS, row, strict=True)):
            raise _no_fact(stored_event)
        fact = fact_of((position, *row))
        said = (str(stored_event.originator_id), stored_event.originator_version, stored_event.topic)
        if said != (fact.aggregate_id, fact.aggregate_version, fact.type):
            raise _no_fact(stored_event)
        return fact


def _fits(column: Column[Any], value: object) -> bool:
    return bool(column.nullable) if value is None else type(value) is column.type.python_type


def _no_fact(stored_event: StoredEvent) -> MapperDeserialisationError:
    return MapperDeserialisationError(
        f"version {stored_event.originator_version} of aggregate {stored_event.originator_id} holds no fact"
    )

"""
Recorders of what was processed, for the ``eventsourcing`` package: a view and how far it has got, together.

The position of the last event that was dealt with is one row for each upstream application. It only ever rises: who
would record it again, or a lower one, loses, and nothing of that transaction stays. So an event that is delivered
twice, or to two processes, changes a view once.

A view of your own derives from ``SqlTrackingRecorder`` and changes its tables inside ``tracked``:

    class Totals(SqlTrackingRecorder):
        def tables(self):
            return *super().tables(), TOTALS

        def count(self, tracking):
            with self.tracked(tracking) as connection:
                connection.execute(...)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from eventsourcing.persistence import IntegrityError, ProcessRecorder, StoredEvent, Tracking, TrackingRecorder
from sqlalchemy import Column, Connection, Engine, MetaData, Table, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from sqlalchemy.sql.expression import ClauseElement

from runfacts.infrastructure.commands import Caller
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, big_integer, identifier
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Transaction
from runfacts.infrastructure.stores.recorder import (
    POLL_S,
    Shape,
    SqlApplicationRecorder,
    in_their_words,
    insert_events,
)

_INSERTS: Final[Mapping[str, Any]] = MappingProxyType({SQLITE: sqlite.insert, POSTGRESQL: postgresql.insert})


def tracking_table(name: str, metadata: MetaData) -> Table:
    """Give a table of positions that were processed, by that name."""
    return Table(
        name,
        metadata,
        Column("application_name", identifier(), primary_key=True),
        Column("notification_id", big_integer(), nullable=False),
    )


class TrackedPositions:
    """The positions in one such table."""

    def __init__(self, table: Table) -> None:
        """Use a table that is there."""
        self._select = Statement(
            f"select_tracking_{table.name}",
            select(table.c.notification_id).where(table.c.application_name == bindparam("application_name")),
        )
        self._raise = Statement(f"raise_tracking_{table.name}", {name: _raise(table, name) for name in _INSERTS})

    def record(self, transaction: Transaction, tracking: Tracking) -> None:
        """Raise a position (``IntegrityError`` where it is not above the recorded one)."""
        given = {"application_name": tracking.application_name, "notification_id": tracking.notification_id}
        if transaction.row(self._raise, given) is None:
            raise IntegrityError(f"{tracking.application_name} {tracking.notification_id} is processed already")

    def highest(self, database: Database, application_name: str) -> int | None:
        """Give the highest position of an application, if there is one."""
        with in_their_words(database), database.reading() as reading:
            row = reading.row(self._select, {"application_name": application_name})
        return None if row is None else int(row[0])


class SqlTrackingRecorder(TrackingRecorder):
    """A view of one's own, and how far it has got."""

    def __init__(self, database: Database, table: Table) -> None:
        """Keep positions in ``table``, a ``tracking_table``."""
        self._database = database
        self._table = table
        self._positions = TrackedPositions(table)

    @property
    def engine(self) -> Engine:
        """To read the view with."""
        return self._database.engine

    def tables(self) -> Sequence[Table]:
        """Give the tables that ``CREATE_TABLE`` makes; a view adds its own."""
        return (self._table,)

    @contextmanager
    def tracked(self, tracking: Tracking, connection: Caller | None = None) -> Iterator[Connection]:
        """Change the view in this block: it is committed together with the position, or not at all.

        ``IntegrityError`` where the event is processed already. With ``connection`` all of it belongs to the caller's
        transaction (R4.5), else the block has one of its own; what the ledger shall record in it is given it as
        ``connection``.
        """
        if connection is None:
            with self._database.engine.begin() as own:
                self._record(tracking, own)
                yield own
        else:
            self._record(tracking, connection)
            yield connection.connection() if isinstance(connection, Session) else connection

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record a position alone."""
        with in_their_words(self._database), self._database.transaction() as transaction:
            self._positions.record(transaction, tracking)

    def max_tracking_id(self, application_name: str) -> int | None:
        """Give the highest position of an application that was recorded, if there is one."""
        return self._positions.highest(self._database, application_name)

    def close(self) -> None:
        """Give the connections back."""
        self._database.close()

    def _record(self, tracking: Tracking, connection: Caller) -> None:
        with in_their_words(self._database), self._database.joined(connection) as transaction:
            self._positions.record(transaction, tracking)


class SqlProcessRecorder(SqlApplicationRecorder, ProcessRecorder):
    """Keeps the events of an application that processes another one's, and how far it has got, together."""

    def __init__(self, database: Database, shape: Shape, table: Table, *, poll_s: float = POLL_S) -> None:
        """Use tables that are there; ``table`` is a ``tracking_table``."""
        super().__init__(database, shape, poll_s=poll_s)
        self._positions = TrackedPositions(table)

    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        connection: Caller | None = None,
        tracking: Tracking | None = None,
        **kwargs: Any,  # noqa: ANN401 - the package's own signature
    ) -> Sequence[int] | None:
        """Write events and the position of the event that led to them, all or nothing."""
        if tracking is None:
            return super().insert_events(stored_events, connection=connection, **kwargs)
        self._refuse(kwargs)
        with self._writing(connection) as transaction:
            self._positions.record(transaction, tracking)
            return insert_events(transaction, self._insert, stored_events) if stored_events else []

    def insert_tracking(self, tracking: Tracking) -> None:
        """Record a position alone."""
        self.insert_events([], tracking=tracking)

    def max_tracking_id(self, application_name: str) -> int | None:
        """Give the highest position of an application that was recorded, if there is one."""
        return self._positions.highest(self._database, application_name)


def _raise(table: Table, dialect: str) -> ClauseElement:
    """Record a position, or raise the recorded one; no row where it would not rise."""
    inserted = _INSERTS[dialect](table).values(
        application_name=bindparam("application_name"), notification_id=bindparam("notification_id")
    )
    raised: ClauseElement = inserted.on_conflict_do_update(
        index_elements=[table.c.application_name],
        set_={"notification_id": inserted.excluded.notification_id},
        where=table.c.notification_id < inserted.excluded.notification_id,
    ).returning(table.c.notification_id)
    return raised

"""
Recorders for the ``eventsourcing`` package: any table of events, on SQLite or PostgreSQL, without a lock on it.

The package brings recorders of its own; they own their connections and lock the whole table for each save. These work
on a ledger's database, join a caller's transaction where one is given, and let writers of different aggregates go on
side by side: what keeps an aggregate's events apart is the unique key of its id and version. Order across aggregates
is found by whoever reads (``ordered``): positions may be committed in another order than they were given out, so
``select_notifications`` goes up to the first one that may still come, and no further.

``Shape`` says where a table keeps what the package wants to know. ``events_table`` is one of the plain shape; a table
with more columns needs a shape of its own, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    Notification,
    NotSupportedError,
    OperationalError,
    StoredEvent,
    Subscription,
)
from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    Identity,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    cast,
    column,
    func,
    insert,
    select,
)
from sqlalchemy.types import TypeEngine

from runfacts.domain.errors import DatabaseError
from runfacts.domain.feeds import Waiting
from runfacts.infrastructure.commands import Caller
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, big_integer, identifier
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Reading, Row, Transaction
from runfacts.infrastructure.database.wakeups import Pace
from runfacts.infrastructure.stores.ordered import OrderedRows, ordered_reading_of
from runfacts.infrastructure.stores.subscriptions import SqlSubscription, channel_of

POLL_S: Final = 1.0
"""How often a subscription looks for new events by itself, in seconds; ten times as often on SQLite."""

_PAGE: Final = 500


@dataclass(frozen=True)
class Shape:
    """Where a table keeps its events. Its column ``position`` is an identity with CACHE 1 (R3.9)."""

    table: Table
    aggregate_id: Column[str]
    version: Column[int]
    columns: tuple[Column[Any], ...]
    """What is read of a row, besides its position."""
    stored_event: Callable[[Row], StoredEvent]
    """Makes an event of a row of ``columns``."""
    topic: Callable[[Row], str]
    """Gives the topic of a row of ``columns``, for less than making its event."""


def events_table(name: str, metadata: MetaData) -> Table:
    """Give a table of events of the plain shape, by that name."""
    return Table(
        name,
        metadata,
        Column("position", big_integer(), Identity(always=True, cache=1, cycle=False), primary_key=True),
        Column("originator_id", identifier(), nullable=False),
        Column("originator_version", big_integer(), nullable=False),
        Column("topic", identifier(), nullable=False),
        Column("state", LargeBinary(), nullable=False),
        UniqueConstraint("originator_id", "originator_version"),
    )


def plain_shape(table: Table, id_type: type[UUID | str]) -> Shape:
    """Give the shape of an ``events_table`` whose aggregates have ids of that type."""
    names = ("originator_id", "originator_version", "topic", "state")
    return Shape(
        table,
        table.c.originator_id,
        table.c.originator_version,
        tuple(table.c[name] for name in names),
        lambda row: StoredEvent(id_type(row[0]), row[1], row[2], bytes(row[3])),
        lambda row: str(row[2]),
    )


class SqlAggregateRecorder(AggregateRecorder):
    """Keeps the events of aggregates."""

    def __init__(self, database: Database, shape: Shape) -> None:
        """Use a table that is there."""
        self._database = database
        self._shape = shape
        self._selects: dict[tuple[bool, ...], Statement] = {}

    @cached_property
    def _insert(self) -> Statement:
        return _insert_statement(self._shape.table)

    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        connection: Caller | None = None,
        **kwargs: Any,  # noqa: ANN401 - the package's own signature
    ) -> Sequence[int] | None:
        """Write events, all or none; ``IntegrityError`` where one of their versions is taken.

        With ``connection`` they belong to the caller's transaction (R4.5). Anything else that should be written with
        them is refused (``NotSupportedError``), not left out.
        """
        self._inserted(stored_events, connection, kwargs)
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """Give an aggregate's events by version: those above ``gt`` and up to ``lte``, at most ``limit`` of them."""
        given = {"originator_id": str(originator_id), "gt": gt, "lte": lte, "limit": limit}
        given = {name: value for name, value in given.items() if value is not None}
        with in_their_words(self._database), self._database.reading() as reading:
            rows = reading.rows(self._select_events(frozenset(given), desc=desc), given)
        return [self._shape.stored_event(row) for row in rows]

    def _inserted(
        self, stored_events: Sequence[StoredEvent], connection: Caller | None, more: Mapping[str, object]
    ) -> list[int]:
        self._refuse(more)
        if not stored_events:
            return []
        with self._writing(connection) as transaction:
            return insert_events(transaction, self._insert, stored_events)

    def _refuse(self, more: Mapping[str, object]) -> None:
        # An application always says what it tracks, which is nothing unless it processes another one's events.
        refused = [name for name, value in more.items() if value is not None]
        if refused:
            raise NotSupportedError(f"this recorder writes events alone, without {', '.join(refused)}")

    @contextmanager
    def _writing(self, connection: Caller | None) -> Iterator[Transaction]:
        joined = self._database.transaction() if connection is None else self._database.joined(connection)
        with in_their_words(self._database), joined as transaction:
            yield transaction

    def _select_events(self, given: frozenset[str], *, desc: bool) -> Statement:
        key = ("gt" in given, "lte" in given, "limit" in given, desc)
        if key not in self._selects:
            shape = self._shape
            conditions: dict[str, ColumnElement[bool]] = {
                "gt": shape.version > bindparam("gt"),
                "lte": shape.version <= bindparam("lte"),
            }
            wanted = (
                select(*shape.columns)
                .where(shape.aggregate_id == bindparam("originator_id"))
                .where(*(condition for name, condition in conditions.items() if name in given))
                .order_by(shape.version.desc() if desc else shape.version)
            )
            if "limit" in given:
                wanted = wanted.limit(bindparam("limit"))
            self._selects[key] = Statement(f"select_events_{shape.table.name}", wanted)
        return self._selects[key]


class SqlApplicationRecorder(SqlAggregateRecorder, ApplicationRecorder):
    """Keeps the events of aggregates, and gives all of them in order. Close it: on PostgreSQL it keeps a session."""

    def __init__(self, database: Database, shape: Shape, *, poll_s: float = POLL_S) -> None:
        """Use a table that is there; subscriptions look for new events at least every ``poll_s`` seconds."""
        super().__init__(database, shape)
        self._poll_s = poll_s
        self._wakeups = database.wakeups(channel_of(shape.table))
        self._ordered = OrderedRows(database, shape.table, ordered_reading_of(database, shape.table))
        position = shape.table.c.position
        self._select_from = Statement(
            f"select_notifications_{shape.table.name}",
            select(position, *shape.columns)
            .where(position > bindparam("after"))
            .order_by(position)
            .limit(bindparam("limit")),
        )
        self._select_newest = Statement(f"select_newest_{shape.table.name}", select(func.max(position)))

    def close(self) -> None:
        """Give the kept session back."""
        self._ordered.close()

    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        connection: Caller | None = None,
        **kwargs: Any,  # noqa: ANN401 - the package's own signature
    ) -> Sequence[int] | None:
        """Write events and give their positions; else as ``SqlAggregateRecorder`` does."""
        return self._inserted(stored_events, connection, kwargs)

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Give events by position, from ``start`` up to ``stop``, of any topic or of those in ``topics``.

        No position is left out that a transaction in flight may still fill: the answer ends before it, and may be
        empty although events with higher positions are visible. Never waits. Topics are filtered here and not in the
        database, which could not tell a missing position from one of another topic.
        """
        after = 0 if start is None else start - 1 if inclusive_of_start else start
        found: list[Notification] = []
        wanted = frozenset(topics)
        with in_their_words(self._database):
            rows = self._rows_after(after, _PAGE if wanted else max(limit, 1))
            while len(found) < limit and (row := next(rows, None)) is not None:
                if stop is not None and row[0] > stop:
                    break
                if not wanted or self._shape.topic(row[1:]) in wanted:
                    found.append(notification_of(row[0], self._shape.stored_event(row[1:])))
        return found

    def max_notification_id(self) -> int | None:
        """Give the highest position that is visible, if there is one; lower ones may still come."""
        with in_their_words(self._database), self._database.reading() as reading:
            row = reading.row(self._select_newest)
        return None if row is None or row[0] is None else int(row[0])

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """Give events as they come, after position ``gt``, in the thread that iterates; ``stop`` it from any."""
        pace = Pace(self._database.dialect, int(self._poll_s * 1_000))
        return SqlSubscription(self, self._wakeups.listen(), pace, gt, topics, page=_PAGE)

    def read_after(
        self, after: int, limit: int, topics: frozenset[str] = frozenset()
    ) -> tuple[list[Notification], int, Waiting | None]:
        """Look at no more than ``limit`` events after a position: those of some topics, how far, what is in the way."""
        with in_their_words(self._database):
            rows, waiting = self._ordered.read(self._fetch(after, limit), after)
        found = [
            notification_of(row[0], self._shape.stored_event(row[1:]))
            for row in rows
            if not topics or self._shape.topic(row[1:]) in topics
        ]
        return found, rows[-1][0] if rows else after, waiting

    def _rows_after(self, after: int, page: int) -> Iterator[Row]:
        """Give rows in order, page by page as they are asked for, until none is ready."""
        while True:
            rows, waiting = self._ordered.read(self._fetch(after, page), after)
            yield from rows
            if waiting is not None or len(rows) < page:
                return
            after = rows[-1][0]

    @contextmanager
    def _writing(self, connection: Caller | None) -> Iterator[Transaction]:
        with super()._writing(connection) as transaction:
            yield transaction
            if connection is not None:
                self._wakeups.announce_within(transaction, connection)
        if connection is None:
            self._wakeups.announce()

    def _fetch(self, after: int, page: int) -> Callable[[Reading], Sequence[Row]]:
        return lambda reading: reading.rows(self._select_from, {"after": after, "limit": page})


def notification_of(position: int, event: StoredEvent) -> Notification:
    """Give an event its position."""
    return Notification(event.originator_id, event.originator_version, event.topic, event.state, position)


@contextmanager
def in_their_words(database: Database) -> Iterator[None]:
    """Raise what goes wrong as the package names it."""
    broken: type[Exception] = database.engine.dialect.loaded_dbapi.IntegrityError
    try:
        yield
    except (LostRace, broken) as error:
        raise IntegrityError(str(error)) from error
    except DatabaseError as error:
        raise OperationalError(str(error)) from error


def _insert_statement(table: Table) -> Statement:
    """Insert one event on SQLite, a list of them on PostgreSQL, where every statement is a round trip."""
    names = ("originator_id", "originator_version", "topic", "state")
    one = insert(table).values({name: bindparam(name) for name in names})
    types: tuple[TypeEngine[Any], ...] = (Text(), BigInteger(), Text(), LargeBinary())
    lists = (cast(bindparam(name), ARRAY(kind)) for name, kind in zip(names, types, strict=True))
    derived = func.unnest(*lists).table_valued(*map(column, names), with_ordinality="place", name="given")
    given = derived.render_derived()
    many = insert(table).from_select(names, select(*(given.c[name] for name in names)).order_by(given.c.place))
    return Statement(
        f"insert_events_{table.name}",
        {SQLITE: one.returning(table.c.position), POSTGRESQL: many.returning(table.c.position)},
    )


def insert_events(transaction: Transaction, statement: Statement, events: Sequence[StoredEvent]) -> list[int]:
    """Insert events in their order and give their positions."""
    given = [
        {
            "originator_id": str(event.originator_id),
            "originator_version": event.originator_version,
            "topic": event.topic,
            "state": event.state,
        }
        for event in events
    ]
    if transaction.dialect == SQLITE:
        return [int(row[0]) for each in given for row in transaction.rows(statement, each)]
    lists = {name: [each[name] for each in given] for name in given[0]}
    # Drawn in the order of the list, so the lowest is the first one's.
    return sorted(int(row[0]) for row in transaction.rows(statement, lists))

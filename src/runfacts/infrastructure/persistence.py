"""
The ledger's database as persistence of the ``eventsourcing`` package.

``PERSISTENCE_MODULE=runfacts.infrastructure.persistence`` and ``RUNFACTS_URL`` give every application, projection and
system of an embedding platform recorders in a ledger's database: without a lock on a table, in an order that can be
trusted, and able to join the platform's own transactions (``connection=``). ``LedgerFacts`` is the ledger's facts as
such an application, to be read and followed.

Settings are the package's own: ``CREATE_TABLE``, ``ORIGINATOR_ID_TYPE`` (``uuid`` or ``text``), ``COMPRESSOR_TOPIC``,
``CIPHER_KEY``, ``TRACKING_RECORDER_TOPIC`` and the others. The tables of an application are named after it:
``orders_events``, ``orders_snapshots``, ``orders_tracking``.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any, Final, TypeVar, overload
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.persistence import (
    ApplicationRecorder,
    InfrastructureFactory,
    InfrastructureFactoryError,
    Mapper,
)
from eventsourcing.utils import Environment, EnvType, resolve_topic, strtobool
from sqlalchemy import MetaData, Table, func, select

from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.dialects import POSTGRESQL
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.database.tables import metadata as ledger_tables
from runfacts.infrastructure.processes.machine import lasting_machine_id
from runfacts.infrastructure.stores.fact_recorder import FactMapper, FactRecorder
from runfacts.infrastructure.stores.recorder import (
    Shape,
    SqlAggregateRecorder,
    SqlApplicationRecorder,
    events_table,
    plain_shape,
)
from runfacts.infrastructure.stores.tracking import SqlProcessRecorder, SqlTrackingRecorder, tracking_table

__all__ = ["LedgerFactory", "LedgerFacts", "SqlTrackingRecorder"]

Recorder = TypeVar("Recorder", bound=SqlApplicationRecorder)
View = TypeVar("View", bound=SqlTrackingRecorder)

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,47}")
_CREATION: Final = 0x72756E66  # whose table it is does not matter: one creation at a time


class LedgerFactory(InfrastructureFactory[SqlTrackingRecorder]):
    """Makes recorders in a ledger's database."""

    RUNFACTS_URL = "RUNFACTS_URL"
    RUNFACTS_MACHINE_ID = "RUNFACTS_MACHINE_ID"
    CREATE_TABLE = "CREATE_TABLE"
    ORIGINATOR_ID_TYPE = "ORIGINATOR_ID_TYPE"

    def __init__(self, env: Environment | EnvType | None, database: Database | None = None) -> None:
        """Open the database at ``RUNFACTS_URL``, or use one that is open (``Ledger.database``), which stays open."""
        super().__init__(env)
        self._id_type: type[UUID | str] = _id_type(self.env.get(self.ORIGINATOR_ID_TYPE) or "uuid")
        self._ours: list[SqlApplicationRecorder] = []
        self._opened = database is None
        if database is None:
            url = self.env.get(self.RUNFACTS_URL)
            if not url:
                raise InfrastructureFactoryError(
                    f"no ledger is named: set {' or '.join(self.env.create_keys(self.RUNFACTS_URL))}"
                )
            database = open_database(url, machine_id=lasting_machine_id(self.env.get(self.RUNFACTS_MACHINE_ID) or None))
            weakref.finalize(self, database.close)
        self.database = database

    def aggregate_recorder(self, purpose: str = "events") -> SqlAggregateRecorder:
        """Make a recorder of aggregates' events, or of what else ``purpose`` names, as snapshots."""
        return SqlAggregateRecorder(self.database, self._events(purpose))

    def application_recorder(self) -> SqlApplicationRecorder:
        """Make a recorder of an application's events."""
        return self.closed_with_this(SqlApplicationRecorder(self.database, self._events()))

    def process_recorder(self) -> SqlProcessRecorder:
        """Make a recorder of the events of an application that processes another one's."""
        tracked = self._created(tracking_table(self._name("tracking"), MetaData()))
        return self.closed_with_this(SqlProcessRecorder(self.database, self._events(), tracked))

    @overload
    def tracking_recorder(self, tracking_recorder_class: type[View]) -> View: ...

    @overload
    def tracking_recorder(
        self, tracking_recorder_class: type[SqlTrackingRecorder] | None = None
    ) -> SqlTrackingRecorder: ...

    def tracking_recorder(
        self, tracking_recorder_class: type[SqlTrackingRecorder] | None = None
    ) -> SqlTrackingRecorder:
        """Make a view: of the class that is given or that ``TRACKING_RECORDER_TOPIC`` names."""
        chosen: Any = tracking_recorder_class
        if chosen is None:
            topic = self.env.get(self.TRACKING_RECORDER_TOPIC)
            chosen = resolve_topic(topic) if topic else SqlTrackingRecorder
        if not (isinstance(chosen, type) and issubclass(chosen, SqlTrackingRecorder)):
            raise InfrastructureFactoryError(f"{chosen} is no SqlTrackingRecorder")
        view = chosen(self.database, tracking_table(self._name("tracking"), MetaData()))
        self._create(view.tables())
        if self._opened:
            # A runner of projections keeps the view and lets go of this.
            weakref.finalize(view, self.database.close)
        return view

    def closed_with_this(self, recorder: Recorder) -> Recorder:
        """Close the recorder when this is closed."""
        self._ours.append(recorder)
        return recorder

    def close(self) -> None:
        """Give every connection back."""
        for recorder in self._ours:
            recorder.close()
        if self._opened:
            self.database.close()

    def _events(self, purpose: str = "events") -> Shape:
        return plain_shape(self._created(events_table(self._name(purpose), MetaData())), self._id_type)

    def _name(self, purpose: str) -> str:
        name = f"{self.env.name or 'stored'}_{purpose}".lower()
        if not _NAME.fullmatch(name) or name in ledger_tables.tables:
            raise InfrastructureFactoryError(f"{name!r} cannot be the name of a table: use a-z, 0-9 and _, at most 48")
        return name

    def _created(self, table: Table) -> Table:
        self._create([table])
        return table

    def _create(self, tables: Sequence[Table]) -> None:
        if not strtobool(self.env.get(self.CREATE_TABLE) or "yes"):
            return
        with self.database.engine.begin() as connection:
            if connection.dialect.name == POSTGRESQL:
                # "IF NOT EXISTS" alone fails where two processes create at once.
                connection.execute(select(func.pg_advisory_xact_lock(_CREATION)))
            for table in tables:
                table.create(connection, checkfirst=True)


class LedgerFacts(Application[str]):
    """The facts of the ledger at ``RUNFACTS_URL`` as an application: read, projected and followed, never saved to."""

    name = "runfacts"

    def construct_mapper(self) -> Mapper[str]:
        """Resolve types by our own registry only (R3.7)."""
        return FactMapper()

    def construct_recorder(self) -> ApplicationRecorder:
        """Read facts."""
        factory = self.factory
        if not isinstance(factory, LedgerFactory):
            raise InfrastructureFactoryError(f"facts are in a ledger: set PERSISTENCE_MODULE to {__name__}")
        return factory.closed_with_this(FactRecorder(factory.database))


def _id_type(name: str) -> type[UUID | str]:
    types: dict[str, type[UUID | str]] = {"uuid": UUID, "text": str}
    if name.lower() not in types:
        raise InfrastructureFactoryError(f"ORIGINATOR_ID_TYPE is {name!r}, neither uuid nor text")
    return types[name.lower()]

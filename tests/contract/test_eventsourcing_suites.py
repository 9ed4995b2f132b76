"""The suites that the ``eventsourcing`` package has for recorders, on our general ones and every database (R3.9).

One suite of the package is left out on PostgreSQL: ``NonInterleavingNotificationIDsBaseCase`` asks that the positions
of two batches written at once are never mixed. That is what a lock on the whole table gives; the order that we promise
does not need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import eventsourcing.tests.persistence as suites
import pytest
from sqlalchemy import MetaData

from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.stores.recorder import (
    SqlAggregateRecorder,
    SqlApplicationRecorder,
    events_table,
    plain_shape,
)

if TYPE_CHECKING:
    from runfacts.testing.postgres import PostgresServer


def database_with_events(url: str) -> Database:
    """A ledger's database that has a table of events beside our own."""
    database = open_database(url)
    metadata = MetaData()
    events_table("events", metadata)
    with database.engine.begin() as connection:
        metadata.create_all(connection)
    return database


SHAPE = plain_shape(events_table("events", MetaData()), UUID)


class OnSqlite:
    """A SQLite database for each test."""

    database: Database

    @pytest.fixture(autouse=True)
    def _a_database(self, tmp_path: Path) -> Any:  # noqa: ANN401 - an iterator of nothing
        self.database = database_with_events(f"sqlite:///{tmp_path / 'ledger.db'}")
        yield
        self.database.close()


class OnPostgres:
    """A PostgreSQL database for each test."""

    version: str
    database: Database

    @pytest.fixture(autouse=True)
    def _a_database(self, request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 - an iterator of nothing
        server: PostgresServer = request.getfixturevalue(f"postgres_{self.version}")
        url = server.create_database(request.getfixturevalue(f"postgres_{self.version}_template"))
        self.database = database_with_events(url)
        yield
        self.database.close()
        server.drop_database(url)


class AggregateSuite(suites.AggregateRecorderTestCase):
    """The package's suite for recorders of aggregates."""

    __test__ = False
    database: Database

    def create_recorder(self) -> SqlAggregateRecorder:
        """See the suite."""
        return SqlAggregateRecorder(self.database, SHAPE)


class ApplicationSuite(suites.ApplicationRecorderTestCase[SqlApplicationRecorder]):
    """The package's suite for recorders of applications, the optional part included."""

    __test__ = False
    database: Database

    def create_recorder(self) -> SqlApplicationRecorder:
        """See the suite."""
        recorder = SqlApplicationRecorder(self.database, SHAPE)
        self.addCleanup(recorder.close)
        return recorder

    def test_insert_subscribe(self) -> None:
        """See the suite."""
        self.optional_test_insert_subscribe()


class TestAggregatesOnSqlite(OnSqlite, AggregateSuite):
    """On SQLite."""

    __test__ = True


class TestAggregatesOnPostgres16(OnPostgres, AggregateSuite):
    """On PostgreSQL 16."""

    __test__ = True
    version = "16"


class TestAggregatesOnPostgres18(OnPostgres, AggregateSuite):
    """On PostgreSQL 18."""

    __test__ = True
    version = "18"


class NonInterleavingSuite(suites.NonInterleavingNotificationIDsBaseCase):
    """The package's suite for positions of batches written at once."""

    __test__ = False
    database: Database

    def create_recorder(self) -> SqlApplicationRecorder:
        """See the suite."""
        recorder = SqlApplicationRecorder(self.database, SHAPE)
        self.addCleanup(recorder.close)
        return recorder


class TestApplicationsOnSqlite(OnSqlite, ApplicationSuite):
    """On SQLite."""

    __test__ = True


class TestBatchesOnSqlite(OnSqlite, NonInterleavingSuite):
    """On SQLite, which has one writer at a time."""

    __test__ = True


class TestApplicationsOnPostgres16(OnPostgres, ApplicationSuite):
    """On PostgreSQL 16."""

    __test__ = True
    version = "16"


class TestApplicationsOnPostgres18(OnPostgres, ApplicationSuite):
    """On PostgreSQL 18."""

    __test__ = True
    version = "18"

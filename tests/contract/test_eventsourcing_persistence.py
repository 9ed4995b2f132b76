"""
The suites that the ``eventsourcing`` package has for views, processes and factories, on ours and every database.

``tests/contract/test_eventsourcing_suites.py`` has the others, and says which one is left out (R3.9).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import eventsourcing.persistence as package
import eventsourcing.tests.persistence as suites
import pytest
from eventsourcing.utils import Environment

from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.persistence import LedgerFactory
from runfacts.infrastructure.stores.recorder import SqlAggregateRecorder, SqlApplicationRecorder
from runfacts.infrastructure.stores.tracking import SqlProcessRecorder, SqlTrackingRecorder

if TYPE_CHECKING:
    from runfacts.testing.postgres import PostgresServer


class View(SqlTrackingRecorder):
    """A view of an application."""


class OnSqlite:
    """A SQLite database for each test."""

    url: str

    @pytest.fixture(autouse=True)
    def _a_database(self, tmp_path: Path) -> Any:  # noqa: ANN401 - an iterator of nothing
        self.url = f"sqlite:///{tmp_path / 'ledger.db'}"
        open_database(self.url).close()
        return


class OnPostgres:
    """A PostgreSQL database for each test."""

    version: str
    url: str

    @pytest.fixture(autouse=True)
    def _a_database(self, request: pytest.FixtureRequest) -> Any:  # noqa: ANN401 - an iterator of nothing
        server: PostgresServer = request.getfixturevalue(f"postgres_{self.version}")
        self.url = server.create_database(request.getfixturevalue(f"postgres_{self.version}_template"))
        yield
        server.drop_database(self.url)


def factory_for(url: str) -> LedgerFactory:
    return LedgerFactory(Environment("app", {"RUNFACTS_URL": url}))


class TrackingSuite(suites.TrackingRecorderTestCase):
    """The package's suite for views."""

    __test__ = False
    url: str

    def create_recorder(self) -> SqlTrackingRecorder:
        """See the suite."""
        recorder = factory_for(self.url).tracking_recorder()
        self.addCleanup(recorder.close)
        return recorder


class ProcessSuite(suites.ProcessRecorderTestCase):
    """The package's suite for processes."""

    __test__ = False
    url: str

    def create_recorder(self) -> SqlProcessRecorder:
        """See the suite."""
        factory = factory_for(self.url)
        self.addCleanup(factory.close)
        return factory.process_recorder()


class FactorySuite(suites.InfrastructureFactoryTestCase[LedgerFactory]):
    """The package's suite for factories."""

    __test__ = False
    url: str

    def setUp(self) -> None:
        """See the suite."""
        self.env = Environment(
            "app",
            {
                package.InfrastructureFactory.PERSISTENCE_MODULE: "runfacts.infrastructure.persistence",
                "RUNFACTS_URL": self.url,
            },
        )
        super().setUp()

    def expected_factory_class(self) -> type[LedgerFactory]:
        """See the suite."""
        return LedgerFactory

    def expected_aggregate_recorder_class(self) -> type[package.AggregateRecorder]:
        """See the suite."""
        return SqlAggregateRecorder

    def expected_application_recorder_class(self) -> type[package.ApplicationRecorder]:
        """See the suite."""
        return SqlApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[package.TrackingRecorder]:
        """See the suite."""
        return SqlTrackingRecorder

    def tracking_recorder_subclass(self) -> type[package.TrackingRecorder]:
        """See the suite."""
        return View

    def expected_process_recorder_class(self) -> type[package.ProcessRecorder]:
        """See the suite."""
        return SqlProcessRecorder


class TestViewsOnSqlite(OnSqlite, TrackingSuite):
    """On SQLite."""

    __test__ = True


class TestViewsOnPostgres16(OnPostgres, TrackingSuite):
    """On PostgreSQL 16."""

    __test__ = True
    version = "16"


class TestViewsOnPostgres18(OnPostgres, TrackingSuite):
    """On PostgreSQL 18."""

    __test__ = True
    version = "18"


class TestProcessesOnSqlite(OnSqlite, ProcessSuite):
    """On SQLite."""

    __test__ = True


class TestProcessesOnPostgres16(OnPostgres, ProcessSuite):
    """On PostgreSQL 16."""

    __test__ = True
    version = "16"


class TestProcessesOnPostgres18(OnPostgres, ProcessSuite):
    """On PostgreSQL 18."""

    __test__ = True
    version = "18"


class TestFactoriesOnSqlite(OnSqlite, FactorySuite):
    """On SQLite."""

    __test__ = True


class TestFactoriesOnPostgres16(OnPostgres, FactorySuite):
    """On PostgreSQL 16."""

    __test__ = True
    version = "16"


class TestFactoriesOnPostgres18(OnPostgres, FactorySuite):
    """On PostgreSQL 18."""

    __test__ = True
    version = "18"

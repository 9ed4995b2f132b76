"""
The pytest plugin: a fresh database per test, on every database that the product supports.

pytest loads this module in every environment that has runfacts, so it imports pytest and little else; a session that
asks for none of the fixtures pays nothing. A test that asks for ``database_url`` or ``ledger`` runs once per database.
Each PostgreSQL server is started when it is first needed and makes one template, migrated and with the product's clock
function replaced by one that tests can move (R5.1, R5.4); each test then gets a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runfacts.testing.clock import EPOCH_MS

if TYPE_CHECKING:
    from runfacts.infrastructure.ledger import Ledger
    from runfacts.testing.clock import ManualClock
    from runfacts.testing.ledgers import ThrowAwayLedgers
    from runfacts.testing.postgres import PostgresServer, PostgresVersion

DATABASES = ("sqlite", "postgresql-16", "postgresql-18")


@pytest.fixture(scope="session")
def postgres_16() -> Iterator[PostgresServer]:
    """A PostgreSQL 16 server for this session. A test that stops or breaks one starts its own instead."""
    yield from _server(16)


@pytest.fixture(scope="session")
def postgres_18() -> Iterator[PostgresServer]:
    """A PostgreSQL 18 server for this session. A test that stops or breaks one starts its own instead."""
    yield from _server(18)


@pytest.fixture(scope="session")
def postgres_16_template(postgres_16: PostgresServer) -> str:
    """The database on PostgreSQL 16 that every test's is a copy of."""
    return make_template(postgres_16)


@pytest.fixture(scope="session")
def postgres_18_template(postgres_18: PostgresServer) -> str:
    """The database on PostgreSQL 18 that every test's is a copy of."""
    return make_template(postgres_18)


@pytest.fixture(params=["16", "18"])
def postgres(request: pytest.FixtureRequest) -> PostgresServer:
    """The session's server of each version: a test that asks for it runs on both."""
    server: PostgresServer = request.getfixturevalue(f"postgres_{request.param}")
    return server


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh database of each kind: a SQLite file yet to be made, or a migrated PostgreSQL database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}"
        return
    name = request.param.replace("postgresql-", "postgres_")
    server: PostgresServer = request.getfixturevalue(name)
    url = server.create_database(request.getfixturevalue(f"{name}_template"))
    yield url
    server.drop_database(url)


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands at ``EPOCH_MS`` until the test moves it; the test's ledgers go by it."""
    from runfacts.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def ledger_factory(database_url: str, manual_clock: ManualClock) -> Iterator[ThrowAwayLedgers]:
    """Opens ledgers on one fresh database, of each kind, on the manual clock; each is a user of its own."""
    from runfacts.testing.ledgers import ThrowAwayLedgers

    with ThrowAwayLedgers(database_url, manual_clock) as ledgers:
        yield ledgers


@pytest.fixture
def ledger(ledger_factory: ThrowAwayLedgers) -> Ledger:
    """A ledger on a fresh database of each kind, on the manual clock."""
    return ledger_factory()


def make_template(server: PostgresServer) -> str:
    """Make a database with the present schema and the movable clock; its name, to copy it from."""
    from runfacts.infrastructure.database.clocks import install_test_clock
    from runfacts.infrastructure.database.opening import connect, migrate
    from runfacts.testing.postgres import database_name

    url = server.create_database()
    migrate(url)
    database = connect(url)
    try:
        with database.engine.begin() as connection:
            install_test_clock(connection, EPOCH_MS)
    finally:
        database.close()  # nobody may be connected to a template
    return database_name(url)


def _server(version: PostgresVersion) -> Iterator[PostgresServer]:
    from runfacts.testing.postgres import PostgresServer

    with PostgresServer.start(version) as server:
        yield server

"""A snapshot is one moment, holds nobody up and leaves its connection as it was (R1.3, R4.2)."""

from __future__ import annotations

from contextlib import suppress

import pytest
from sqlalchemy import func, select

from runfacts import DatabaseReadOnly, Ledger
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import created

COUNT = Statement("count_facts", select(func.count()).select_from(facts))


@pytest.fixture
def database(ledger: Ledger) -> Database:
    """The database of a ledger that has one fact."""
    created(ledger)
    return ledger.database


def test_every_statement_of_a_snapshot_sees_the_same_state(ledger: Ledger, database: Database) -> None:
    with database.snapshot() as snapshot, database.reading() as reading:
        assert snapshot.rows(COUNT) == [(1,)]
        created(ledger)
        assert snapshot.rows(COUNT) == [(1,)]
        assert reading.rows(COUNT) == [(2,)]
    with database.snapshot() as snapshot:
        assert snapshot.rows(COUNT) == [(2,)]


def test_a_snapshot_holds_no_writer_up(ledger_factory: ThrowAwayLedgers) -> None:
    one, other = ledger_factory(), ledger_factory()
    with one.database.snapshot() as snapshot:
        snapshot.rows(COUNT)
        for _ in range(3):
            created(other)
            created(one)
        assert snapshot.rows(COUNT) == [(0,)]


def test_nothing_is_written_through_a_snapshot(ledger: Ledger, database: Database) -> None:
    write = Statement("write", {database.dialect: "UPDATE runs SET task = 'changed' RETURNING task"})
    before = ledger.runs()
    with suppress(DatabaseReadOnly), database.snapshot() as snapshot:
        snapshot.rows(write)
    assert ledger.runs() == before


def test_the_connection_goes_back_as_it_was(ledger: Ledger, database: Database) -> None:
    for failing in (False, True, False):
        with suppress(ZeroDivisionError), database.snapshot() as snapshot:
            snapshot.rows(COUNT)
            if failing:
                raise ZeroDivisionError
        run_id = created(ledger, task="naïve ☃")
        assert ledger.run(run_id).task == "naïve ☃"
        with database.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT task FROM runs WHERE task LIKE 'na%%'").scalar() == "naïve ☃"


def test_after_a_failed_statement_a_snapshot_goes_no_further(database: Database) -> None:
    wrong = Statement("wrong", {database.dialect: "SELECT a FROM nowhere"})
    with pytest.raises(Exception, match=r"nowhere|missing"), database.snapshot() as snapshot:
        snapshot.rows(wrong)
    with database.snapshot() as snapshot:
        assert snapshot.rows(COUNT) == [(1,)]

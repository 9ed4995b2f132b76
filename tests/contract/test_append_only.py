"""Facts are only ever inserted, and the database itself refuses the rest (R1.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import bindparam, insert

from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts

RUN = "01890000-0000-7000-8000-000000000001"


def fact(sequence: int, **changes: object) -> dict[str, Any]:
    return {
        "run_id": RUN,
        "sequence": sequence,
        "type": "run.created",
        "schema_version": 1,
        "project": "default",
        "actor_type": "system",
        "dedupe_key": f"key-{sequence}",
        "recorded_at_ms": 1_000,
        "payload": "{}",
        "aggregate_id": RUN,
        "aggregate_version": sequence,
        "hash": "d" * 64,
    } | changes


def append(database: Database, row: dict[str, Any]) -> None:
    with database.transaction() as transaction:
        transaction.run(Statement("append", insert(facts).values({name: bindparam(name) for name in row})), row)


def everything(database: Database) -> list[tuple[Any, ...]]:
    with database.reading() as reading:
        return reading.rows(Statement("all", {database.dialect: "SELECT * FROM facts ORDER BY position"}))


def attempt(database: Database, sql: str) -> str:
    """What the database answers to a statement on facts."""
    try:
        with database.transaction() as transaction:
            transaction.run(Statement("attempt", {database.dialect: sql}))
    except Exception as error:  # noqa: BLE001 - the answer is what is looked at
        return str(error)
    return "done"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A ledger with two facts."""
    database = open_database(database_url)
    append(database, fact(1))
    append(database, fact(2))
    yield database
    database.close()


@pytest.mark.parametrize(
    ("sql", "verb"),
    [
        ("UPDATE facts SET payload = '[]'", "UPDATE"),
        ("UPDATE facts SET payload = payload WHERE sequence = 2", "UPDATE"),
        ("DELETE FROM facts", "DELETE"),
        ("DELETE FROM facts WHERE sequence = 2", "DELETE"),
    ],
)
def test_a_fact_is_neither_changed_nor_deleted(database: Database, sql: str, verb: str) -> None:
    before = everything(database)
    assert f"facts are append-only: {verb} is refused" in attempt(database, sql)
    assert everything(database) == before


def test_an_upsert_does_not_change_a_fact(database: Database) -> None:
    before = everything(database)
    columns = "run_id, sequence, type, schema_version, project, actor_type, recorded_at_ms, payload, aggregate_id,"
    columns += " aggregate_version, hash"
    values = f"'{RUN}', 2, 'x', 1, 'x', 'user', 1, '[]', '{RUN}', 2, '{'e' * 64}'"
    upsert = (
        f"INSERT INTO facts ({columns}) VALUES ({values}) ON CONFLICT (run_id, sequence) DO UPDATE SET payload = '[]'"
    )
    assert "done" not in attempt(database, upsert)
    assert everything(database) == before


def test_positions_are_one_two_three(database: Database) -> None:
    append(database, fact(3))
    assert [row[0] for row in everything(database)] == [1, 2, 3]


def test_a_writer_cannot_choose_the_position(database: Database) -> None:
    before = everything(database)
    with pytest.raises(database.driver_error):
        append(database, fact(3, position=9_223_372_036_854_775_807))
    assert everything(database) == before
    append(database, fact(3))


def test_what_was_rolled_back_is_not_there(database: Database) -> None:
    before = everything(database)
    row = fact(3)

    def begin_and_fail() -> None:
        with database.transaction() as transaction:
            transaction.run(Statement("append", insert(facts).values({name: bindparam(name) for name in row})), row)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        begin_and_fail()
    assert everything(database) == before

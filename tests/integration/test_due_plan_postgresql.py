"""
PostgreSQL keeps one plan of the page of due dispatches, however full the tables are (R9.1).

A plan that knew the page's parameters would look much cheaper to it beside many finished rows, and be made anew for
each page, which takes longer than the page itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from deliveries import SERVED, asked_to_stop, settled_with
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.postgres import PostgresServer

FINISHED = 20_000
ASKED = 12
PLANNED_ANEW = 5
"""How often the server plans a prepared statement anew before it looks whether that is worth it."""
COPIED = ("runs", "cancellation_dispatches")
COPIES = """
INSERT INTO {table}
SELECT copy.* FROM {table} AS one, generate_series(1, {count}) AS n,
    jsonb_populate_record(one, jsonb_build_object('run_id', '01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0')))
    AS copy
"""
SELECT_PLANS = """
SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE '%AS in_round%'
"""


@pytest.fixture
def url(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh database on each server."""
    url = postgres.create_database(request.getfixturevalue(f"postgres_{postgres.version}_template"))
    yield url
    postgres.drop_database(url)


def test_a_page_beside_many_finished_dispatches_is_not_planned_anew(url: str) -> None:
    with ThrowAwayLedgers(url) as ledgers, psycopg.connect(url, autocommit=True) as owner:
        ledger = ledgers()
        settled_with(ledger, asked_to_stop(ledger), DispatchResult.TERMINATION_REQUESTED)
        # Nothing but the planner looks at these, and it looks at no key of another table.
        owner.execute("SET session_replication_role = replica")
        for table in COPIED:
            owner.execute(sql.SQL(COPIES).format(table=sql.Identifier(table), count=sql.Literal(FINISHED)))
        owner.execute("VACUUM (ANALYZE)")
        due = asked_to_stop(ledger)
        for _ in range(ASKED):
            page, _ = ledger.due_dispatches(tuple(SERVED), limit=32)
            assert [item.run_id for item in page.items] == [due.run_id]
        # The pool gives back the connection that was returned last: it has run every page.
        fairy = ledger.database.raw_connection()
        try:
            plans = fairy.cursor().execute(SELECT_PLANS).fetchall()
        finally:
            fairy.close()
    ((generic, custom),) = plans
    assert generic > 0
    assert custom <= PLANNED_ANEW

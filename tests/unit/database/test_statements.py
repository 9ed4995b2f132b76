"""A statement is compiled once per database, to the driver's own text, with its constants and lists in place."""

from __future__ import annotations

import pytest
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.schema import CreateTable

from runfacts.domain.lifecycle import RunStatus
from runfacts.infrastructure.database.dialects import constant, one_of
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempt_is_active, attempts, ledger_meta, run_has_attempt, runs


def words(statement: Statement, dialect: str) -> str:
    return " ".join(statement.compiled(dialect).text.split())


def test_parameters_are_written_as_each_driver_takes_them() -> None:
    statement = Statement("one", select(runs.c.task).where(runs.c.version == bindparam("version")))
    assert words(statement, "sqlite") == "SELECT runs.task FROM runs WHERE runs.version = :version"
    assert words(statement, "postgresql") == "SELECT runs.task FROM runs WHERE runs.version = %(version)s::BIGINT"


def test_what_a_statement_was_built_with_is_bound_beside_what_it_is_given() -> None:
    statement = Statement(
        "next", update(runs).values(version=runs.c.version + 1).where(runs.c.run_id == bindparam("run"))
    )
    for dialect in ("sqlite", "postgresql"):
        assert statement.compiled(dialect).bind({"run": "x"}) == {"version_1": 1, "run": "x"}


def test_a_statement_without_constants_hands_its_parameters_on_as_they_are() -> None:
    statement = Statement("put", insert(ledger_meta).values(key=bindparam("key"), value=bindparam("value")))
    given = {"key": "a", "value": "x"}
    assert statement.compiled("sqlite").bind(given) is given


def test_a_list_is_json_for_sqlite_and_an_array_for_postgresql() -> None:
    statement = Statement("some", select(runs.c.task).where(one_of(runs.c.status, "statuses")))
    given = {"statuses": (RunStatus.QUEUED, RunStatus.LOST)}
    assert words(statement, "sqlite").endswith("WHERE runs.status IN (SELECT value FROM json_each(:statuses))")
    assert statement.compiled("sqlite").bind(given) == {"statuses": '["queued", "lost"]'}
    assert words(statement, "postgresql").endswith("WHERE runs.status = ANY (%(statuses)s::TEXT[])")
    assert statement.compiled("postgresql").bind(given) == {"statuses": ["queued", "lost"]}


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_conditions_of_partial_indexes_are_spelled_out(dialect: str) -> None:
    of_runs = Statement("runs", select(runs.c.run_id).where(run_has_attempt(runs.c.status)))
    assert words(of_runs, dialect).endswith("WHERE runs.status IN ('dispatching', 'running', 'waiting_approval')")
    of_attempts = Statement("attempts", select(attempts.c.run_id).where(attempt_is_active(attempts.c.status)))
    assert words(of_attempts, dialect).endswith("WHERE attempts.status IN ('claimed', 'running', 'starting')")
    assert dict(of_runs.compiled(dialect).constants) == {}


def test_a_constant_with_a_quote_in_it_stays_one_constant() -> None:
    statement = Statement("odd", select(runs.c.run_id).where(runs.c.task == constant("o'clock")))
    assert words(statement, "sqlite").endswith("WHERE runs.task = 'o''clock'")


def test_texts_that_differ_keep_their_parameters_and_percent_signs() -> None:
    statement = Statement(
        "like",
        {
            "sqlite": "SELECT 1 WHERE :word LIKE '50%'",
            "postgresql": "SELECT 1 WHERE CAST(:word AS text) LIKE '50%'",
        },
    )
    assert words(statement, "sqlite") == "SELECT 1 WHERE :word LIKE '50%'"
    assert words(statement, "postgresql") == "SELECT 1 WHERE CAST(%(word)s AS text) LIKE '50%%'"


def test_a_statement_is_compiled_once() -> None:
    statement = Statement("one", {"sqlite": "SELECT 1"})
    assert statement.compiled("sqlite") is statement.compiled("sqlite")
    assert (statement.before, statement.after) == ("sql:before:one", "sql:after:one")
    assert repr(statement) == "Statement('one')"


def test_what_is_no_query_is_refused() -> None:
    with pytest.raises(TypeError, match="statement odd is no query"):
        Statement("odd", CreateTable(runs)).compiled("sqlite")

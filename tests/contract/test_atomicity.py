"""
A failure at any statement of any command leaves nothing behind, and the same command then succeeds (R4.1).

The steps of each command are discovered by running it, and then it fails at each of them: in a transaction of its
own, and in a caller's, which is committed all the same. On PostgreSQL a command's own writes are one statement and
have no steps between them; so the database itself is made to fail, by a trigger, at every row that the command
writes, on every database.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event

from every_command import ALONE, COMMANDS, Act, claim_delivery
from failing_database import failing
from runfacts import Claimed, Ledger, Renewed
from runfacts.infrastructure.database.engines import parse_url
from runfacts.infrastructure.database.tables import metadata
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of
from runfacts.testing.steps import FailAt, RecordedSteps, listening
from stages import WORKER, one_writer, running

every_command = pytest.mark.parametrize("prepare", COMMANDS + ALONE, ids=lambda prepare: prepare.__name__)
every_joinable_command = pytest.mark.parametrize("prepare", COMMANDS, ids=lambda prepare: prepare.__name__)
Prepare = Callable[[Ledger], Act]


class InjectedError(Exception):
    """What a test makes the product run into."""


def steps_of(ledger: Ledger, act: Callable[[], object]) -> tuple[list[tuple[str, int]], object]:
    """Give the steps before the commit is done, each with how often it came before, and the answer."""
    recorded = RecordedSteps()
    with listening(ledger, recorded):
        answer = act()
    names = [name for name in recorded.names if "ledger_id" not in name]
    if "sql:after:commit" in names:
        names = names[: names.index("sql:after:commit")]
    seen: Counter[str] = Counter()
    steps = []
    for name in names:
        seen[name] += 1
        steps.append((name, seen[name]))
    assert steps
    return steps, answer


@every_command
def test_a_failure_at_each_step_leaves_no_trace(ledger_factory: ThrowAwayLedgers, prepare: Prepare) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    act = prepare(other)
    steps, expected = steps_of(ledger, lambda: act(ledger, None))
    assert ("sql:before:commit", 1) in steps
    for name, nth in steps:
        again = prepare(other)
        before = contents_of(ledger)
        with listening(ledger, FailAt(name, InjectedError, nth=nth)), pytest.raises(InjectedError):
            again(ledger, None)
        assert contents_of(ledger) == before, name
        assert type(again(ledger, None)) is type(expected), name
    assert ledger.verify().clean


@pytest.fixture
def caller(ledger: Ledger, database_url: str) -> Iterator[Connection]:
    """A connection of the application that uses the ledger."""
    engine = create_engine(parse_url(database_url))
    if one_writer(ledger):

        @event.listens_for(engine, "connect")
        def _foreign_keys(connection: Any, _record: object) -> None:  # noqa: ANN401 - the driver's connection
            connection.execute("PRAGMA foreign_keys=ON")

    with engine.connect() as connection:
        yield connection
    engine.dispose()


@every_joinable_command
def test_in_a_callers_transaction_too(
    ledger: Ledger, ledger_factory: ThrowAwayLedgers, caller: Connection, prepare: Prepare
) -> None:
    other = ledger_factory()
    act = prepare(other)
    steps, expected = steps_of(ledger, lambda: act(ledger, caller))
    caller.commit()
    assert ("sql:after:insert_fact", 1) in steps
    for name, nth in steps:
        again = prepare(other)
        before = contents_of(ledger)
        with listening(ledger, FailAt(name, InjectedError, nth=nth)), pytest.raises(InjectedError):
            again(ledger, caller)
        caller.commit()
        assert contents_of(ledger) == before, name
        assert type(again(ledger, caller)) is type(expected), name
        caller.commit()
    assert ledger.verify().clean


def written(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Say which rows a command wrote: table, operation, and the type of a fact."""
    found = []
    for table, rows in after.items():
        columns = metadata.tables[table].columns.keys()
        places = [columns.index(column.name) for column in metadata.tables[table].primary_key]
        keys = {tuple(row[at] for at in places) for row in before[table]}
        for row in rows:
            if tuple(row[at] for at in places) not in keys:
                found.append((table, "INSERT", row[3] if table == "facts" else ""))
            elif row not in before[table]:
                found.append((table, "UPDATE", ""))
    return found


@every_command
def test_a_failure_of_the_database_at_each_row_leaves_no_trace(
    ledger_factory: ThrowAwayLedgers, prepare: Prepare
) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    act = prepare(other)
    before = contents_of(ledger)
    expected = act(ledger, None)
    rows = written(before, contents_of(ledger))
    assert {table for table, _, _ in rows} <= set(metadata.tables)
    # Only an ordinary claim of a delivery records nothing (R1.5).
    assert (("facts", "INSERT") in {(table, operation) for table, operation, _ in rows}) is (
        prepare is not claim_delivery
    )
    for table, operation, fact_type in rows:
        again = prepare(other)
        before = contents_of(ledger)
        with failing(ledger, table, operation, fact_type):
            with pytest.raises(ledger.database.driver_error, match="injected"):
                again(ledger, None)
            assert contents_of(ledger) == before, (table, operation, fact_type)
        assert type(again(ledger, None)) is type(expected), (table, operation, fact_type)
    assert ledger.verify().clean


def test_a_claim_writes_the_rows_that_it_should(ledger: Ledger) -> None:
    prepare = next(command for command in COMMANDS if command.__name__ == "claim")
    act = prepare(ledger)
    before = contents_of(ledger)
    assert isinstance(act(ledger, None), Claimed)
    assert sorted(written(before, contents_of(ledger))) == [
        ("attempts", "INSERT", ""),
        ("executions", "INSERT", ""),
        ("facts", "INSERT", "attempt.claimed"),
        ("facts", "INSERT", "run.dispatching"),
        ("runs", "UPDATE", ""),
    ]


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        # Its confirmation is due when the lease ends, which is as soon as the host's time to report is over.
        (
            "settle_delivered",
            [
                ("cancellation_dispatches", "UPDATE", ""),
                ("facts", "INSERT", "run.cancel_dispatched"),
                ("runs", "UPDATE", ""),
            ],
        ),
        (
            "ask_to_stop",
            [
                ("cancellation_dispatches", "INSERT", ""),
                ("executions", "UPDATE", ""),
                ("facts", "INSERT", "run.cancel_requested"),
                ("recovery_claims", "INSERT", ""),
                ("runs", "UPDATE", ""),
            ],
        ),
        (
            "end_as_cancelled",
            [
                ("attempts", "UPDATE", ""),
                ("cancellation_dispatches", "UPDATE", ""),
                ("executions", "UPDATE", ""),
                ("facts", "INSERT", "attempt.cancelled"),
                ("facts", "INSERT", "run.cancelled"),
                ("recovery_claims", "UPDATE", ""),
                ("runs", "UPDATE", ""),
            ],
        ),
        (
            "fail_to_be_retried",
            [
                ("attempts", "UPDATE", ""),
                ("executions", "UPDATE", ""),
                ("facts", "INSERT", "attempt.failed"),
                ("facts", "INSERT", "run.retry_wait"),
                ("recovery_claims", "INSERT", ""),
                ("runs", "UPDATE", ""),
            ],
        ),
    ],
)
def test_these_commands_write_the_rows_that_they_should(
    ledger: Ledger, name: str, rows: list[tuple[str, str, str]]
) -> None:
    prepare = next(command for command in COMMANDS + ALONE if command.__name__ == name)
    act = prepare(ledger)
    before = contents_of(ledger)
    act(ledger, None)
    assert sorted(written(before, contents_of(ledger))) == rows


def test_a_renewal_that_fails_renews_nothing(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = running(ledger)
    steps, _ = steps_of(ledger, lambda: ledger.renew(claim))
    manual_clock.advance(5)
    before = contents_of(ledger)
    for name, nth in steps:
        with listening(ledger, FailAt(name, InjectedError, nth=nth)), pytest.raises(InjectedError):
            ledger.renew(claim)
        assert contents_of(ledger) == before, name
    with failing(ledger, "executions", "UPDATE"), pytest.raises(ledger.database.driver_error, match="injected"):
        ledger.renew(claim)
    assert contents_of(ledger) == before
    assert isinstance(ledger.renew(claim), Renewed)
    assert ledger.history(claim.run_id)[-1].actor == WORKER

"""What only one of the databases lets happen to a ledger, and what ``verify`` can and cannot see of it (R1.3, R3.1)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from histories import BY_RUN_STATUS, RUN
from runfacts import DatabaseCorrupt, Finished, Ledger, Outcome
from runfacts.domain.history import History, RecordedBy
from runfacts.domain.lifecycle import RunStatus
from runfacts.infrastructure.database.tables import executions, facts, runs
from runfacts.infrastructure.database.transactions import Transaction
from runfacts.infrastructure.stores.executions import INSERT_EXECUTION
from runfacts.infrastructure.stores.facts import INSERT_FACT, fact_row
from runfacts.infrastructure.stores.state import attempt_row, run_row
from runfacts.infrastructure.stores.writes import INSERT_ATTEMPT, INSERT_RUN
from runfacts.testing.ledgers import ThrowAwayLedgers, sqlite_ledgers
from runfacts.testing.postgres import PostgresServer
from stages import ANA, WORKER, created, finished, running
from tampering import owner_of

TEXTS = [column.name for column in facts.c if column.type.python_type is str]


def found(ledger: Ledger, run_id: str | None = None) -> set[tuple[str, str, int | None]]:
    """Where differences are, seen to be printable."""
    report = ledger.verify(run_id)
    f"{report}".encode()
    return {(item.kind, item.field, item.sequence) for item in report.differences}


@pytest.mark.parametrize("column", TEXTS)
def test_a_byte_that_is_no_text_is_found_in_any_column_of_a_fact(tmp_path: Path, column: str) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with ThrowAwayLedgers(url) as ledgers:
        ledger = ledgers()
        finished(ledger)
        with owner_of(url) as owner:
            ((value, position),) = owner.rows(
                f"SELECT coalesce({column}, 'x'), position FROM facts WHERE type = 'attempt.claimed'"
            )
            damaged = bytearray(value.encode())
            damaged[0] |= 0x80
            owner.run(f"UPDATE facts SET {column} = CAST(? AS TEXT) WHERE position = ?", [bytes(damaged), position])
        named = found(ledger)
    if column == "run_id":
        assert {("sequence", "sequence", 4), ("run", "run_id", None)} <= named
    else:
        assert ("hash", "hash", 4) in named


@pytest.mark.parametrize("column", [column.name for column in runs.c if column.type.python_type is str])
def test_a_byte_that_is_no_text_is_found_in_any_column_of_a_run(tmp_path: Path, column: str) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with ThrowAwayLedgers(url) as ledgers:
        ledger = ledgers()
        finished(ledger)
        with owner_of(url) as owner:
            owner.run(f"UPDATE runs SET {column} = CAST(? AS TEXT)", [b"\xff\xfe"])
        assert ("run", column, None) in found(ledger)
        # Other readings go on as before.
        assert ledger.create(actor=ANA, task="naïve").run.task == "naïve"


def test_other_readings_of_a_byte_that_is_no_text_say_what_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with ThrowAwayLedgers(url) as ledgers:
        ledger = ledgers()
        damaged, clean = finished(ledger).run_id, finished(ledger).run_id
        with owner_of(url) as owner:
            owner.run("UPDATE facts SET project = CAST(? AS TEXT) WHERE run_id = ?", [b"\xff", damaged])
        for read in (ledger.run, ledger.history):
            with pytest.raises(DatabaseCorrupt, match="no text; `runfacts verify` names them"):
                read(damaged)
            read(clean)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE facts SET aggregate_version = 9 WHERE run_id = ? AND sequence = 3",
        "DELETE FROM facts WHERE run_id = ? AND sequence < 4",
        "DELETE FROM facts WHERE run_id = ? AND aggregate_id = run_id",
    ],
)
def test_a_run_whose_facts_make_no_history_is_refused_by_name_and_harms_no_other(
    ledger_factory: ThrowAwayLedgers, damage: str
) -> None:
    ledger = ledger_factory()
    damaged, sound = running(ledger), running(ledger)
    with owner_of(ledger_factory.url) as owner:
        owner.run(damage, [damaged.run_id])
    left = ledger.history(damaged.run_id)
    # Another user of the database, who has no history of it from before.
    other = ledger_factory()
    commands: list[Callable[[], object]] = [
        lambda: other.run(damaged.run_id),
        lambda: other.finish(damaged, Outcome.succeeded(), actor=WORKER),
        lambda: other.queue(damaged.run_id, actor=ANA),
    ]
    for command in commands:
        with pytest.raises(DatabaseCorrupt, match=f"{damaged.run_id} makes no history; `runfacts verify` names"):
            command()
    assert other.facts(run_id=damaged.run_id).items == left
    assert isinstance(other.finish(sound, Outcome.succeeded(), actor=WORKER), Finished)
    assert not other.verify().clean


def test_a_run_of_which_only_its_row_is_left_is_refused_by_name(ledger_factory: ThrowAwayLedgers) -> None:
    run_id = created(ledger_factory())
    with owner_of(ledger_factory.url) as owner:
        owner.run("DELETE FROM facts")
    with pytest.raises(DatabaseCorrupt, match="makes no history"):
        ledger_factory().queue(run_id, actor=ANA)


def test_a_position_that_is_missing_or_moved_is_found_in_the_whole_ledger(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with ThrowAwayLedgers(url) as ledgers:
        ledger = ledgers()
        for _ in range(3):
            created(ledger)
        run_id = created(ledger)
        with owner_of(url) as owner:
            owner.run("UPDATE facts SET position = 9 WHERE position = 4")
        (moved,) = ledger.verify().differences
        assert (moved.run_id, moved.kind, moved.sequence) == (run_id, "position", 1)
        assert (moved.recorded, moved.recomputed) == ("9", "4")
        # Of the Run alone nothing is wrong: its only fact is its first.
        assert ledger.verify(run_id).clean
        with owner_of(url) as owner:
            owner.run("UPDATE facts SET position = 4 WHERE position = 9")
            owner.run("UPDATE facts SET position = position - 7 WHERE position <= 2")
        assert {(item.recorded, item.recomputed) for item in ledger.verify().differences} == {
            ("-6", "above 0"),
            ("-5", "above 0"),
            ("-6", "1"),
            ("3", "-4"),
        }


def test_more_positions_than_a_page_are_looked_at(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with ThrowAwayLedgers(url) as ledgers:
        ledger = ledgers()
        run_id = record_many(ledger, 250)[-1]
        assert ledger.verify().clean
        with owner_of(url) as owner:
            owner.run("UPDATE facts SET position = 3000 WHERE position = 2250")
        (moved,) = ledger.verify().differences
        assert (moved.run_id, moved.recorded, moved.recomputed, moved.sequence) == (run_id, "3000", "2250", 9)


def remove_whole_run(url: str, run_id: str) -> None:
    """Remove everything of a Run."""
    with owner_of(url) as owner:
        for table in ("facts", "attempts", "executions", "runs"):
            owner.run(f"DELETE FROM {table} WHERE run_id = ?", [run_id])


def test_a_run_that_was_removed_whole_leaves_a_hole_on_sqlite_unless_it_was_the_last(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with ThrowAwayLedgers(url) as ledgers:
        ledger = ledgers()
        first, second, third = (finished(ledger).run_id for _ in range(3))
        remove_whole_run(url, third)
        assert ledger.verify().clean
        remove_whole_run(url, first)
        (hole,) = ledger.verify().differences
        assert (hole.run_id, hole.kind, hole.recorded, hole.recomputed) == (second, "position", "10", "1")


def test_postgresql_shows_neither_a_removed_run_nor_a_moved_position_but_a_kept_head_does(
    postgres_18: PostgresServer, postgres_18_template: str
) -> None:
    url = postgres_18.create_database(postgres_18_template)
    with ThrowAwayLedgers(url) as ledgers:
        ledger = ledgers()
        one, other = finished(ledger).run_id, finished(ledger).run_id
        heads = list(ledger.heads())
        with owner_of(url) as owner:
            # In the order of its Run it is where it was.
            owner.run("UPDATE facts SET position = 1000 WHERE run_id = ? AND sequence = 9", [other])
        remove_whole_run(url, one)
        assert ledger.verify().clean
        assert [head.run_id for head in heads if head not in set(ledger.heads())] == [one]
    postgres_18.drop_database(url)


@pytest.mark.parametrize("column", ["recorded_at_ms", "payload", "hash", "type", "sequence"])
def test_a_value_that_no_fact_may_lack_is_named_and_stops_nothing(
    postgres_18: PostgresServer, postgres_18_template: str, column: str
) -> None:
    url = postgres_18.create_database(postgres_18_template)
    with ThrowAwayLedgers(url) as ledgers:
        ledger = ledgers()
        damaged, clean = finished(ledger).run_id, finished(ledger).run_id
        with owner_of(url) as owner, psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"ALTER TABLE facts ALTER COLUMN {column} DROP NOT NULL".encode())
            owner.run(f"UPDATE facts SET {column} = NULL WHERE run_id = ? AND sequence = 3", [damaged])
        (difference,) = ledger.verify().differences
        assert (difference.run_id, difference.kind, difference.field, difference.recorded) == (
            damaged,
            "fact",
            column,
            None,
        )
        assert difference.sequence == (None if column == "sequence" else 3)
        assert ledger.verify(clean).clean
    postgres_18.drop_database(url)


def record_many(ledger: Ledger, count: int, *, first: int = 0) -> list[str]:
    """Record ended Runs of nine facts each, a hundred in a transaction; their ids."""
    ids = [f"{RUN[:-8]}{number:08x}" for number in range(first, first + count)]
    for start in range(0, count, 100):
        with ledger.database.transaction() as transaction:
            for run_id in ids[start : start + 100]:
                record_ended_run(transaction, run_id)
    return ids


def record_ended_run(transaction: Transaction, run_id: str) -> None:
    attempt_id = run_id.replace("01890000", "01890001")
    history = History(run_id, "shop")
    drafts = [replace(draft, attempt_id=draft.attempt_id and attempt_id) for draft in BY_RUN_STATUS[RunStatus.FAILED]]
    recorded = history.record(drafts, RecordedBy(ANA, 1_000))
    transaction.run(INSERT_RUN, run_row(history))
    execution = dict.fromkeys((column.name for column in executions.c), None) | {
        "attempt_id": attempt_id,
        "run_id": run_id,
        "executor_type": "local",
        "gated": 0,
        "scope": "",
        "lease_token_digest": "0" * 64,
        "callback_token_digest": "0" * 64,
        "callback_sequence": 2,
        "lease_expires_at_ms": 1_000,
        "lease_boot_id": RUN,
        "lease_expires_boot_ms": 1_000,
        "seen_at_ms": 1_000,
        "closed_at_ms": 1_000,
    }
    transaction.run(INSERT_EXECUTION, execution)
    transaction.run(INSERT_ATTEMPT, attempt_row(history.attempts[attempt_id]))
    for fact in recorded:
        transaction.rows(INSERT_FACT, fact_row(fact))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_hundred_thousand_facts_are_verified_in_bounded_memory() -> None:
    with sqlite_ledgers() as ledgers:
        ledger = ledgers()
        record_many(ledger, 1_000)
        ledger.verify()

        def peak_bytes() -> int:
            tracemalloc.start()
            try:
                assert ledger.verify().clean
                return tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()

        few = peak_bytes()
        record_many(ledger, 10_200, first=1_000)
        report = ledger.verify()
        assert (report.runs, report.facts, report.clean) == (11_200, 100_800, True)
        # Eleven times the facts, and the memory of a page.
        assert peak_bytes() < few + 1_000_000

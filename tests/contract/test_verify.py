"""``verify`` finds what was changed, removed or added past all defences, and only that (R1.3, R3.1, R3.10, R14.2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Table

from runfacts import AttemptClaim, Claimed, Ledger, Outcome, RetryPolicy, Started, VerifyReport
from runfacts.infrastructure.database.tables import attempts, executions, facts, runs
from stages import WORKER, created, finished, queued
from tampering import Owner, change, insert_copy, owner_of

OTHER_ID = "01890000-0000-7000-8000-00000000000f"
FACT_COLUMNS = [column.name for column in facts.c]
NULLABLE = [column.name for column in facts.c if column.nullable]

# What an execution says that no fact says: claims, which are never rebuilt from facts (R1.2).
CLAIMS = {
    "scope",
    "pid",
    "lease_token_digest",
    "lease_expires_at_ms",
    "lease_boot_id",
    "lease_expires_boot_ms",
    "callback_sequence",
    "callback_token_digest",
    "log_path",
    "receipt_path",
    "seen_at_ms",
}


def full_claim(ledger: Ledger, **options: Any) -> AttemptClaim:  # noqa: ANN401 - any option of create
    """A running Attempt whose claim filled every optional column of its fact."""
    run_id = queued(ledger, **options)
    answer = ledger.claim(
        run_id,
        actor=WORKER,
        executor_type="local",
        gated=True,
        worker_id="w-1",
        dedupe_key="claim-1",
        correlation_id="order-7",
        causation_id="mail-9",
    )
    assert isinstance(answer, Claimed)
    assert isinstance(ledger.start(answer.claim, actor=WORKER, timeout_ms=60_000), Started)
    ledger.running(answer.claim, actor=WORKER, handle="1:linux", pid=7)
    return answer.claim


def full_run(ledger: Ledger) -> AttemptClaim:
    """An ended Run with something in nearly every column of its rows."""
    claim = full_claim(
        ledger,
        idempotency_key="key-1",
        retry_of_run_id=created(ledger),
        deadline_at_ms=ledger.database.clock.wall_ms() + 1_000_000,
        policy=RetryPolicy(max_attempts=3),
    )
    ledger.finish(claim, Outcome.failed(exit_code=7, error_code="E7", error_summary="seven"), actor=WORKER)
    return claim


@contextmanager
def changed(owner: Owner, table: str, key: dict[str, object], column: str, value: object) -> Iterator[None]:
    """One column of one row, changed for a while."""
    where = " AND ".join(f"{name} = ?" for name in key)
    ((was,),) = owner.rows(f"SELECT {column} FROM {table} WHERE {where}", list(key.values()))
    assert was != value
    change(owner, table, key, column, value)
    # The row is found again by what it has now.
    yield
    change(owner, table, key | ({column: value} if column in key else {}), column, was)


def others(value: object) -> list[object]:
    """What one flipped bit in any byte of a value makes of it; what could stand where nothing stood."""
    if value is None:
        return ["x" * 36]
    if isinstance(value, int):
        return [value ^ (1 << bit) for bit in (5, 20, 40, 61)]
    text = str(value)
    return [text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :] for at in range(len(text))]


def found(report: VerifyReport) -> set[tuple[str, str, str, int | None]]:
    """Where differences are: the Run, what was looked at, the field and the sequence."""
    return {(item.run_id, item.kind, item.field, item.sequence) for item in report.differences}


@pytest.mark.parametrize("column", FACT_COLUMNS)
def test_one_changed_byte_in_any_column_of_a_fact_is_found(ledger: Ledger, database_url: str, column: str) -> None:
    run_id = full_run(ledger).run_id
    original = ledger.verify(run_id)
    assert (original.clean, original.facts) == (True, 9)
    fact = ledger.history(run_id)[3]
    assert (fact.type, fact.dedupe_key) == ("attempt.claimed", "claim-1")
    with owner_of(database_url) as owner:
        key: dict[str, object] = {"hash": fact.hash}
        ((value,),) = owner.rows(f"SELECT {column} FROM facts WHERE hash = ?", [fact.hash])
        for other in others(value):
            with changed(owner, "facts", key, column, other):
                where = found(ledger.verify(run_id))
            if column == "position":
                # No part of the hash, but positions rise with sequences.
                assert where == {(run_id, "position", "position", 5)}
            elif column in {"run_id", "sequence"}:
                # Its place is empty; the fact that follows is where it should have been.
                assert (run_id, "sequence", "sequence", 4) in where
            else:
                assert (run_id, "hash", "hash", 4) in where
                assert {sequence for _, _, _, sequence in where} <= {4, 5, None}
    assert ledger.verify(run_id) == original


def test_a_value_that_was_taken_away_is_found(ledger: Ledger, database_url: str) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        for column in NULLABLE:
            with changed(owner, "facts", {"run_id": run_id, "sequence": 4}, column, None):
                where = found(ledger.verify())
            assert (column, run_id, "hash", "hash", 4) in {(column, *item) for item in where}
    assert ledger.verify().clean


def test_a_value_that_was_put_where_none_was_is_found(ledger: Ledger, database_url: str) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        # Who created the Run is known; nothing else is.
        for column in set(NULLABLE) - {"actor_id"}:
            with changed(owner, "facts", {"run_id": run_id, "sequence": 1}, column, OTHER_ID):
                where = found(ledger.verify())
            assert (column, run_id, "hash", "hash", 1) in {(column, *item) for item in where}
    assert ledger.verify().clean


def test_a_changed_hash_is_named_once_and_at_the_head_also_in_the_runs_row(ledger: Ledger, database_url: str) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        with changed(owner, "facts", {"run_id": run_id, "sequence": 4}, "hash", "0" * 64):
            assert found(ledger.verify(run_id)) == {(run_id, "hash", "hash", 4)}
        with changed(owner, "facts", {"run_id": run_id, "sequence": 9}, "hash", "0" * 64):
            assert found(ledger.verify(run_id)) == {(run_id, "hash", "hash", 9), (run_id, "run", "head_hash", None)}


def test_a_fact_that_went_to_another_run_is_missed_in_one_and_found_in_the_other(
    ledger: Ledger, database_url: str
) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        change(owner, "facts", {"run_id": run_id, "sequence": 4}, "run_id", OTHER_ID)
    where = found(ledger.verify())
    assert (run_id, "sequence", "sequence", 4) in where
    assert (OTHER_ID, "sequence", "sequence", 1) in where
    assert (OTHER_ID, "run", "run_id", None) in where


def test_any_changed_column_of_a_run_is_found(ledger: Ledger, database_url: str) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        for column in runs.c.keys()[1:]:
            ((value,),) = owner.rows(f"SELECT {column} FROM runs WHERE run_id = ?", [run_id])
            for other in wrong_values(runs, column, value):
                with changed(owner, "runs", {"run_id": run_id}, column, other):
                    report = ledger.verify(run_id)
                assert found(report) == {(run_id, "run", column, None)}
                assert report.differences[0].recomputed == (None if value is None else str(value))
    assert ledger.verify(run_id).clean


def test_any_changed_column_of_an_attempt_is_found(ledger: Ledger, database_url: str) -> None:
    claim = full_run(ledger)
    with owner_of(database_url) as owner:
        for column in attempts.c.keys()[2:]:
            ((value,),) = owner.rows(f"SELECT {column} FROM attempts WHERE attempt_id = ?", [claim.attempt_id])
            for other in wrong_values(attempts, column, value):
                with changed(owner, "attempts", {"attempt_id": claim.attempt_id}, column, other):
                    assert found(ledger.verify(claim.run_id)) == {(claim.run_id, "attempt", column, None)}
    assert ledger.verify(claim.run_id).clean


def test_any_column_of_an_execution_that_facts_speak_of_is_compared(ledger: Ledger, database_url: str) -> None:
    claim = full_run(ledger)
    with owner_of(database_url) as owner:
        for column in set(executions.c.keys()[2:]) - CLAIMS:
            ((value,),) = owner.rows(f"SELECT {column} FROM executions WHERE attempt_id = ?", [claim.attempt_id])
            # Of a handle only whether it is there is known from facts.
            other = None if column == "handle" else wrong_values(executions, column, value)[0]
            with changed(owner, "executions", {"attempt_id": claim.attempt_id}, column, other):
                assert found(ledger.verify(claim.run_id)) == {(claim.run_id, "execution", column, None)}
    assert ledger.verify(claim.run_id).clean


def wrong_values(table: Table, column: str, value: object) -> list[object]:
    """Values that a column could have instead, if no constraint refused them."""
    if value is None:
        return [7 if table.c[column].type.python_type is int else OTHER_ID]
    return [*others(value)[:2], *([None] if table.c[column].nullable else [])]


def test_the_columns_of_an_execution_that_are_claims_are_named_here() -> None:
    assert {column.name for column in executions.c} > CLAIMS


def test_a_gated_attempt_has_a_handle_exactly_when_it_runs(ledger: Ledger, database_url: str) -> None:
    claim = full_claim(ledger)
    starting = queued(ledger)
    answer = ledger.claim(starting, actor=WORKER, executor_type="local", gated=True)
    assert isinstance(answer, Claimed)
    ledger.start(answer.claim, actor=WORKER)
    with owner_of(database_url) as owner:
        with changed(owner, "executions", {"attempt_id": claim.attempt_id}, "handle", None):
            (missing,) = ledger.verify().differences
        with changed(owner, "executions", {"attempt_id": answer.claim.attempt_id}, "handle", "h"):
            (early,) = ledger.verify().differences
    assert (missing.run_id, missing.kind, missing.field) == (claim.run_id, "execution", "handle")
    assert (missing.recorded, missing.recomputed) == ("no handle", "a handle")
    assert (early.run_id, early.recorded, early.recomputed) == (starting, "a handle", "no handle")


@pytest.mark.parametrize(
    ("table", "kind", "field"),
    [("runs", "run", "run_id"), ("attempts", "attempt", "attempt_id"), ("executions", "execution", "attempt_id")],
)
def test_a_missing_row_is_found(ledger: Ledger, database_url: str, table: str, kind: str, field: str) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        owner.run(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
    (difference,) = ledger.verify().differences
    assert (difference.run_id, difference.kind, difference.field, difference.recorded) == (run_id, kind, field, None)
    assert difference.recomputed is not None


@pytest.mark.parametrize(
    ("table", "changes", "named"),
    [
        ("runs", {"run_id": OTHER_ID, "idempotency_key": None}, ("run", "run_id")),
        ("attempts", {"attempt_id": OTHER_ID, "number": 2}, ("attempt", "attempt_id")),
        ("attempts", {"attempt_id": OTHER_ID, "run_id": OTHER_ID}, ("attempt", "attempt_id")),
        ("executions", {"attempt_id": OTHER_ID}, ("execution", "attempt_id")),
        ("executions", {"attempt_id": OTHER_ID, "run_id": OTHER_ID}, ("execution", "attempt_id")),
    ],
)
def test_a_row_too_many_is_found(
    ledger: Ledger, database_url: str, table: str, changes: dict[str, object], named: tuple[str, str]
) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        insert_copy(owner, table, {"run_id": run_id}, changes)
    (difference,) = ledger.verify().differences
    assert difference.run_id == changes.get("run_id", run_id)
    assert (difference.kind, difference.field) == named
    assert (difference.recorded, difference.recomputed) == (OTHER_ID, None)


@pytest.mark.parametrize("table", ["attempts", "executions"])
def test_a_row_that_went_to_another_run_is_found(ledger: Ledger, database_url: str, table: str) -> None:
    claim = full_run(ledger)
    with owner_of(database_url) as owner:
        change(owner, table, {"attempt_id": claim.attempt_id}, "run_id", OTHER_ID)
    assert {item.run_id for item in ledger.verify().differences} == {claim.run_id, OTHER_ID}


def test_swapped_facts_are_found(ledger: Ledger, database_url: str) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        for was, becomes in ((7, 700), (8, 7), (700, 8)):
            change(owner, "facts", {"run_id": run_id, "sequence": was}, "sequence", becomes)
    where = found(ledger.verify())
    assert {(run_id, "hash", "hash", 7), (run_id, "hash", "hash", 8), (run_id, "position", "position", 8)} <= where


def test_swapped_payloads_are_found(ledger: Ledger, database_url: str) -> None:
    one, other = finished(ledger), finished(ledger, Outcome.failed(exit_code=7))
    with owner_of(database_url) as owner:
        change(owner, "facts", {"run_id": other.run_id, "sequence": 8}, "payload", '{"exit_code":0}')
    where = found(ledger.verify())
    assert (other.run_id, "hash", "hash", 8) in where
    assert one.run_id not in {item[0] for item in where}


@pytest.mark.parametrize("sequence", [1, 4, 8])
def test_a_removed_fact_is_found_at_its_place(ledger: Ledger, database_url: str, sequence: int) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        owner.run("DELETE FROM facts WHERE run_id = ? AND sequence = ?", [run_id, sequence])
    where = found(ledger.verify(run_id))
    assert (run_id, "sequence", "sequence", sequence) in where
    # What follows is still chained, and said to be.
    assert not any(kind == "hash" for _, kind, _, _ in where)


def test_removed_facts_at_the_end_are_found_in_the_rows(ledger: Ledger, database_url: str) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        owner.run("DELETE FROM facts WHERE run_id = ? AND sequence > 7", [run_id])
    where = found(ledger.verify(run_id))
    assert {
        (run_id, "run", "version", None),
        (run_id, "run", "head_hash", None),
        (run_id, "run", "status", None),
    } <= where


def test_removed_facts_and_kept_rows_are_found(ledger: Ledger, database_url: str) -> None:
    claim = full_run(ledger)
    with owner_of(database_url) as owner:
        owner.run("DELETE FROM facts WHERE run_id = ?", [claim.run_id])
    where = found(ledger.verify(claim.run_id))
    assert where == {(claim.run_id, "run", "run_id", None), (claim.run_id, "attempt", "attempt_id", None)}


def test_an_appended_fact_that_the_rows_do_not_know_is_found(ledger: Ledger, database_url: str) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        insert_copy(
            owner,
            "facts",
            {"run_id": run_id, "sequence": 9},
            {"sequence": 10, "aggregate_version": 6, "dedupe_key": None},
        )
    where = found(ledger.verify(run_id))
    assert {(run_id, "hash", "hash", 10), (run_id, "run", "version", None)} <= where


def test_a_damaged_run_does_not_hide_the_others(ledger: Ledger, database_url: str) -> None:
    damaged = [finished(ledger).run_id for _ in range(3)]
    clean = finished(ledger).run_id
    with owner_of(database_url) as owner:
        for run_id in damaged:
            change(owner, "facts", {"run_id": run_id, "sequence": 2}, "project", "other")
    report = ledger.verify()
    assert [item.run_id for item in report.differences if item.kind == "hash"] == damaged
    assert clean not in {item.run_id for item in report.differences}
    assert (report.runs, report.facts) == (4, 36)


@pytest.mark.parametrize("payload", ["", "{", "[]", "null", "{}{}", '{"number":1 }', '{"number":1e0}', "[" * 16_000])
def test_a_payload_that_cannot_be_read_is_found_and_stops_nothing(
    ledger: Ledger, database_url: str, payload: str
) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        change(owner, "facts", {"run_id": run_id, "sequence": 3}, "payload", payload)
    where = found(ledger.verify())
    assert {(run_id, "hash", "hash", 3), (run_id, "payload", "payload", 3)} <= where


@pytest.mark.parametrize("at_ms", [-(1 << 62), (1 << 62) + 7])
def test_a_time_that_no_calendar_has_is_found_and_stops_nothing(ledger: Ledger, database_url: str, at_ms: int) -> None:
    run_id = full_run(ledger).run_id
    with owner_of(database_url) as owner:
        change(owner, "facts", {"run_id": run_id, "sequence": 1}, "recorded_at_ms", at_ms)
    assert (run_id, "hash", "hash", 1) in found(ledger.verify())


def test_a_run_of_which_only_rows_are_left_can_be_verified(ledger: Ledger, database_url: str) -> None:
    claim = full_run(ledger)
    with owner_of(database_url) as owner:
        insert_copy(owner, "executions", {"attempt_id": claim.attempt_id}, {"attempt_id": OTHER_ID, "run_id": OTHER_ID})
    assert found(ledger.verify(OTHER_ID)) == {(OTHER_ID, "execution", "attempt_id", None)}

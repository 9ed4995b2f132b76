"""The database refuses what the rules forbid, whoever writes.

R1, R2.8, R2.12, R3.1, R3.3, R3.5, R3.6, R5.2, R7.1, R8.2, R11.2, R12.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Table, bindparam, insert, select, update

import projection_shapes
import recovery_shapes
from recovery_shapes import ATTEMPT, BOOT, BOOT_CLAIM, CLAIM, COMMAND, DIGEST, RUN, SHAPES
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.database.recovery_tables import commands, recovery_claims
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, executions, facts, ledger_meta, metadata, runs

OTHER_RUN = "01890000-0000-7000-8000-000000000002"
OTHER_ATTEMPT = "01890000-0000-7000-8000-00000000000b"

Row = dict[str, Any]

FACT: Row = {
    "run_id": RUN,
    "sequence": 1,
    "type": "run.created",
    "schema_version": 1,
    "project": "default",
    "attempt_id": None,
    "actor_type": "user",
    "actor_id": "ana",
    "dedupe_key": "first",
    "correlation_id": None,
    "causation_id": None,
    "recorded_at_ms": 1_000,
    "payload": "{}",
    "aggregate_id": RUN,
    "aggregate_version": 1,
    "hash": DIGEST,
}
RUN_ROW: Row = {
    "run_id": RUN,
    "project": "default",
    "task": "build",
    "status": "dispatching",
    "version": 3,
    "head_hash": DIGEST,
    "execution_owner": "runtime",
    "policy": "{}",
    "idempotency_key": "once",
    "retry_of_run_id": None,
    "active_attempt_id": ATTEMPT,
    "attempt_count": 1,
    "intent_at_ms": None,
    "intent_kind": None,
    "deadline_at_ms": None,
    "retry_due_at_ms": None,
    "attested": 0,
    "created_at_ms": 1_000,
    "updated_at_ms": 1_000,
    "finished_at_ms": None,
}
EXECUTION: Row = {
    "attempt_id": ATTEMPT,
    "run_id": RUN,
    "executor_type": "local",
    "gated": 1,
    "scope": "",
    "worker_id": None,
    "handle": None,
    "pid": None,
    "lease_token_digest": DIGEST,
    "lease_expires_at_ms": 31_000,
    "callback_sequence": 0,
    "callback_token_digest": DIGEST,
    "deadline_at_ms": None,
    "log_path": None,
    "receipt_path": None,
    "recover_at_ms": 31_000,
    "seen_at_ms": 1_000,
    "closed_at_ms": None,
}
BOOT_LEASE: dict[str, Row] = {
    "sqlite": {"lease_boot_id": BOOT, "lease_expires_boot_ms": 30_000},
    "postgresql": {"lease_boot_id": None, "lease_expires_boot_ms": None},
}
ATTEMPT_ROW: Row = {
    "attempt_id": ATTEMPT,
    "run_id": RUN,
    "number": 1,
    "status": "claimed",
    "executor_type": "local",
    "worker_id": None,
    "exit_code": None,
    "signal": None,
    "error_code": None,
    "error_summary": None,
    "claimed_at_ms": 1_000,
    "started_at_ms": None,
    "running_at_ms": None,
    "finished_at_ms": None,
}

DISPATCH: Row = {
    "run_id": RUN,
    "attempt_id": ATTEMPT,
    "executor_type": "local",
    "scope": "",
    "status": "leased",
    "version": 1,
    "dispatch_count": 1,
    "tries_since_rearm": 1,
    "next_attempt_at_ms": None,
    "due_at_ms": 31_000,
    "lease_owner": "worker-1",
    "lease_token_digest": DIGEST,
    "lease_expires_at_ms": 31_000,
    "last_result": None,
    "last_dispatched_at_ms": None,
    "created_at_ms": 1_000,
    "updated_at_ms": 1_000,
}
NO_LEASE: Row = dict.fromkeys(
    ("lease_owner", "lease_token_digest", "lease_expires_at_ms", "lease_boot_id", "lease_expires_boot_ms")
)
PENDING: Row = NO_LEASE | {
    "status": "pending",
    "version": 0,
    "dispatch_count": 0,
    "tries_since_rearm": 0,
    "due_at_ms": 1_000,
}
WAITING: Row = NO_LEASE | {
    "status": "retry_wait",
    "next_attempt_at_ms": 2_000,
    "due_at_ms": 2_000,
    "last_result": "dispatch_error",
}
DISPATCHED: Row = NO_LEASE | {
    "status": "dispatched",
    "due_at_ms": None,
    "last_result": "already_exited",
    "last_dispatched_at_ms": 2_000,
}
BLOCKED: Row = NO_LEASE | {"status": "blocked", "due_at_ms": None, "last_result": "identity_mismatch"}

# What is refused, and by which constraint; several changes of one row each.
REFUSED: dict[str, tuple[Table, dict[str, list[Row]]]] = {
    "facts": (
        facts,
        {
            "run_id": [{"run_id": "x" * 35}],
            "attempt_id": [{"attempt_id": "x" * 37}, {"attempt_id": ""}],
            "aggregate_id": [{"aggregate_id": "x" * 35}],
            "hash": [{"hash": "d" * 63}, {"hash": "d" * 65}, {"hash": ""}],
            "type": [{"type": ""}, {"type": "t" * 201}],
            "project": [{"project": ""}, {"project": "p" * 201}],
            "actor_id": [{"actor_id": ""}, {"actor_id": "a" * 129}],
            "dedupe_key": [{"dedupe_key": ""}, {"dedupe_key": "k" * 257}],
            "correlation_id": [{"correlation_id": ""}, {"correlation_id": "k" * 257}],
            "causation_id": [{"causation_id": ""}, {"causation_id": "k" * 257}],
            "sequence": [{"sequence": 0}, {"sequence": -1}],
            "schema_version": [{"schema_version": 0}],
            "aggregate_version": [{"aggregate_version": 0}],
            "recorded_at_ms": [{"recorded_at_ms": -1}],
            "actor_type": [{"actor_type": "nobody"}, {"actor_type": ""}, {"actor_type": "USER"}],
            # 8,193 letters of two bytes: too long in bytes, not in characters.
            "payload": [{"payload": ""}, {"payload": "x" * 16_385}, {"payload": "é" * 8_193}],
        },
    ),
    "runs": (
        runs,
        {
            "run_id": [{"run_id": "x" * 35}],
            "retry_of_run_id": [{"retry_of_run_id": "x"}],
            "active_attempt_id": [{"active_attempt_id": "x" * 35}],
            "head_hash": [{"head_hash": ""}, {"head_hash": "d" * 65}],
            "project": [{"project": ""}, {"project": "p" * 201}],
            "task": [{"task": ""}, {"task": "t" * 201}],
            "idempotency_key": [{"idempotency_key": ""}, {"idempotency_key": "k" * 257}],
            "version": [{"version": 0}],
            "attempt_count": [{"attempt_count": -1, "active_attempt_id": None}],
            "created_at_ms": [{"created_at_ms": -1}],
            "intent_at_ms": [{"intent_at_ms": -1, "intent_kind": "user"}],
            "deadline_at_ms": [{"deadline_at_ms": -1}],
            "status": [{"status": "sleeping", "active_attempt_id": None}],
            "execution_owner": [{"execution_owner": "nobody"}],
            "intent_kind": [{"intent_at_ms": 1_000, "intent_kind": "whim"}],
            "policy": [{"policy": ""}, {"policy": "x" * 4_097}],
            "intent": [{"intent_at_ms": 1_000}, {"intent_kind": "user"}],
            "active_attempt": [{"status": "queued"}, {"status": "lost"}, {"attempt_count": 0}],
            "finished": [
                {"finished_at_ms": 2_000},
                {"status": "succeeded", "active_attempt_id": None},
                {"status": "timed_out", "active_attempt_id": None},
                {"status": "lost", "active_attempt_id": None, "finished_at_ms": 2_000},
            ],
            "attested": [{"attested": 2}, {"attested": -1}],
            "retry_due": [{"retry_due_at_ms": 2_000}, {"status": "retry_wait", "active_attempt_id": None}],
            "updated": [{"updated_at_ms": 999}],
        },
    ),
    "executions": (
        executions,
        {
            "attempt_id": [{"attempt_id": "x" * 35}],
            "lease_token_digest": [{"lease_token_digest": ""}, {"lease_token_digest": "token"}],
            "callback_token_digest": [{"callback_token_digest": "d" * 63}],
            "executor_type": [{"executor_type": ""}, {"executor_type": "e" * 201}],
            "worker_id": [{"worker_id": ""}, {"worker_id": "w" * 201}],
            "log_path": [{"log_path": ""}, {"log_path": "p" * 4_097}],
            "receipt_path": [{"receipt_path": ""}, {"receipt_path": "p" * 4_097}],
            "pid": [{"pid": 0}, {"pid": -1}],
            "callback_sequence": [{"callback_sequence": -1}],
            "lease_expires_at_ms": [{"lease_expires_at_ms": -1}],
            "deadline_at_ms": [{"deadline_at_ms": -1}],
            "gated": [{"gated": 2}, {"gated": -1}],
            "scope": [{"scope": "s" * 257}],
            "handle": [{"handle": ""}, {"handle": "h" * 513}, {"handle": "é" * 257}],
        },
    ),
    "attempts": (
        attempts,
        {
            "attempt_id": [{"attempt_id": "x" * 35}],
            "executor_type": [{"executor_type": ""}],
            "worker_id": [{"worker_id": "w" * 201}],
            "error_code": [{"status": "failed", "finished_at_ms": 1, "error_code": "e" * 129}],
            "error_summary": [{"status": "failed", "finished_at_ms": 1, "error_summary": "e" * 1_025}],
            "number": [{"number": 0}],
            "claimed_at_ms": [{"claimed_at_ms": -1}],
            "status": [{"status": "queued", "finished_at_ms": 1}],
            "signal": [
                {"status": "failed", "finished_at_ms": 1, "signal": 0},
                {"status": "failed", "finished_at_ms": 1, "signal": 65},
            ],
            "finished": [{"status": "failed"}, {"status": "lost"}, {"finished_at_ms": 2_000}],
            "outcome": [{"exit_code": 0}, {"status": "failed", "finished_at_ms": 1, "exit_code": 1, "signal": 9}],
            "error": [{"error_code": "oops"}, {"error_summary": "oops"}],
            "phase": [
                {"started_at_ms": 1_000},
                {"running_at_ms": 1_000},
                {"status": "starting"},
                {"status": "starting", "started_at_ms": 1_000, "running_at_ms": 1_000},
                {"status": "running", "started_at_ms": 1_000},
                {"status": "running", "running_at_ms": 1_000},
                {"status": "succeeded", "finished_at_ms": 1, "running_at_ms": 1_000},
            ],
        },
    ),
    "cancellation_dispatches": (
        cancellation_dispatches,
        {
            "run_id": [PENDING | {"run_id": "x" * 35}],
            "attempt_id": [{"attempt_id": ""}, {"attempt_id": "x" * 37}],
            "lease_token_digest": [{"lease_token_digest": ""}, {"lease_token_digest": "rft_token"}],
            "executor_type": [{"executor_type": ""}, {"executor_type": "e" * 201}],
            "lease_owner": [{"lease_owner": ""}, {"lease_owner": "w" * 201}],
            "scope": [{"scope": "s" * 257}],
            "version": [{"version": -1}],
            "dispatch_count": [PENDING | {"dispatch_count": -1, "tries_since_rearm": -1}],
            "tries_since_rearm": [{"tries_since_rearm": -1}],
            "next_attempt_at_ms": [WAITING | {"next_attempt_at_ms": -1}],
            "due_at_ms": [{"due_at_ms": -1}],
            "lease_expires_at_ms": [{"lease_expires_at_ms": -1}],
            "last_dispatched_at_ms": [DISPATCHED | {"last_dispatched_at_ms": -1}],
            "created_at_ms": [{"created_at_ms": -1}],
            "last_result": [{"last_result": "fine"}, {"last_result": ""}],
            "lease_held": [
                {"lease_owner": None},
                PENDING | {"lease_owner": "worker-1"},
                BLOCKED | {"lease_owner": "worker-1"},
            ],
            "lease_token": [{"lease_token_digest": None}, WAITING | {"lease_token_digest": DIGEST}],
            "lease_expiry": [{"lease_expires_at_ms": None}, DISPATCHED | {"lease_expires_at_ms": 5}],
            "lease_count": [
                {"dispatch_count": 0, "tries_since_rearm": 0},
                DISPATCHED | {"dispatch_count": 0, "tries_since_rearm": 0, "last_dispatched_at_ms": None},
            ],
            "next_attempt": [WAITING | {"next_attempt_at_ms": None}, {"next_attempt_at_ms": 5}],
            "due": [DISPATCHED | {"due_at_ms": 5}, BLOCKED | {"due_at_ms": 5}],
            "result": [
                DISPATCHED | {"last_result": None},
                DISPATCHED | {"last_result": "identity_mismatch"},
                DISPATCHED | {"last_result": "dispatch_error"},
                BLOCKED | {"last_result": None},
                BLOCKED | {"last_result": "already_exited"},
                BLOCKED | {"last_result": "handle_missing"},
                WAITING | {"last_result": None},
            ],
            "dispatched": [PENDING | {"last_dispatched_at_ms": 5}],
            "counts": [{"tries_since_rearm": 2}],
            "updated": [{"updated_at_ms": 999}],
        },
    ),
    "ledger_meta": (
        ledger_meta,
        {"key": [{"key": ""}, {"key": "k" * 201}], "value": [{"value": ""}, {"value": "v" * 257}]},
    ),
    **recovery_shapes.REFUSED,
    **projection_shapes.REFUSED,
}
# Only SQLite leases have a boot clock (R5.2), and only by its own writes can a position be named there.
REFUSED_BY_SQLITE: dict[str, dict[str, list[Row]]] = {
    "facts": {"position": [{"position": 0}, {"position": -1}]},
    "executions": {
        "lease_boot_id": [{"lease_boot_id": "x"}],
        "lease_expires_boot_ms": [{"lease_expires_boot_ms": -1}],
        "boot_lease": [
            {"lease_boot_id": None},
            {"lease_expires_boot_ms": None},
            {"lease_boot_id": None, "lease_expires_boot_ms": None},
        ],
    },
    "cancellation_dispatches": {
        # PostgreSQL goes by name, and an unknown status has no shape that ``result`` knows.
        "status": [PENDING | {"status": "sleeping", "dispatch_count": 1, "due_at_ms": None}],
        "lease_boot_id": [{"lease_boot_id": "x"}],
        "lease_expires_boot_ms": [{"lease_expires_boot_ms": -1}],
        "boot_lease": [
            {"lease_boot_id": None},
            {"lease_expires_boot_ms": None},
            PENDING | {"lease_boot_id": BOOT},
            WAITING | {"lease_expires_boot_ms": 5},
        ],
    },
    **recovery_shapes.REFUSED_BY_SQLITE,
    **projection_shapes.REFUSED_BY_SQLITE,
}
REFUSED_BY_POSTGRESQL: dict[str, dict[str, list[Row]]] = {
    "executions": {
        "no_boot_lease": [
            {"lease_boot_id": BOOT, "lease_expires_boot_ms": 1},
            {"lease_expires_boot_ms": 1},
        ],
    },
    "cancellation_dispatches": {
        "no_boot_lease": [{"lease_boot_id": BOOT, "lease_expires_boot_ms": 1}, {"lease_expires_boot_ms": 1}],
    },
    **recovery_shapes.REFUSED_BY_POSTGRESQL,
}


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A ledger without a Run."""
    database = open_database(database_url)
    yield database
    database.close()


def insertion(table: Table, row: Row) -> Statement:
    return Statement(f"insert_{table.name}", insert(table).values({name: bindparam(name) for name in row}))


def put(database: Database, *rows: tuple[Table, Row]) -> None:
    with database.transaction() as transaction:
        for table, row in rows:
            transaction.run(insertion(table, row), row)


def base(database: Database, table: Table) -> Row:
    rows = {
        "facts": FACT,
        "runs": RUN_ROW,
        "executions": EXECUTION | BOOT_LEASE[database.dialect],
        "attempts": ATTEMPT_ROW,
        "cancellation_dispatches": DISPATCH | BOOT_LEASE[database.dialect],
        "recovery_claims": CLAIM | BOOT_CLAIM[database.dialect],
        "workers": recovery_shapes.WORKER,
        "commands": COMMAND,
        "ledger_meta": {"key": "colour", "value": "blue"},
        **projection_shapes.BASES,
    }
    return rows[table.name]


def parents(database: Database, table: Table) -> list[tuple[Table, Row]]:
    """The rows that a row of ``table`` must refer to."""
    if table in {executions, cancellation_dispatches, recovery_claims, commands}:
        return [(runs, RUN_ROW)]
    if table is attempts:
        return [(runs, RUN_ROW), (executions, base(database, executions))]
    return []


def answer(database: Database, table: Table, row: Row) -> str:
    """What the database says to ``row``: the name of the constraint that refuses it, or why it took it."""
    try:
        put(database, *parents(database, table), (table, row))
    except database.driver_error as error:
        message = str(error)
        found = [str(rule.name) for rule in table.constraints if str(rule.name) in message.replace('"', " ").split()]
        return found[0] if found else message
    except LostRace as error:
        return error.constraint
    return "taken"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_each_constraint_refuses_exactly_what_it_is_for(database: Database, name: str) -> None:
    table, cases = REFUSED[name]
    extra = REFUSED_BY_SQLITE if database.dialect == "sqlite" else REFUSED_BY_POSTGRESQL
    wrong = [
        (constraint, change, said)
        for constraint, changes in {**cases, **extra.get(name, {})}.items()
        for change in changes
        if (said := answer(database, table, base(database, table) | change)) != f"ck_{name}_{constraint}"
    ]
    assert wrong == []
    put(database, *parents(database, table), (table, base(database, table)))


def test_no_constraint_is_without_a_case() -> None:
    named = {
        f"ck_{table}_{constraint}"
        for table in REFUSED
        for cases in (REFUSED[table][1], REFUSED_BY_SQLITE.get(table, {}), REFUSED_BY_POSTGRESQL.get(table, {}))
        for constraint in cases
    }
    checks = {
        str(rule.name)
        for table in metadata.tables.values()
        for rule in table.constraints
        if isinstance(rule, CheckConstraint)
    }
    assert named == checks


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_must_be_there_cannot_be_left_out(database: Database, name: str) -> None:
    table, _ = REFUSED[name]
    required = [column.name for column in table.columns if not column.nullable and column.name != "position"]
    taken = [
        column
        for column in required
        if "null" not in answer(database, table, base(database, table) | {column: None}).lower()
    ]
    assert taken == []


@pytest.mark.parametrize(
    "change",
    [
        {"payload": "é" * 8_192},
        {"payload": "x" * 16_384},
        {"actor_id": None, "dedupe_key": None},
        {"type": "t" * 200, "project": "é" * 200, "actor_id": "é" * 128},
    ],
)
def test_a_fact_at_its_limits_is_taken(database: Database, change: Row) -> None:
    put(database, (facts, FACT | change))


def test_one_run_has_one_fact_per_sequence_aggregate_version_and_dedupe_key(database: Database) -> None:
    put(database, (facts, FACT))
    new = {"sequence": 2, "aggregate_version": 2, "dedupe_key": None}
    assert answer(database, facts, FACT | new | {"sequence": 1}) == "uq_facts_run_id_sequence"
    assert answer(database, facts, FACT | new | {"aggregate_version": 1}) == "uq_facts_aggregate_id_aggregate_version"
    assert answer(database, facts, FACT | new | {"dedupe_key": "first"}) == "uq_facts_run_id_dedupe_key"
    assert answer(database, facts, FACT | new) == "taken"
    assert answer(database, facts, FACT | {"sequence": 3, "aggregate_version": 3, "dedupe_key": None}) == "taken"
    other = {"run_id": OTHER_RUN, "aggregate_id": OTHER_RUN}
    assert answer(database, facts, FACT | other) == "taken"


def test_an_idempotency_key_is_used_once_per_project(database: Database) -> None:
    put(database, (runs, RUN_ROW))
    other = RUN_ROW | {"run_id": OTHER_RUN}
    assert answer(database, runs, other) == "uq_runs_project_idempotency_key"
    assert answer(database, runs, RUN_ROW | {"idempotency_key": "twice"}) == "pk_runs"
    assert answer(database, runs, other | {"project": "elsewhere"}) == "taken"


def test_a_run_has_at_most_one_active_attempt(database: Database) -> None:
    execution = base(database, executions)
    put(database, (runs, RUN_ROW), (executions, execution), (attempts, ATTEMPT_ROW))
    put(database, (executions, execution | {"attempt_id": OTHER_ATTEMPT}))
    second = ATTEMPT_ROW | {"attempt_id": OTHER_ATTEMPT, "number": 2}

    def said(change: Row) -> str:
        try:
            put(database, (attempts, second | change))
        except LostRace as error:
            return error.constraint
        return "taken"

    assert said({}) == "uq_attempts_active"
    assert said({"number": 1, "status": "lost", "finished_at_ms": 1}) == "uq_attempts_run_id_number"
    assert said({"status": "lost", "finished_at_ms": 1}) == "taken"


def test_an_attempt_without_an_execution_is_refused_when_its_transaction_ends(database: Database) -> None:
    with pytest.raises(database.driver_error, match=r"(?i)foreign key"):
        put(database, (runs, RUN_ROW), (attempts, ATTEMPT_ROW))
    execution = base(database, executions)
    put(database, (runs, RUN_ROW), (attempts, ATTEMPT_ROW), (executions, execution))


def test_an_attempt_of_no_run_is_refused(database: Database) -> None:
    with pytest.raises(database.driver_error, match=r"(?i)foreign key"):
        put(database, (executions, base(database, executions)))


@pytest.mark.parametrize(
    "shape",
    [
        {},
        PENDING,
        WAITING,
        DISPATCHED,
        BLOCKED,
        # Rows of ended Runs keep their status and are due no more (R7.6).
        {"due_at_ms": None},
        PENDING | {"due_at_ms": None},
        WAITING | {"due_at_ms": None},
        # Abandoned before anybody claimed it, and rearmed since (R13.2).
        BLOCKED | {"last_result": "abandoned", "dispatch_count": 0, "tries_since_rearm": 0},
        WAITING | {"last_result": "abandoned", "dispatch_count": 0, "tries_since_rearm": 0},
        # The budget begins anew, the count goes on.
        WAITING | {"dispatch_count": 9, "tries_since_rearm": 0},
        {"scope": "s" * 256, "executor_type": "e" * 200, "lease_owner": "w" * 200},
    ],
)
def test_every_shape_of_a_dispatch_that_the_rules_know_is_taken(database: Database, shape: Row) -> None:
    row = base(database, cancellation_dispatches) | shape
    assert answer(database, cancellation_dispatches, row) == "taken"


def test_a_run_has_one_dispatch_and_only_a_run_has_one(database: Database) -> None:
    row = base(database, cancellation_dispatches)
    with pytest.raises(database.driver_error, match=r"(?i)foreign key"):
        put(database, (cancellation_dispatches, row))
    put(database, (runs, RUN_ROW), (cancellation_dispatches, row))
    with pytest.raises((database.driver_error, LostRace)):
        put(database, (cancellation_dispatches, row))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_a_recovery_claim_that_the_rules_know_is_taken(database: Database, shape: Row) -> None:
    assert answer(database, recovery_claims, base(database, recovery_claims) | shape) == "taken"


def test_there_is_one_claim_per_purpose_and_item(database: Database) -> None:
    row = base(database, recovery_claims)
    put(database, (runs, RUN_ROW), (recovery_claims, row))
    with pytest.raises((database.driver_error, LostRace)):
        put(database, (recovery_claims, row | {"version": 2}))
    put(database, (recovery_claims, row | recovery_shapes.OF_A_RUN))


def test_a_command_is_written_before_its_run_and_only_with_one(database: Database) -> None:
    put(database, (commands, COMMAND), (runs, RUN_ROW))
    with pytest.raises(database.driver_error, match=r"(?i)foreign key"):
        put(database, (commands, COMMAND | {"run_id": OTHER_RUN}))


def test_what_a_run_is_to_run_is_forgotten_when_it_ends(database: Database) -> None:
    ended = {"status": "failed", "active_attempt_id": None, "finished_at_ms": 2_000}

    def change(values: Row) -> None:
        with database.transaction() as transaction:
            transaction.run(Statement("change_run", update(runs).values(values).where(runs.c.run_id == RUN)))

    def kept() -> list[str]:
        with database.reading() as reading:
            return [row[0] for row in reading.rows(Statement("kept", select(commands.c.run_id)))]

    put(database, (runs, RUN_ROW), (runs, RUN_ROW | {"run_id": OTHER_RUN, "idempotency_key": None}))
    put(database, (commands, COMMAND), (commands, COMMAND | {"run_id": OTHER_RUN}))
    change({"version": 4, "finished_at_ms": None})
    assert sorted(kept()) == [RUN, OTHER_RUN]
    change(ended)
    assert kept() == [OTHER_RUN]

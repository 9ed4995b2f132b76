"""
Long ledgers: sound histories by the hundred thousand, as if a ledger had been used for months.

Four Runs are written down fact by fact; all others have their facts, with ids, times, projects and actors of their
own, and so with hashes of their own: ``verify`` finds every one of them as it should be. They go in by the database's
own way of loading many rows. Ids rise with time, as those of real Runs do.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.canonical import GENESIS, canonical_json
from runfacts.domain.facts import Fact, envelope
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.lifecycle import IntentKind
from runfacts.domain.payloads import (
    AttemptCancelled,
    AttemptClaimed,
    AttemptFailed,
    AttemptRunning,
    AttemptStarting,
    AttemptSucceeded,
    RunCancelled,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunFailed,
    RunQueued,
    RunRunning,
    RunSucceeded,
    RunWaitingApproval,
)
from runfacts.domain.retry import RetryPolicy
from runfacts.infrastructure.database.tables import attempts, executions, facts, runs
from runfacts.infrastructure.stores.facts import fact_row
from runfacts.infrastructure.stores.state import attempt_row, run_row

BEGAN_MS: Final = 1_767_225_600_000
"""When the first Run was created."""
RUN_EVERY_MS: Final = 77_000
"""A hundred thousand Runs in three months."""
FACTS_PER_CYCLE: Final = 40
"""Of four Runs, one of each shape."""
PROJECTS: Final = tuple(f"project-{number:02}" for number in range(20))
ACTORS: Final = tuple(f"w-{number:02}" for number in range(50))
_FACT_EVERY_MS: Final = 1_000
_RUNS_AT_ONCE: Final = 2_000
_FACT_COLUMNS: Final = tuple(column.name for column in facts.c if column.name != "position")

_PLACES: Final = {name: number for number, name in enumerate(_FACT_COLUMNS)}

Row = Mapping[str, str | int | None]
Values = tuple[str | int | None, ...]


@dataclass(frozen=True, slots=True)
class _FactShape:
    """One fact, for others to be made of."""

    values: Values
    hashed: str
    """What its hash covers besides the hash before, with places for what differs."""
    offset_ms: int
    of_attempt: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    """The rows of one Run, under ids and at times that stand for those of others."""

    run: Row
    attempt: Row
    facts: Sequence[_FactShape]


def run_id_of(number: int) -> str:
    """Give the id of the Run of that number, from 0 on."""
    return f"01900000-0000-7000-8000-{number:012x}"


def attempt_id_of(number: int) -> str:
    """Give the id of its only Attempt."""
    return f"01900000-0000-7000-8001-{number:012x}"


def fill(url: str, count: int) -> int:
    """Put ``count`` facts into an empty ledger, or up to 39 more, so that Runs are whole; how many Runs these are."""
    runs_made = 4 * -(-count // FACTS_PER_CYCLE)
    batches = (range(first, min(first + _RUNS_AT_ONCE, runs_made)) for first in range(0, runs_made, _RUNS_AT_ONCE))
    shapes = _shapes()
    tables = (_table_rows(shapes, numbers, sqlite=url.startswith("sqlite")) for numbers in batches)
    if url.startswith("sqlite"):
        _load_sqlite(url.removeprefix("sqlite:///"), tables)
    else:
        _load_postgresql(url, tables)
    return runs_made


def _shapes() -> Sequence[_Shape]:
    begun = (
        *(RunCreated(task="report", policy=RetryPolicy()), RunQueued(), RunDispatching(number=1)),
        *(AttemptClaimed(number=1, executor_type="batch"), AttemptStarting(), AttemptRunning(), RunRunning()),
    )
    endings = (
        (AttemptSucceeded(exit_code=0), RunSucceeded(exit_code=0)),
        (RunWaitingApproval(), RunRunning(), AttemptSucceeded(exit_code=0), RunSucceeded(exit_code=0)),
        (RunCancelRequested(kind=IntentKind.USER, reason="not needed"), AttemptCancelled(), RunCancelled()),
        (RunWaitingApproval(), AttemptFailed(exit_code=1), RunFailed(exit_code=1)),
    )
    found = []
    for ending in endings:
        history = History(run_id_of(0), PROJECTS[0])
        shaped: list[_FactShape] = []
        for number, payload in enumerate((*begun, *ending)):
            attempt_id = attempt_id_of(0) if number > 1 and payload.TYPE != RunCancelRequested.TYPE else None
            by = RecordedBy(Actor.worker(ACTORS[0]), number * _FACT_EVERY_MS)
            shaped += map(_fact_shape, history.record([Draft(payload, attempt_id)], by))
        found.append(_Shape(run_row(history), attempt_row(history.attempts[attempt_id_of(0)]), shaped))
    return found


def _table_rows(shapes: Sequence[_Shape], numbers: range, *, sqlite: bool) -> Mapping[str, Sequence[Values]]:
    """Give the rows of these Runs by table, in the order in which references allow them."""
    found: dict[str, list[Values]] = {table.name: [] for table in (runs, executions, attempts, facts)}
    for number in numbers:
        shape = shapes[number % len(shapes)]
        recorded = list(_facts_of(shape, number))
        head = {"head_hash": recorded[-1][_PLACES["hash"]], "project": _project(number)}
        found["facts"] += recorded
        run = _moved(shape.run, number) | head
        attempt = _moved(shape.attempt, number)
        found["runs"].append(tuple(run[column.name] for column in runs.c))
        found["attempts"].append(tuple(attempt[column.name] for column in attempts.c))
        execution = _execution(attempt, sqlite=sqlite)
        found["executions"].append(tuple(execution[column.name] for column in executions.c))
    return found


def _fact_shape(fact: Fact) -> _FactShape:
    row = fact_row(fact)
    hashed = canonical_json({**envelope(fact), "payload": json.loads(fact.payload_text)})
    for told, place in (
        ("%", "%%"),
        (run_id_of(0), "%(run_id)s"),
        (attempt_id_of(0), "%(attempt_id)s"),
        (f'"project":"{PROJECTS[0]}"', '"project":"%(project)s"'),
        (f'"actor_id":"{ACTORS[0]}"', '"actor_id":"%(actor_id)s"'),
        (f'"recorded_at_ms":{fact.recorded_at_ms}', '"recorded_at_ms":%(at_ms)s'),
    ):
        hashed = hashed.replace(told, place)
    return _FactShape(tuple(row[name] for name in _FACT_COLUMNS), hashed, fact.recorded_at_ms, fact.of_attempt)


def _facts_of(shape: _Shape, number: int) -> Iterator[Values]:
    digest, began_ms = GENESIS, BEGAN_MS + number * RUN_EVERY_MS
    run_id, attempt_id = run_id_of(number), attempt_id_of(number)
    project, actor_id = _project(number), ACTORS[number // 4 % len(ACTORS)]
    for fact in shape.facts:
        at_ms = began_ms + fact.offset_ms
        differing = {
            "run_id": run_id,
            "attempt_id": attempt_id,
            "project": project,
            "actor_id": actor_id,
            "at_ms": at_ms,
        }
        digest = sha256(f"{digest}{fact.hashed % differing}".encode()).hexdigest()
        values = list(fact.values)
        values[_PLACES["run_id"]] = run_id
        if values[_PLACES["attempt_id"]] is not None:
            values[_PLACES["attempt_id"]] = attempt_id
        values[_PLACES["aggregate_id"]] = attempt_id if fact.of_attempt else run_id
        values[_PLACES["project"]] = project
        values[_PLACES["actor_id"]] = actor_id
        values[_PLACES["recorded_at_ms"]] = at_ms
        values[_PLACES["hash"]] = digest
        yield tuple(values)


def _project(number: int) -> str:
    return PROJECTS[number // 4 % len(PROJECTS)]


def _moved(row: Row, number: int) -> dict[str, str | int | None]:
    """Give a row as it is of the Run of that number."""
    ids = {run_id_of(0): run_id_of(number), attempt_id_of(0): attempt_id_of(number)}
    at_ms = BEGAN_MS + number * RUN_EVERY_MS
    return {
        name: value + at_ms
        if name.endswith("_at_ms") and isinstance(value, int)
        else ids.get(value, value)
        if isinstance(value, str)
        else value
        for name, value in row.items()
    }


def _execution(attempt: Row, *, sqlite: bool) -> Row:
    finished_at_ms = attempt["finished_at_ms"]
    return dict.fromkeys(column.name for column in executions.c) | {
        "attempt_id": attempt["attempt_id"],
        "run_id": attempt["run_id"],
        "executor_type": attempt["executor_type"],
        "worker_id": attempt["worker_id"],
        "gated": 0,
        "scope": "",
        "lease_token_digest": "0" * 64,
        "callback_token_digest": "0" * 64,
        "callback_sequence": 2,
        "lease_expires_at_ms": finished_at_ms,
        "lease_boot_id": "00000000-0000-0000-0000-000000000000" if sqlite else None,
        "lease_expires_boot_ms": 0 if sqlite else None,
        "closed_at_ms": finished_at_ms,
    }


def _load_sqlite(path: str, batches: Iterator[Mapping[str, Sequence[Values]]]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        # Nobody else is there yet, and what is lost in a crash is made again.
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-200000")
        for batch in batches:
            connection.execute("BEGIN")
            for table, rows in batch.items():
                names, marks = _columns(table), ", ".join("?" for _ in rows[0])
                connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)  # noqa: S608 - names of ours
            connection.execute("COMMIT")
        connection.execute("ANALYZE")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()


def _load_postgresql(url: str, batches: Iterator[Mapping[str, Sequence[Values]]]) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for batch in batches:
            with connection.transaction(), connection.cursor() as cursor:
                for table, rows in batch.items():
                    with cursor.copy(f"COPY {table} ({_columns(table)}) FROM STDIN".encode()) as copy:
                        for row in rows:
                            copy.write_row(row)
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")


def _columns(table: str) -> str:
    return ", ".join(column.name for column in runs.metadata.tables[table].c if column.name != "position")

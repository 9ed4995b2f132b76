"""
Verification: what can be recomputed is recomputed, and every difference is named (R1.3, R14.2).

Run by Run: the ledger's sequences are dense and its positions rise with them, its hash chain holds, aggregate
versions are dense, times never go back, dedupe keys are unique, payloads are readable and canonical, every transition
is one of the tables'; the rows of ``runs`` and ``attempts`` are what the facts amount to; every Attempt has its
execution, and a gated one has a handle exactly when it is past the commit that stores it (R10.1).

Each Run is read in transactions of its own, so a verification of a large ledger holds nothing for long. A Run that
changed in between is read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from eventsourcing.domain import EventSourcingError
from sqlalchemy import bindparam, select, union

from runfacts.domain.attempt import ATTEMPT_STATUS_AFTER, Attempt
from runfacts.domain.canonical import GENESIS, canonical_json
from runfacts.domain.errors import RunNotFound
from runfacts.domain.facts import MALFORMED, Fact, UnknownPayload
from runfacts.domain.history import History
from runfacts.domain.lifecycle import ATTEMPT_TRANSITIONS, RUN_TRANSITIONS, AttemptStatus, RunStatus
from runfacts.domain.run import RUN_STATUS_AFTER
from runfacts.domain.views import Difference, VerifyReport
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, executions, facts, runs
from runfacts.infrastructure.database.transactions import Row
from runfacts.infrastructure.stores.facts import read_facts
from runfacts.infrastructure.stores.state import attempt_row, run_row

_RUN_COLUMNS: Final = tuple(runs.c)
_ATTEMPT_COLUMNS: Final = tuple(attempts.c)
_PAGE: Final = 100
_REREADS: Final = 8

SELECT_RUN: Final = Statement("verify_run", select(*_RUN_COLUMNS).where(runs.c.run_id == bindparam("run_id")))
SELECT_ATTEMPTS: Final = Statement(
    "verify_attempts",
    select(*_ATTEMPT_COLUMNS, executions.c.attempt_id, executions.c.gated, executions.c.handle, executions.c.run_id)
    .join_from(attempts, executions, executions.c.attempt_id == attempts.c.attempt_id, isouter=True)
    .where(attempts.c.run_id == bindparam("run_id")),
)
SELECT_RUN_IDS: Final = Statement(
    "verify_run_ids",
    union(
        select(runs.c.run_id)
        .where(runs.c.run_id > bindparam("after"))
        .order_by(runs.c.run_id)
        .limit(_PAGE)
        .subquery()
        .select(),
        select(facts.c.run_id)
        .distinct()
        .where(facts.c.run_id > bindparam("after"))
        .order_by(facts.c.run_id)
        .limit(_PAGE)
        .subquery()
        .select(),
    ).order_by("run_id"),
)


def verify(database: Database, run_id: str | None, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Verify one Run (``RunNotFound``), or all of them; ``progress`` hears the number of Runs and facts so far."""
    seen = 0
    fact_count = 0
    unknown: Counter[str] = Counter()
    differences: list[Difference] = []
    for one in [run_id] if run_id is not None else run_ids(database):
        found, facts_of_run = _verify_settled(database, one)
        if run_id is not None and not facts_of_run and not found:
            raise RunNotFound(run_id)
        seen += 1
        fact_count += len(facts_of_run)
        unknown.update(fact.type for fact in facts_of_run if not fact.known and not _malformed(fact))
        differences += found
        if progress is not None:
            progress(seen, fact_count)
    return VerifyReport(seen, fact_count, dict(unknown), tuple(differences))


def run_ids(database: Database) -> Iterator[str]:
    """Give the ids of all Runs that have a row or a fact, in order, reading page by page."""
    after = ""
    while True:
        with database.reading() as reading:
            page = [row[0] for row in reading.rows(SELECT_RUN_IDS, {"after": after})][:_PAGE]
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1]


def _verify_settled(database: Database, run_id: str) -> tuple[list[Difference], tuple[Fact, ...]]:
    """Verify a Run on a reading that nobody wrote into, or on the last of several."""
    found: list[Difference] = []
    recorded: tuple[Fact, ...] = ()
    for _ in range(_REREADS):
        with database.reading() as reading:
            before = reading.row(SELECT_RUN, {"run_id": run_id})
            recorded = read_facts(reading, run_id)
            rows = reading.rows(SELECT_ATTEMPTS, {"run_id": run_id})
            after = reading.row(SELECT_RUN, {"run_id": run_id})
        found = [*_ledger_differences(run_id, recorded), *_row_differences(run_id, recorded, before, rows)]
        if before == after and not _moved(before, recorded):
            break
    return found, recorded


def _moved(row: Row | None, recorded: tuple[Fact, ...]) -> bool:
    """Whether a fact was appended between two readings: then the rows are of another moment than the facts."""
    return row is not None and bool(recorded) and row[_VERSION] < recorded[-1].sequence


_VERSION: Final = [column.name for column in _RUN_COLUMNS].index("version")


def _ledger_differences(run_id: str, recorded: tuple[Fact, ...]) -> Iterator[Difference]:
    """Check everything about a Run's facts that concerns facts alone."""
    previous = GENESIS
    position = 0
    at_ms = 0
    versions: Counter[str] = Counter()
    statuses: dict[str, RunStatus | AttemptStatus | None] = {}
    for expected, fact in enumerate(recorded, start=1):
        sequence = fact.sequence
        if sequence != expected:
            yield Difference(run_id, "sequence", "sequence", str(sequence), str(expected), expected)
            return
        if (computed := fact.computed_hash(previous)) != fact.hash:
            yield Difference(run_id, "hash", "hash", fact.hash, computed, sequence)
        if (fact.position or 0) <= position:
            yield Difference(run_id, "position", "position", str(fact.position), f"above {position}", sequence)
        versions[fact.aggregate_id] += 1
        if fact.aggregate_version != versions[fact.aggregate_id]:
            wanted = str(versions[fact.aggregate_id])
            yield Difference(run_id, "version", "aggregate_version", str(fact.aggregate_version), wanted, sequence)
        if fact.recorded_at_ms < at_ms:
            yield Difference(run_id, "time", "recorded_at_ms", str(fact.recorded_at_ms), f"at least {at_ms}", sequence)
        if _malformed(fact):
            yield Difference(run_id, "payload", "payload", None, "a payload of its type", sequence)
        elif fact.known and (text := canonical_json(fact.payload.model_dump(mode="json"))) != fact.payload_text:
            yield Difference(run_id, "payload", "payload", fact.payload_text, text, sequence)
        yield from _transition(run_id, fact, statuses)
        previous = fact.hash
        position = fact.position or 0
        at_ms = fact.recorded_at_ms


def _transition(run_id: str, fact: Fact, statuses: dict[str, RunStatus | AttemptStatus | None]) -> Iterator[Difference]:
    """Check that a fact's transition is one of the tables' (R2.3 to R2.5)."""
    kind = type(fact.payload)
    target: RunStatus | AttemptStatus | None = (ATTEMPT_STATUS_AFTER if fact.of_attempt else RUN_STATUS_AFTER).get(kind)
    if target is None:
        return
    current = statuses.get(fact.aggregate_id)
    statuses[fact.aggregate_id] = target
    if isinstance(current, RunStatus):
        allowed = target in RUN_TRANSITIONS[current]
    elif isinstance(current, AttemptStatus):
        allowed = target in ATTEMPT_TRANSITIONS[current]
    else:
        allowed = target in {RunStatus.CREATED, AttemptStatus.CLAIMED}
    if not allowed:
        yield Difference(run_id, "transition", "type", f"{current} to {target}", None, fact.sequence)


def _row_differences(
    run_id: str, recorded: tuple[Fact, ...], row: Row | None, attempt_rows: list[Row]
) -> Iterator[Difference]:
    """Compare the current-state rows with what the facts amount to (R1.3)."""
    history = _replayed(recorded)
    if history is None:
        # The facts' own differences are named already, or there are rows of a Run that has no facts.
        if not recorded:
            yield Difference(run_id, "run", "run_id", run_id, None)
        return
    if row is None:
        yield Difference(run_id, "run", "run_id", None, run_id)
    else:
        recomputed = run_row(history)
        for column, value in zip(_RUN_COLUMNS, row, strict=True):
            if value != recomputed[column.name]:
                yield _differs(run_id, "run", column.name, value, recomputed[column.name])
    yield from _attempt_differences(history, attempt_rows)


def _attempt_differences(history: History, rows: list[Row]) -> Iterator[Difference]:
    """Compare the rows of ``attempts``, and see that each has its execution (R1.3, R11.1)."""
    run_id = history.run_id
    stored = {row[0]: row for row in rows}
    width = len(_ATTEMPT_COLUMNS)
    for attempt in history.attempts.values():
        found = stored.pop(attempt.id, None)
        if found is None:
            yield Difference(run_id, "attempt", "attempt_id", None, attempt.id)
            continue
        wanted = attempt_row(attempt)
        for column, value in zip(_ATTEMPT_COLUMNS, found[:width], strict=True):
            if value != wanted[column.name]:
                yield _differs(run_id, "attempt", column.name, value, wanted[column.name])
        yield from _execution_differences(attempt, run_id, found[width:])
    for attempt_id in stored:
        yield Difference(run_id, "attempt", "attempt_id", attempt_id, None)


def _execution_differences(attempt: Attempt, run_id: str, execution: Row) -> Iterator[Difference]:
    """See that a gated Attempt has a handle exactly when it is past the commit that stores it (R10.1)."""
    execution_id, gated, handle, execution_run = execution
    if execution_id is None:
        yield Difference(run_id, "execution", "attempt_id", None, attempt.id)
        return
    if execution_run != run_id:
        yield Difference(run_id, "execution", "run_id", execution_run, run_id)
    if gated and attempt.status is AttemptStatus.RUNNING and handle is None:
        yield Difference(run_id, "execution", "handle", None, "a handle")
    if gated and attempt.status in {AttemptStatus.CLAIMED, AttemptStatus.STARTING} and handle is not None:
        yield Difference(run_id, "execution", "handle", "a handle", None)


def _replayed(recorded: tuple[Fact, ...]) -> History | None:
    """Replay facts that may have been tampered with; None where they make no history."""
    try:
        history = History.of(recorded)
        _ = history.run
    except (EventSourcingError, LookupError):
        return None
    return history


def _malformed(fact: Fact) -> bool:
    return isinstance(fact.payload, UnknownPayload) and fact.payload.reason == MALFORMED


def _differs(run_id: str, kind: str, field: str, recorded: object, recomputed: object) -> Difference:
    return Difference(
        run_id,
        kind,
        field,
        None if recorded is None else str(recorded),
        None if recomputed is None else str(recomputed),
    )

"""
Rows of ``recovery_claims`` that commands write beside what they record (R7.1, R11.2, R12).

A request to stop makes the Run's stop row, a Run that is lost or waits for its retry its retry row, each in the
transaction of that command; whatever ends the matter resolves the row the same way. So nothing that somebody must look
at is ever without a row, and no sweep has to find it.

A command does not read these rows. Each change is an insert that may find its row there, hits exactly one row whatever
its state, and ends the term of a holder, whose version it changes: what a command records is the truth, and a holder
that saw less is fenced. What only moves a due time leaves a term alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sqlalchemy import ColumnElement, and_, bindparam, case, null, update
from sqlalchemy.dialects import postgresql, sqlite

from runfacts.domain.history import History
from runfacts.domain.recovery.claims import ClaimState, ItemKind, Purpose
from runfacts.infrastructure.database.columns import among
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, constant
from runfacts.infrastructure.database.recovery_tables import recovery_claims as table
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.transactions import Change

_Insert = postgresql.Insert | sqlite.Insert

NO_TERM: Final[Mapping[str, None]] = dict.fromkeys(
    ("owner", "token_digest", "claim_expires_at_ms", "claim_boot_id", "claim_expires_boot_ms")
)
"""The columns of a row that nobody holds."""
_WAITS: Final = among(table.c.state, [ClaimState.AVAILABLE, ClaimState.RETRY])


class PlacedRun(Protocol):
    """A Run, its Attempt, and where that can be looked at: a stop target, a dispatch or a claim of recovery is one."""

    @property
    def run_id(self) -> str:
        """The Run."""
        ...

    @property
    def attempt_id(self) -> str | None:
        """Its Attempt in question, or its latest one; None where there never was one."""
        ...

    @property
    def executor_type(self) -> str:
        """Of that Attempt, or empty."""
        ...

    @property
    def scope(self) -> str:
        """Of that Attempt, or empty."""
        ...


@dataclass(frozen=True, slots=True)
class Placed:
    """One that was put together."""

    run_id: str
    attempt_id: str | None
    executor_type: str
    scope: str


def place_of(history: History) -> Placed:
    """Give a Run and its latest Attempt, for a row that is resolved: from where it can be seen does not matter."""
    attempt = history.latest_attempt
    if attempt is None:
        return Placed(history.run_id, None, "", "")
    return Placed(history.run_id, attempt.id, attempt.executor_type, "")


def _later(one: ColumnElement[int], other: ColumnElement[int]) -> ColumnElement[int]:
    # greatest() on the one, max() on the other.
    return case((one > other, one), else_=other)


def _upsert(name: str, found: Any) -> Statement:  # noqa: ANN401 - a function of either dialect's insert
    """Make a statement that inserts the whole row, or does to the one that is there what ``found`` says."""

    def build(inserted: _Insert) -> _Insert:
        excluded = inserted.excluded
        changed = {"updated_at_ms": _later(excluded.updated_at_ms, table.c.created_at_ms)} | found(excluded)
        return inserted.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed)

    values: dict[str, Any] = {column.name: bindparam(column.name) for column in table.c}
    return Statement(
        name,
        {
            SQLITE: build(sqlite.insert(table).values(values)),
            POSTGRESQL: build(postgresql.insert(table).values(values)),
        },
    )


def _renewed(excluded: Any) -> dict[str, Any]:  # noqa: ANN401 - SQLAlchemy's namespace of columns
    """Everything but the key and the creation; the next version of what is there."""
    kept = {*table.primary_key.columns.keys(), "created_at_ms", "updated_at_ms", "run_id"}
    return {column.name: excluded[column.name] for column in table.c if column.name not in kept} | {
        "version": table.c.version + 1
    }


def _ended(excluded: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    del excluded
    return _RESOLVED | {"version": table.c.version + 1}


def _sooner(excluded: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    return _moved(and_(_WAITS, table.c.due_at_ms > excluded.due_at_ms), excluded)


def _put_off(excluded: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    waits = among(table.c.state, [ClaimState.AVAILABLE])
    return _moved(and_(waits, table.c.due_at_ms < excluded.due_at_ms), excluded)


def _moved(condition: ColumnElement[bool], excluded: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    """Another due time, where the condition holds; else the row stays just as it is."""
    retries = and_(condition, among(table.c.state, [ClaimState.RETRY]))
    updated_at_ms = _later(excluded.updated_at_ms, table.c.created_at_ms)
    return {
        "due_at_ms": case((condition, excluded.due_at_ms), else_=table.c.due_at_ms),
        "next_claim_at_ms": case((retries, excluded.due_at_ms), else_=table.c.next_claim_at_ms),
        "version": case((condition, table.c.version + 1), else_=table.c.version),
        "updated_at_ms": case((condition, updated_at_ms), else_=table.c.updated_at_ms),
    }


_RESOLVED: Final[dict[str, Any]] = {
    **NO_TERM,
    "state": ClaimState.RESOLVED.value,
    "next_claim_at_ms": None,
    "due_at_ms": None,
    "reason": None,
    "seen": None,
}
MAKE_AVAILABLE: Final = _upsert("make_recovery_available", _renewed)
RESOLVE_ROW: Final = _upsert("resolve_recovery_row", _ended)
BRING_FORWARD: Final = _upsert("bring_recovery_forward", _sooner)
PUT_OFF: Final = _upsert("put_recovery_off", _put_off)
RESOLVE_RECOVERY: Final = Statement(
    "resolve_recovery",
    update(table)
    .values(
        {name: null() for name, value in _RESOLVED.items() if value is None}
        | {
            "state": constant(ClaimState.RESOLVED.value),
            "version": table.c.version + 1,
            "updated_at_ms": _later(bindparam("now_ms", type_=table.c.updated_at_ms.type), table.c.created_at_ms),
        }
    )
    .where(
        table.c.purpose == constant(Purpose.RECOVERY.value),
        table.c.kind == constant(ItemKind.ATTEMPT.value),
        table.c.item_id == bindparam("key_attempt_id"),
        table.c.version == bindparam("expected_version"),
    ),
)


def available(purpose: Purpose, run: PlacedRun, due_at_ms: int, now_ms: int) -> Change:
    """Let a stop or retry of a Run be claimed from ``due_at_ms`` on, whatever became of it before."""
    return Change(MAKE_AVAILABLE, _row(purpose, run, due_at_ms, now_ms))


def to_be_retried(run: PlacedRun, due_at_ms: int, now_ms: int, *, group_left: bool = False) -> Change:
    """Let the retry of a Run be claimed from ``due_at_ms`` on.

    Only where members of the last Attempt's group may be left does it need somebody who can prove them gone; else
    any worker of the executor type may claim it, also when the machine never comes back (R12.1).
    """
    scope = run.scope if group_left else ""
    return available(Purpose.RETRY, Placed(run.run_id, run.attempt_id, run.executor_type, scope), due_at_ms, now_ms)


def resolved(purpose: Purpose, run: PlacedRun, now_ms: int) -> Change:
    """End the stop or retry of a Run, whoever holds it: there is nothing left to find out."""
    return Change(RESOLVE_ROW, _row(purpose, run, None, now_ms) | _RESOLVED)


def stop_sooner(run: PlacedRun, due_at_ms: int, now_ms: int) -> Change:
    """Let a Run's stop be claimed from ``due_at_ms`` on, if that is sooner than what was said, and nobody holds it."""
    return Change(BRING_FORWARD, _row(Purpose.STOP, run, due_at_ms, now_ms))


def stop_put_off(run: PlacedRun, due_at_ms: int, now_ms: int) -> Change:
    """Let a Run's stop wait until ``due_at_ms``, unless somebody has looked at it already."""
    return Change(PUT_OFF, _row(Purpose.STOP, run, due_at_ms, now_ms))


def recovery_resolved(attempt_id: str, version: int, now_ms: int) -> Change:
    """End the recovery of an Attempt whose lease is renewed, if it is still as it was read (R10.3)."""
    return Change(RESOLVE_RECOVERY, {"key_attempt_id": attempt_id, "expected_version": version, "now_ms": now_ms})


def _row(purpose: Purpose, run: PlacedRun, due_at_ms: int | None, now_ms: int) -> dict[str, Any]:
    return {
        **NO_TERM,
        "purpose": purpose.value,
        "kind": ItemKind.RUN.value,
        "item_id": run.run_id,
        "run_id": run.run_id,
        "attempt_id": run.attempt_id,
        "executor_type": run.executor_type,
        "scope": run.scope,
        "state": ClaimState.AVAILABLE.value,
        "version": 0,
        "next_claim_at_ms": None,
        "due_at_ms": due_at_ms,
        "delays": 0,
        "failures": 0,
        "reason": None,
        "seen": None,
        "created_at_ms": now_ms,
        "updated_at_ms": now_ms,
    }

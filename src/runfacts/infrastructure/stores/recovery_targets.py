"""
Targets: what a recovery claim is about, as it is now, and from when on somebody should look at it (R11.1, R12).

``Target.standing`` is the one predicate of recovery: a page is made by it, a claim is granted by it, a term that ends
leaves its row as it says, and the sweep takes away what it no longer lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import and_, select

from runfacts.domain.cancellation.dispatch import NOT_DUE_MAX_MS
from runfacts.domain.cancellation.results import FINISHED_DISPATCH, DispatchStatus
from runfacts.domain.leases import is_valid
from runfacts.domain.lifecycle import ACTIVE_ATTEMPT, RUN_WITH_ATTEMPT, TERMINAL_RUN, ExecutionOwner, RunStatus
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.claims import ItemKind, Purpose
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches as dispatches
from runfacts.infrastructure.database.dialects import SQLITE, one_of
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import attempts, executions, runs
from runfacts.infrastructure.database.transactions import Reading

_COLUMNS: Final = (
    runs.c.run_id,
    runs.c.status,
    runs.c.execution_owner,
    runs.c.intent_at_ms,
    runs.c.active_attempt_id,
    runs.c.retry_due_at_ms,
    runs.c.created_at_ms,
    runs.c.updated_at_ms,
    attempts.c.attempt_id,
    attempts.c.status,
    executions.c.executor_type,
    executions.c.scope,
    executions.c.lease_expires_at_ms,
    executions.c.lease_boot_id,
    executions.c.lease_expires_boot_ms,
    executions.c.closed_at_ms,
    executions.c.recover_at_ms,
    dispatches.c.status,
    dispatches.c.updated_at_ms,
)
_OF_ATTEMPTS: Final = (
    select(*_COLUMNS)
    .join_from(executions, runs, runs.c.run_id == executions.c.run_id)
    .outerjoin(attempts, attempts.c.attempt_id == executions.c.attempt_id)
    .outerjoin(dispatches, dispatches.c.run_id == runs.c.run_id)
)
_OF_RUNS: Final = (
    select(*_COLUMNS)
    # The latest Attempt, by its number.
    .outerjoin_from(runs, attempts, and_(attempts.c.run_id == runs.c.run_id, attempts.c.number == runs.c.attempt_count))
    .outerjoin(executions, executions.c.attempt_id == attempts.c.attempt_id)
    .outerjoin(dispatches, dispatches.c.run_id == runs.c.run_id)
)


SELECT_TARGETS_OF_ATTEMPTS: Final = Statement(
    "select_targets_of_attempts", _OF_ATTEMPTS.where(one_of(executions.c.attempt_id, "items"))
)
SELECT_TARGETS_OF_RUNS: Final = Statement("select_targets_of_runs", _OF_RUNS.where(one_of(runs.c.run_id, "items")))


@dataclass(frozen=True, slots=True)
class Moments:
    """The time at which something is judged: what decides leases, and what decides waits (R5)."""

    now_ms: int
    boot_id: str | None = None
    boot_ms: int = 0

    @classmethod
    def of(cls, reading: Reading, now_ms: int | None = None) -> Moments:
        """Take the time that decides: the database's, or on SQLite wall and boot clock."""
        at_ms = reading.now_ms() if now_ms is None else now_ms
        if reading.dialect != SQLITE:
            return cls(at_ms)
        return cls(at_ms, reading.clock.boot_id(), reading.clock.boot_ms())

    def left_ms(self, expires_at_ms: int, boot_id: str | None, expires_boot_ms: int | None, bound_ms: int) -> int:
        """How long a lease is still valid; 0 where it is not (R5.3)."""
        if self.boot_id is None:
            return expires_at_ms - self.now_ms if is_valid(self.now_ms, expires_at_ms, bound_ms) else 0
        if boot_id != self.boot_id or expires_boot_ms is None:
            return 0
        return expires_boot_ms - self.boot_ms if is_valid(self.boot_ms, expires_boot_ms, bound_ms) else 0


@dataclass(frozen=True, slots=True)
class Target:
    """A Run, the Attempt in question or its latest, that one's execution, and the Run's dispatch."""

    run_id: str
    run_status: str
    execution_owner: str
    intent_at_ms: int | None
    active_attempt_id: str | None
    retry_due_at_ms: int | None
    created_at_ms: int
    updated_at_ms: int
    attempt_id: str | None
    attempt_status: str | None
    executor_type: str | None
    scope: str | None
    lease_expires_at_ms: int | None
    lease_boot_id: str | None
    lease_expires_boot_ms: int | None
    closed_at_ms: int | None
    recover_at_ms: int | None
    dispatch_status: str | None
    dispatch_updated_at_ms: int | None

    @property
    def seen(self) -> str:
        """What a manual verdict was given on (R11.2): if any of it changes, recovery may look again."""
        parts = (self.run_status, self.attempt_status, self.lease_expires_at_ms, self.intent_at_ms)
        return " ".join("-" if part is None else str(part) for part in parts)

    @property
    def dispatch_finished_at_ms(self) -> int | None:
        """Since when the dispatch is finished; None while it is not."""
        if self.dispatch_status is None or DispatchStatus(self.dispatch_status) not in FINISHED_DISPATCH:
            return None
        return self.dispatch_updated_at_ms

    def lease_left_ms(self, moments: Moments) -> int:
        """How long the execution lease is still valid; 0 where it is not, or where there is none."""
        if self.lease_expires_at_ms is None:
            return 0
        _, _, bound_ms = Settings.bounds()["execution_lease_ms"]
        return moments.left_ms(self.lease_expires_at_ms, self.lease_boot_id, self.lease_expires_boot_ms, bound_ms)

    @property
    def recoverable(self) -> bool:
        """Whether its Attempt is one that recovery looks after: active, ours, and nobody asked it to stop (R11.1)."""
        return (
            self.intent_at_ms is None
            and self.execution_owner == ExecutionOwner.RUNTIME
            and self.closed_at_ms is None
            and self.attempt_status in ACTIVE_ATTEMPT
        )

    def standing(self, purpose: Purpose, kind: ItemKind, moments: Moments, settings: Settings) -> int | None:
        """From when on it is a candidate of that purpose; None where nothing but a change makes it one."""
        if self.execution_owner != ExecutionOwner.RUNTIME:
            return None
        if purpose is Purpose.STOP:
            return self._stop_standing(moments, settings)
        if purpose is Purpose.RETRY:
            return self._retry_standing(moments)
        if kind is ItemKind.ATTEMPT:
            return moments.now_ms + self.lease_left_ms(moments) if self.recoverable else None
        if self.intent_at_ms is not None:
            return None
        if self.run_status == RunStatus.CREATED:
            return max(moments.now_ms, self.created_at_ms + settings.stuck_created_ms)
        ownerless = self.run_status in RUN_WITH_ATTEMPT and self.active_attempt_id is None
        return moments.now_ms if ownerless else None

    def _stop_standing(self, moments: Moments, settings: Settings) -> int | None:
        if self.intent_at_ms is None or self.run_status in TERMINAL_RUN:
            return None
        if self.active_attempt_id is None:
            return moments.now_ms
        lease_ends_at_ms = moments.now_ms + self.lease_left_ms(moments)
        finished_at_ms = self.dispatch_finished_at_ms
        if finished_at_ms is None:
            return lease_ends_at_ms
        return min(lease_ends_at_ms, max(moments.now_ms, finished_at_ms + settings.stop_report_grace_ms))

    def _retry_standing(self, moments: Moments) -> int | None:
        if self.run_status == RunStatus.LOST:
            return moments.now_ms
        if self.run_status != RunStatus.RETRY_WAIT or self.retry_due_at_ms is None:
            return None
        # A wait that ends further ahead than any may comes from a clock that has stepped back since (R5.3).
        waits = moments.now_ms < self.retry_due_at_ms <= moments.now_ms + NOT_DUE_MAX_MS
        return self.retry_due_at_ms if waits else moments.now_ms


def read_targets(reading: Reading, kind: ItemKind, items: Iterable[str]) -> dict[str, Target]:
    """Read what items are about, by item; one that is gone is left out."""
    wanted = list(items)
    if not wanted:
        return {}
    statement = SELECT_TARGETS_OF_ATTEMPTS if kind is ItemKind.ATTEMPT else SELECT_TARGETS_OF_RUNS
    found = (Target(*row) for row in reading.rows(statement, {"items": wanted}))
    return {_item(kind, target): target for target in found}


def _item(kind: ItemKind, target: Target) -> str:
    if kind is ItemKind.RUN:
        return target.run_id
    return target.attempt_id or ""

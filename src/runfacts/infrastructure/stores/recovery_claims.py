"""
Recovery claims: the rows of ``recovery_claims``, read, judged and changed (R11.2, R11.7).

Every change names the version that it was decided on and takes the next one. What is done on behalf of a term names
also its owner and token, and happens only while its time lasts: by the database's own time on PostgreSQL, by the boot
clock on SQLite (R5). For recovery of an Attempt the time at which to look next stands also in its execution; whoever
changes the one changes the other, the row first (R4.4).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, and_, bindparam, func, insert, select, update

from runfacts.domain.cancellation.dispatch import NOT_DUE_MAX_MS
from runfacts.domain.leases import TokenPurpose, digest, matches
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.claims import ClaimState, ItemKind, Purpose, RecoveryClaimed, RecoveryKey
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, constant, one_of
from runfacts.infrastructure.database.recovery_tables import recovery_claims as table
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions
from runfacts.infrastructure.database.transactions import Change, Reading
from runfacts.infrastructure.stores.executions import LeaseTimes
from runfacts.infrastructure.stores.recovery_rows import NO_TERM
from runfacts.infrastructure.stores.recovery_targets import Moments, Target

_, _, CLAIM_BOUND_MS = Settings.bounds()["recovery_lease_ms"]

_IS_KEY: Final = and_(
    table.c.purpose == bindparam("key_purpose"),
    table.c.kind == bindparam("key_kind"),
    table.c.item_id == bindparam("key_item_id"),
)
_IS_VERSION: Final = table.c.version == bindparam("expected_version")
_NAMES: Final = tuple(column.name for column in table.c)
_KEY: Final = ("purpose", "kind", "item_id")
_CHANGED: Final = tuple(name for name in _NAMES if name not in {*_KEY, "run_id", "created_at_ms"})
_ALL: Final[dict[str, Any]] = {name: bindparam(name) for name in _CHANGED}
_NOW: Final = func.runfacts_now_ms(type_=BigInteger)


def _in_time(dialect: str) -> ColumnElement[bool]:
    """Whether the term's time lasts, judged by the write itself (R5.3, R11.7)."""
    if dialect == POSTGRESQL:
        return and_(table.c.claim_expires_at_ms > _NOW, table.c.claim_expires_at_ms <= _NOW + CLAIM_BOUND_MS)
    return and_(
        table.c.claim_boot_id == bindparam("boot_id"),
        table.c.claim_expires_boot_ms > bindparam("boot_ms"),
        table.c.claim_expires_boot_ms <= bindparam("boot_bound_ms"),
    )


def _is_term(dialect: str) -> ColumnElement[bool]:
    return and_(
        _IS_KEY,
        _IS_VERSION,
        # Owner and token too: a holder proves itself, it does not guess a version (R11.6).
        table.c.state == constant(ClaimState.CLAIMED.value),
        table.c.owner == bindparam("key_owner"),
        table.c.token_digest == bindparam("key_token_digest"),
        _in_time(dialect),
    )


SELECT_RECOVERY_CLAIM: Final = Statement("select_recovery_claim", select(*table.c).where(_IS_KEY))
LOCK_RECOVERY_CLAIMS: Final = Statement(
    "lock_recovery_claims",
    # Whoever holds one is left alone, and nobody is waited for.
    select(*table.c)
    .where(
        table.c.purpose == bindparam("key_purpose"),
        table.c.kind == bindparam("key_kind"),
        one_of(table.c.item_id, "items"),
    )
    .with_for_update(key_share=True, skip_locked=True),
)
LOCK_RECOVERY_CLAIM: Final = Statement(
    "lock_recovery_claim", select(*table.c).where(_IS_KEY).with_for_update(key_share=True)
)
INSERT_RECOVERY_CLAIM: Final = Statement(
    "insert_recovery_claim", insert(table).values({name: bindparam(name) for name in _NAMES})
)
CHANGE_RECOVERY_CLAIM: Final = Statement(
    "change_recovery_claim", update(table).values(_ALL).where(_IS_KEY, _IS_VERSION)
)
END_RECOVERY_TERM: Final = Statement(
    "end_recovery_term",
    {dialect: update(table).values(_ALL).where(_is_term(dialect)) for dialect in (SQLITE, POSTGRESQL)},
)
FENCE_RECOVERY_TERM: Final = Statement(
    # Changes nothing: it fails where the term is over, and holds the row until what it allowed is written (R11.6).
    "fence_recovery_term",
    {
        dialect: update(table).values(version=table.c.version).where(_is_term(dialect))
        for dialect in (SQLITE, POSTGRESQL)
    },
)
MOVE_RECOVERY: Final = Statement(
    "move_recovery",
    update(executions)
    .values(recover_at_ms=bindparam("recover_at_ms"))
    .where(
        executions.c.attempt_id == bindparam("key_attempt_id"),
        # A request to stop, the Attempt's end and a renewal move it, too: then this is decided again (R12.2).
        executions.c.recover_at_ms.is_not_distinct_from(bindparam("expected_recover_at_ms", type_=BigInteger)),
    ),
)


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """A row, as it is stored; the token only as its digest."""

    purpose: str
    kind: str
    item_id: str
    run_id: str
    attempt_id: str | None
    executor_type: str
    scope: str
    state: str
    version: int
    owner: str | None
    token_digest: str | None
    claim_expires_at_ms: int | None
    claim_boot_id: str | None
    claim_expires_boot_ms: int | None
    next_claim_at_ms: int | None
    due_at_ms: int | None
    delays: int
    failures: int
    reason: str | None
    seen: str | None
    created_at_ms: int
    updated_at_ms: int

    @property
    def key(self) -> RecoveryKey:
        """Which row it is."""
        return RecoveryKey(Purpose(self.purpose), ItemKind(self.kind), self.item_id)

    def held(self, moments: Moments) -> bool:
        """Whether somebody's term lasts."""
        if self.state != ClaimState.CLAIMED or self.claim_expires_at_ms is None:
            return False
        left_ms = moments.left_ms(
            self.claim_expires_at_ms, self.claim_boot_id, self.claim_expires_boot_ms, CLAIM_BOUND_MS
        )
        return left_ms > 0

    def is_term(self, claim: RecoveryClaimed, moments: Moments) -> bool:
        """Whether it is held by exactly this term, in time (R11.6)."""
        return (
            self.held(moments)
            and self.version == claim.version
            and self.owner == claim.owner
            and self.token_digest is not None
            and matches(TokenPurpose.RECOVERY, claim.token, self.token_digest)
        )

    def claimable(self, target: Target, moments: Moments) -> bool:
        """Whether the row lets a candidate be claimed now (R11.2)."""
        if self.state == ClaimState.CLAIMED:
            return not self.held(moments)
        if self.state == ClaimState.MANUAL:
            return self.seen != target.seen
        if self.state == ClaimState.RETRY and self.next_claim_at_ms is not None:
            return not moments.now_ms < self.next_claim_at_ms <= moments.now_ms + NOT_DUE_MAX_MS
        return True


def read_claim(reading: Reading, key: RecoveryKey) -> ClaimRow | None:
    """Give a row; None where there is none."""
    row = reading.row(SELECT_RECOVERY_CLAIM, _key(key))
    return None if row is None else ClaimRow(*row)


def lock_claim(reading: Reading, key: RecoveryKey) -> ClaimRow | None:
    """Give a row and hold it, after whoever holds it now; None where there is none."""
    row = reading.row(LOCK_RECOVERY_CLAIM, _key(key))
    return None if row is None else ClaimRow(*row)


def lock_claims(reading: Reading, purpose: Purpose, kind: ItemKind, items: Iterable[str]) -> dict[str, ClaimRow]:
    """Give the rows of items that nobody else holds right now, and hold them, by item."""
    wanted = sorted(items)
    if not wanted:
        return {}
    parameters = {"key_purpose": purpose.value, "key_kind": kind.value, "items": wanted}
    rows = (ClaimRow(*row) for row in reading.rows(LOCK_RECOVERY_CLAIMS, parameters))
    return {row.item_id: row for row in rows}


def claimed(claim: RecoveryClaimed, row: ClaimRow | None, lease: LeaseTimes, now_ms: int) -> dict[str, Any]:
    """Give the parameters that begin a term: of ``INSERT_RECOVERY_CLAIM`` where there is no row, else of a change."""
    columns = _FREE | {
        "attempt_id": claim.attempt_id,
        "executor_type": claim.executor_type,
        "scope": claim.scope,
        "state": ClaimState.CLAIMED.value,
        "owner": claim.owner,
        "token_digest": digest(TokenPurpose.RECOVERY, claim.token),
        "claim_expires_at_ms": lease.expires_at_ms,
        "claim_boot_id": lease.boot_id,
        "claim_expires_boot_ms": lease.expires_boot_ms,
        "due_at_ms": lease.expires_at_ms,
        "delays": claim.delays,
        "failures": claim.failures,
    }
    return _anew(claim.key, claim.run_id, columns, now_ms) if row is None else _change(row, columns, now_ms)


def moved(row: ClaimRow, due_at_ms: int | None, now_ms: int) -> Change:
    """Let nobody look at a row before ``due_at_ms``, or never: what was found out of it is over."""
    return Change(CHANGE_RECOVERY_CLAIM, _change(row, resting(row, due_at_ms), now_ms))


def ended(row: ClaimRow, claim: RecoveryClaimed, reading: Reading, columns: dict[str, Any], now_ms: int) -> Change:
    """End exactly this term (R11.7); ``columns`` is what ``resting``, ``waiting`` or ``manual`` gives."""
    return Change(END_RECOVERY_TERM, _change(row, columns, now_ms) | _term(claim, reading))


def resting(row: ClaimRow, due_at_ms: int | None) -> dict[str, Any]:
    """Give the columns of a row that is resolved, or available from ``due_at_ms`` on; all counted is forgotten."""
    return _FREE | {
        "attempt_id": row.attempt_id,
        "executor_type": row.executor_type,
        "scope": row.scope,
        "state": (ClaimState.RESOLVED if due_at_ms is None else ClaimState.AVAILABLE).value,
        "due_at_ms": due_at_ms,
        "delays": 0,
        "failures": 0,
    }


def given_back(row: ClaimRow, due_at_ms: int) -> dict[str, Any]:
    """Give the columns of a row that is available again, with what was counted (R11.2)."""
    return resting(row, due_at_ms) | {"delays": row.delays, "failures": row.failures}


def waiting(row: ClaimRow, next_at_ms: int, *, failed: bool) -> dict[str, Any]:
    """Give the columns of a row that waits for another look (R11.8)."""
    return resting(row, next_at_ms) | {
        "state": ClaimState.RETRY.value,
        "next_claim_at_ms": next_at_ms,
        "delays": row.delays + 1,
        "failures": row.failures + 1 if failed else 0,
    }


def manual(row: ClaimRow, reason: str, seen: str, *, failed: bool) -> dict[str, Any]:
    """Give the columns of a row that waits for an operator (R11.10)."""
    return resting(row, None) | {
        "state": ClaimState.MANUAL.value,
        "reason": reason,
        "seen": seen,
        "delays": row.delays,
        "failures": row.failures + 1 if failed else 0,
    }


def fence(claim: RecoveryClaimed, reading: Reading) -> Change:
    """Hold a term's row while something is written that it allows."""
    return Change(FENCE_RECOVERY_TERM, _key(claim.key) | {"expected_version": claim.version} | _term(claim, reading))


def moved_execution(attempt_id: str, target: Target, recover_at_ms: int | None) -> Change:
    """Say when recovery looks at an Attempt next, if that still is as it was read."""
    key = {"key_attempt_id": attempt_id, "expected_recover_at_ms": target.recover_at_ms}
    return Change(MOVE_RECOVERY, key | {"recover_at_ms": recover_at_ms})


_FREE: Final[dict[str, Any]] = {
    **NO_TERM,
    "next_claim_at_ms": None,
    "due_at_ms": None,
    "reason": None,
    "seen": None,
}


def _anew(key: RecoveryKey, run_id: str, columns: dict[str, Any], now_ms: int) -> dict[str, Any]:
    named = {"purpose": key.purpose.value, "kind": key.kind.value, "item_id": key.item_id, "run_id": run_id}
    return columns | named | {"version": 1, "created_at_ms": now_ms, "updated_at_ms": now_ms}


def _change(row: ClaimRow, columns: dict[str, Any], now_ms: int) -> dict[str, Any]:
    return (
        columns
        | _key(row.key)
        | {
            "expected_version": row.version,
            "version": row.version + 1,
            "updated_at_ms": max(now_ms, row.created_at_ms),
        }
    )


def _key(key: RecoveryKey) -> dict[str, Any]:
    return {"key_purpose": key.purpose.value, "key_kind": key.kind.value, "key_item_id": key.item_id}


def _term(claim: RecoveryClaimed, reading: Reading) -> dict[str, Any]:
    term: dict[str, Any] = {
        "key_owner": claim.owner,
        "key_token_digest": digest(TokenPurpose.RECOVERY, claim.token),
    }
    if reading.dialect == SQLITE:
        boot_ms = reading.clock.boot_ms()
        term |= {
            "boot_id": reading.clock.boot_id(),
            "boot_ms": boot_ms,
            "boot_bound_ms": boot_ms + CLAIM_BOUND_MS,
        }
    return term

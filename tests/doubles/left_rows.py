"""Rows of recovery as workers leave them, written past the claims: for whoever only reads them or acts on them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import delete, insert, update

from deliveries import SCOPE
from runfacts import AttemptClaim, Ledger
from runfacts.domain.recovery.claims import ClaimState, ItemKind, ManualReason, Purpose
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.infrastructure.database.tables import executions
from runfacts.testing.ledgers import contents_of
from stages import EXECUTOR

UNPROVEN = ManualReason.IDENTITY_UNVERIFIABLE


def put_row(
    ledger: Ledger,
    purpose: Purpose,
    state: ClaimState,
    run_id: str,
    attempt_id: str | None = None,
    **columns: Any,  # noqa: ANN401 - any column
) -> None:
    """Write the row of an Attempt's recovery, where one is named, or else of a Run, in that state, as of now."""
    of_attempt = purpose is Purpose.RECOVERY and attempt_id is not None
    row: dict[str, Any] = {
        **dict.fromkeys(recovery_claims.columns.keys()),
        "purpose": purpose.value,
        "kind": (ItemKind.ATTEMPT if of_attempt else ItemKind.RUN).value,
        "item_id": attempt_id if of_attempt else run_id,
        "run_id": run_id,
        "attempt_id": attempt_id,
        "executor_type": EXECUTOR,
        "scope": SCOPE,
        "state": state.value,
        "version": 2,
        "delays": 3,
        "failures": 1,
        **_as_of_now(ledger, state),
        **columns,
    }
    key = [recovery_claims.c[name] == row[name] for name in ("purpose", "kind", "item_id")]
    with ledger.database.engine.begin() as connection:
        connection.execute(delete(recovery_claims).where(*key))
        connection.execute(insert(recovery_claims).values(row))
        if of_attempt:
            where = executions.c.attempt_id == attempt_id, executions.c.closed_at_ms.is_(None)
            connection.execute(update(executions).values(recover_at_ms=row["due_at_ms"]).where(*where))


def left_to_operators(
    ledger: Ledger,
    claim: AttemptClaim,
    purpose: Purpose = Purpose.RECOVERY,
    **columns: Any,  # noqa: ANN401 - any column
) -> None:
    """Leave a Run to the operators, for that purpose."""
    put_row(ledger, purpose, ClaimState.MANUAL, claim.run_id, claim.attempt_id, **columns)


def expired(ledger: Ledger, claim: AttemptClaim) -> None:
    """Let an execution's lease have expired long ago, where no test moves the clock."""
    lease = {"lease_expires_at_ms": 1} | ({"lease_expires_boot_ms": 1} if ledger.database.dialect == SQLITE else {})
    with ledger.database.engine.begin() as connection:
        where = executions.c.attempt_id == claim.attempt_id
        connection.execute(update(executions).values(recover_at_ms=1, **lease).where(where))


def row_of_item(ledger: Ledger, purpose: Purpose, item_id: str) -> dict[str, Any] | None:
    """Give the row of an item as it is stored, by column."""
    names = recovery_claims.columns.keys()
    rows = [dict(zip(names, row, strict=True)) for row in contents_of(ledger)[recovery_claims.name]]
    return next((row for row in rows if (row["purpose"], row["item_id"]) == (purpose.value, item_id)), None)


def stood(ledger: Ledger, purpose: Purpose, item_id: str, *names: str) -> tuple[Any, ...]:
    """Give columns of an item's row, which must be there."""
    row = row_of_item(ledger, purpose, item_id)
    assert row is not None
    return tuple(row[name] for name in names)


def execution_of(ledger: Ledger, attempt_id: str) -> dict[str, Any]:
    """Give an execution as it is stored, by column."""
    names = executions.columns.keys()
    rows = [dict(zip(names, row, strict=True)) for row in contents_of(ledger)[executions.name]]
    return next(row for row in rows if row["attempt_id"] == attempt_id)


def _as_of_now(ledger: Ledger, state: ClaimState) -> dict[str, Any]:
    """Give the columns that a state needs, and no other may have."""
    with ledger.database.reading() as reading:
        now_ms, clock = reading.now_ms(), reading.clock
    row: dict[str, Any] = {"created_at_ms": now_ms, "updated_at_ms": now_ms}
    match state:
        case ClaimState.MANUAL:
            row |= {"reason": UNPROVEN.value, "seen": "running running 5 -"}
        case ClaimState.CLAIMED:
            row |= {"owner": "worker-9", "token_digest": "d" * 64}
            row |= {"claim_expires_at_ms": now_ms + 30_000, "due_at_ms": now_ms + 30_000}
            if ledger.database.dialect == SQLITE:
                row |= {"claim_boot_id": clock.boot_id(), "claim_expires_boot_ms": clock.boot_ms() + 30_000}
        case ClaimState.RETRY:
            row |= {"next_claim_at_ms": now_ms + 5_000, "due_at_ms": now_ms + 5_000}
        case ClaimState.AVAILABLE:
            row |= {"due_at_ms": now_ms}
        case ClaimState.RESOLVED:
            pass
    return row

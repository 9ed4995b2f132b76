"""Rows of recovery as they are stored, and rows put there as a worker or an operator would have left them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, update

from runfacts import Ledger
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.testing.ledgers import contents_of
from stages import one_writer

BOOT = "01890000-0000-4000-8000-0000000000ff"
NOBODY: dict[str, Any] = {
    "owner": None,
    "token_digest": None,
    "claim_expires_at_ms": None,
    "claim_boot_id": None,
    "claim_expires_boot_ms": None,
    "next_claim_at_ms": None,
    "due_at_ms": None,
    "delays": 0,
    "failures": 0,
    "reason": None,
    "seen": None,
}


def rows_of(ledger: Ledger, item_id: str) -> dict[str, dict[str, Any]]:
    """Give the rows of a Run or an Attempt by purpose, each by column."""
    names = recovery_claims.columns.keys()
    rows = [dict(zip(names, row, strict=True)) for row in contents_of(ledger)[recovery_claims.name]]
    return {row["purpose"]: row for row in rows if row["item_id"] == item_id}


def state_of(ledger: Ledger, purpose: str, item_id: str) -> tuple[str, int, int | None]:
    """Give state, version and due time of a row, which must be there."""
    row = rows_of(ledger, item_id)[purpose]
    return row["state"], row["version"], row["due_at_ms"]


def claimed_until(ledger: Ledger, expires_at_ms: int) -> dict[str, Any]:
    """Give the columns of a row that somebody holds; on SQLite the boot clock decides for how long (R5.2)."""
    clock = ledger.database.clock
    boot: dict[str, Any] = {"claim_boot_id": None, "claim_expires_boot_ms": None}
    if one_writer(ledger):
        left_ms = expires_at_ms - clock.wall_ms()
        boot = {"claim_boot_id": clock.boot_id(), "claim_expires_boot_ms": clock.boot_ms() + left_ms}
    return {
        "state": "claimed",
        "owner": "worker-9",
        "token_digest": "d" * 64,
        "claim_expires_at_ms": expires_at_ms,
        "due_at_ms": expires_at_ms,
        **boot,
    }


def put_recovery(ledger: Ledger, run_id: str, attempt_id: str, **columns: Any) -> None:  # noqa: ANN401 - any column
    """Insert the row of an Attempt's recovery."""
    row = NOBODY | {
        "purpose": "recovery",
        "kind": "attempt",
        "item_id": attempt_id,
        "run_id": run_id,
        "attempt_id": attempt_id,
        "executor_type": "batch",
        "scope": "",
        "version": 3,
        "created_at_ms": 1,
        "updated_at_ms": 1,
    }
    with ledger.database.engine.begin() as connection:
        connection.execute(insert(recovery_claims), [row | columns])


def change_row(ledger: Ledger, purpose: str, item_id: str, **columns: Any) -> None:  # noqa: ANN401 - any column
    """Change the row of a purpose as somebody else would have."""
    this = (recovery_claims.c.purpose == purpose) & (recovery_claims.c.item_id == item_id)
    with ledger.database.engine.begin() as connection:
        changed = connection.execute(update(recovery_claims).where(this).values(NOBODY | columns)).rowcount
    assert changed == 1

"""Runs that nobody looks after any more, and the claims to find out about them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, text

from every_command import RUNNING
from runfacts import Actor, ActorType, AttemptClaim, Ledger
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import AttemptLost
from runfacts.domain.recovery.claims import (
    Purpose,
    RecoveryApplied,
    RecoveryClaimed,
    RecoverySettled,
)
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.retry import RetryPolicy, Safety
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.infrastructure.database.tables import attempts, executions, runs
from runfacts.infrastructure.tokens import new_id
from runfacts.testing.clock import ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import contents_of
from stages import EXECUTOR

SCOPE = "here"
SERVED = frozenset({(EXECUTOR, SCOPE)})
ELSEWHERE = frozenset({(EXECUTOR, "there")})
ONE, TWO = "worker-1", "worker-2"
LEASE_MS = 30_000
"""Of an execution and of a claim, where nothing else is said."""
UNSERVED_MS = 600_000
RECONCILER = Actor(ActorType.RECONCILER, ONE)
RETRIED = RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.IDEMPOTENT)


def clock_of(ledger: Ledger) -> ManualClock:
    """Give the clock that the ledger goes by."""
    clock = ledger.database.clock
    assert isinstance(clock, ManualClock)
    return clock


def page(
    ledger: Ledger,
    purpose: Purpose = Purpose.RECOVERY,
    owner: str = ONE,
    **other: Any,  # noqa: ANN401 - any argument of claim_recoveries
) -> tuple[RecoveryClaimed, ...]:
    """Claim a page for our scope."""
    return ledger.claim_recoveries(purpose, owner=owner, **{"served": SERVED, **other})


def only(ledger: Ledger, purpose: Purpose = Purpose.RECOVERY, owner: str = ONE, **other: Any) -> RecoveryClaimed:  # noqa: ANN401 - as above
    """Claim a page that holds just one item."""
    (claim,) = page(ledger, purpose, owner, **other)
    return claim


def seen(ledger: Ledger, claim: RecoveryClaimed) -> Snapshot:
    """Take a claim's snapshot, of a Run that is there."""
    snapshot = ledger.recovery_snapshot(claim)
    assert snapshot is not None
    return snapshot


def settled(ledger: Ledger, claim: RecoveryClaimed, **how: Any) -> RecoverySettled:  # noqa: ANN401 - any argument of settle_recovery
    """Settle a term, which must last."""
    answer = ledger.settle_recovery(claim, **how)
    assert isinstance(answer, RecoverySettled), answer
    return answer


def applied(answer: object) -> RecoveryApplied:
    """Insist that a mutation was recorded."""
    assert isinstance(answer, RecoveryApplied), answer
    return answer


def row_of_claim(ledger: Ledger, claim: RecoveryClaimed) -> dict[str, Any]:
    """Give a claim's row as it is stored, by column."""
    return row_of_item(ledger, claim.key.purpose, claim.key.item_id)


def row_of_item(ledger: Ledger, purpose: Purpose, item_id: str) -> dict[str, Any]:
    """Give the row of an item, by column."""
    names = recovery_claims.columns.keys()
    rows = (dict(zip(names, row, strict=True)) for row in contents_of(ledger)[recovery_claims.name])
    (row,) = [row for row in rows if (row["purpose"], row["item_id"]) == (purpose, item_id)]
    return row


def execution_of(ledger: Ledger, attempt_id: str) -> dict[str, Any]:
    """Give an execution as it is stored, by column."""
    names = executions.columns.keys()
    (row,) = [row for row in contents_of(ledger)[executions.name] if row[0] == attempt_id]
    return dict(zip(names, row, strict=True))


def states(ledger: Ledger, purpose: Purpose = Purpose.RECOVERY) -> list[str]:
    """Give the states of all rows of a purpose."""
    state = list(recovery_claims.columns.keys()).index("state")
    return [row[state] for row in contents_of(ledger)[recovery_claims.name] if row[0] == purpose]


def copied(ledger: Ledger, claim: AttemptClaim, count: int, **changes: Any) -> list[str]:  # noqa: ANN401 - any column
    """Copy Run, Attempt and execution ``count`` times, with these columns of executions; the Attempts' ids.

    There are no facts to them: for pages only.
    """
    contents = contents_of(ledger)
    made = [(new_id(), new_id()) for _ in range(count)]
    with ledger.database.engine.begin() as connection:
        for table, column, other in ((runs, "run_id", {}), (executions, "run_id", changes), (attempts, "run_id", {})):
            at = list(table.columns.keys()).index(column)
            (row,) = [row for row in contents[table.name] if row[at] == claim.run_id]
            columns = dict(zip(table.columns.keys(), row, strict=True)) | other
            connection.execute(
                insert(table),
                [
                    columns
                    | {"run_id": run_id}
                    | ({"active_attempt_id": attempt_id} if table is runs else {"attempt_id": attempt_id})
                    for run_id, attempt_id in made
                ],
            )
    return [attempt_id for _, attempt_id in made]


def put_rows(ledger: Ledger, items: list[str], like: RecoveryClaimed, **columns: Any) -> None:  # noqa: ANN401 - any column
    """Give Attempts rows like that of a claim, with other columns."""
    template = row_of_claim(ledger, like)
    of = {row[0]: row[1] for row in contents_of(ledger)[executions.name]}
    with ledger.database.engine.begin() as connection:
        connection.execute(
            insert(recovery_claims),
            [template | {"item_id": item, "attempt_id": item, "run_id": of[item]} | columns for item in items],
        )


def change(ledger: Ledger, table: str, assignment: str, condition: str = "1 = 1") -> None:
    """Change rows behind the ledger's back."""
    with ledger.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE {table} SET {assignment} WHERE {condition}"))


def vanish(ledger: Ledger, claim: AttemptClaim) -> None:
    """Leave a Run without an active Attempt, which no command does."""
    change(ledger, "runs", "active_attempt_id = NULL", f"run_id = '{claim.run_id}'")
    change(ledger, "executions", "recover_at_ms = NULL, closed_at_ms = 1", f"attempt_id = '{claim.attempt_id}'")


def without_an_attempt(ledger: Ledger) -> str:
    """Make a Run that runs although its Attempt is lost, which no command of this release does; its id."""
    return given_in(ledger, *RUNNING, AttemptLost(evidence=Evidence.NOT_RUNNING)).run_id


FREE = {
    "owner": None,
    "token_digest": None,
    "claim_expires_at_ms": None,
    "claim_boot_id": None,
    "claim_expires_boot_ms": None,
}
"""The columns of a row that nobody holds."""

"""Runs that somebody asked to stop, and the delivery of that: claimed, held, settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import insert

from runfacts import Actor, AttemptClaim, IntentKind, Ledger, Recorded, Started
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import CancelRequested, DispatchClaimed, DispatchNotClaimed, DispatchSettled
from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.database.tables import runs
from runfacts.infrastructure.tokens import new_id
from runfacts.testing.ledgers import contents_of
from stages import ANA, EXECUTOR, WORKER, claim_of, queued

SCOPE = "here"
SERVED = frozenset({(EXECUTOR, SCOPE)})
OPERATOR = Actor.operator("olga")
ONE, TWO = "worker-1", "worker-2"
LEASE_MS = 30_000


@dataclass(frozen=True)
class Asked:
    """A Run that was asked to stop while its Attempt was active."""

    claim: AttemptClaim
    requested_at_ms: int

    @property
    def run_id(self) -> str:
        """The Run."""
        return self.claim.run_id

    @property
    def attempt_id(self) -> str:
        """Its Attempt."""
        return self.claim.attempt_id


def brought_to(ledger: Ledger, status: str, **options: Any) -> AttemptClaim:  # noqa: ANN401 - any option of create
    """Bring the first Attempt of a new Run to ``claimed``, ``starting``, ``running`` or ``waiting_approval``."""
    claim = claim_of(ledger, queued(ledger, **options), scope=SCOPE)
    if status != "claimed":
        assert isinstance(ledger.start(claim, actor=WORKER), Started)
    if status in {"running", "waiting_approval"}:
        assert isinstance(ledger.running(claim, actor=WORKER, handle="handle-1", pid=4_711), Recorded)
    if status == "waiting_approval":
        assert isinstance(ledger.wait_for_approval(claim, actor=WORKER), Recorded)
    return claim


def asked_to_stop(
    ledger: Ledger,
    status: str = "running",
    *,
    kind: IntentKind = IntentKind.USER,
    **options: Any,  # noqa: ANN401 - any option of create
) -> Asked:
    """Bring a new Run's Attempt to a status and ask it to stop."""
    claim = brought_to(ledger, status, **options)
    answer = ledger.request_cancellation(claim.run_id, actor=ANA, kind=kind)
    assert isinstance(answer, CancelRequested)
    return Asked(claim, answer.requested_at_ms)


def claim_answer(
    ledger: Ledger,
    asked: Asked,
    owner: str = ONE,
    **other: Any,  # noqa: ANN401 - any argument of claim_dispatch
) -> DispatchClaimed | DispatchNotClaimed:
    """Claim the delivery, and give whatever is answered."""
    wanted: dict[str, Any] = {"served": SERVED, "lease_ms": LEASE_MS} | other
    return ledger.claim_dispatch(asked.run_id, asked.attempt_id, asked.requested_at_ms, owner=owner, **wanted)


def held_by(ledger: Ledger, asked: Asked, owner: str = ONE, lease_ms: int = LEASE_MS) -> DispatchClaimed:
    """Claim the delivery, which must be granted."""
    answer = claim_answer(ledger, asked, owner, lease_ms=lease_ms)
    assert isinstance(answer, DispatchClaimed), answer
    return answer


def refused_as(ledger: Ledger, asked: Asked, owner: str = ONE, **other: Any) -> ClaimAnswer:  # noqa: ANN401 - as above
    """Claim the delivery, which must not be granted."""
    answer = claim_answer(ledger, asked, owner, **other)
    assert isinstance(answer, DispatchNotClaimed), answer
    assert answer.run_id == asked.run_id
    return answer.answer


def settled_with(ledger: Ledger, asked: Asked, result: DispatchResult, owner: str = ONE) -> DispatchSettled:
    """Claim the delivery and settle it."""
    answer = ledger.settle_dispatch(held_by(ledger, asked, owner), result)
    assert isinstance(answer, DispatchSettled), answer
    return answer


def dispatch_of(ledger: Ledger, run_id: str) -> dict[str, Any] | None:
    """Give a Run's dispatch as it is stored, by column."""
    names = cancellation_dispatches.columns.keys()
    rows = [dict(zip(names, row, strict=True)) for row in contents_of(ledger)[cancellation_dispatches.name]]
    return next((row for row in rows if row["run_id"] == run_id), None)


def stored(ledger: Ledger, asked: Asked, *names: str) -> tuple[Any, ...]:
    """Give columns of a Run's dispatch, which must be there."""
    row = dispatch_of(ledger, asked.run_id)
    assert row is not None
    return tuple(row[name] for name in names)


def due_runs(ledger: Ledger, **other: Any) -> list[str]:  # noqa: ANN401 - any argument of due_dispatches
    """Give the Runs of the first page of what is due for our scope."""
    page, _ = ledger.due_dispatches(tuple(sorted(SERVED)), **{"limit": 32, **other})
    return [item.run_id for item in page.items]


def last_fact(ledger: Ledger, run_id: str) -> tuple[str, dict[str, Any], str | None]:
    """Give type, payload and dedupe key of a Run's last fact."""
    fact = ledger.history(run_id)[-1]
    return fact.type, fact.payload.model_dump(mode="json", exclude_none=True), fact.dedupe_key


def cloned(ledger: Ledger, asked: Asked, count: int, **changes: Any) -> list[str]:  # noqa: ANN401 - any column
    """Copy the rows of a Run and its dispatch ``count`` times, with other ids and these columns; the new Runs' ids.

    There are no facts to them: for queues only.
    """
    contents = contents_of(ledger)
    made = [new_id() for _ in range(count)]
    with ledger.database.engine.begin() as connection:
        for table, other in ((runs, {}), (cancellation_dispatches, changes)):
            (row,) = [row for row in contents[table.name] if row[0] == asked.run_id]
            columns = dict(zip(table.columns.keys(), row, strict=True))
            connection.execute(insert(table), [columns | other | {"run_id": run_id} for run_id in made])
    return made

"""Runs brought to each stage of their life by the ledger's own commands, and who does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from runfacts import Actor, AttemptClaim, Claimed, Created, Finished, Ledger, Outcome, Recorded, Started
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.database.tables import metadata
from runfacts.testing.ledgers import contents_of

ANA = Actor.user("ana")
WORKER = Actor.worker("w-1")
EXECUTOR = "batch"


def created(ledger: Ledger, **options: Any) -> str:  # noqa: ANN401 - any option of create
    """Create a Run; its id."""
    answer = ledger.create(actor=ANA, **{"task": "report", **options})
    assert isinstance(answer, Created)
    return answer.run.run_id


def queued(ledger: Ledger, **options: Any) -> str:  # noqa: ANN401 - any option of create
    """Create a Run and queue it; its id."""
    run_id = created(ledger, **options)
    assert isinstance(ledger.queue(run_id, actor=ANA), Recorded)
    return run_id


def claim_of(ledger: Ledger, run_id: str, **options: Any) -> AttemptClaim:  # noqa: ANN401 - any option of claim
    """Claim the next Attempt of a queued Run."""
    answer = ledger.claim(run_id, actor=WORKER, **{"executor_type": EXECUTOR, **options})
    assert isinstance(answer, Claimed)
    return answer.claim


def claimed(ledger: Ledger, **options: Any) -> AttemptClaim:  # noqa: ANN401 - any option of create
    """Claim the first Attempt of a new Run."""
    return claim_of(ledger, queued(ledger, **options))


def started(ledger: Ledger, **options: Any) -> AttemptClaim:  # noqa: ANN401 - any option of create
    """Let the first Attempt of a new Run pass its start barrier."""
    claim = claimed(ledger, **options)
    assert isinstance(ledger.start(claim, actor=WORKER), Started)
    return claim


def run_again(ledger: Ledger, run_id: str) -> AttemptClaim:
    """Bring the next Attempt of a queued Run to running."""
    claim = claim_of(ledger, run_id)
    assert isinstance(ledger.start(claim, actor=WORKER), Started)
    assert isinstance(ledger.running(claim, actor=WORKER), Recorded)
    return claim


def running(ledger: Ledger, **options: Any) -> AttemptClaim:  # noqa: ANN401 - any option of create
    """Let the first Attempt of a new Run run."""
    return run_again(ledger, queued(ledger, **options))


def finished(ledger: Ledger, outcome: Outcome | None = None, **options: Any) -> AttemptClaim:  # noqa: ANN401 - the same
    """Let the first Attempt of a new Run end, well if nothing else is said."""
    claim = running(ledger, **options)
    assert isinstance(ledger.finish(claim, outcome or Outcome.succeeded(exit_code=0), actor=WORKER), Finished)
    return claim


def types(ledger: Ledger, run_id: str) -> list[str]:
    """Give the types of a Run's facts, in order."""
    return [fact.type for fact in ledger.history(run_id)]


def row_of(ledger: Ledger, table: str) -> dict[str, Any]:
    """Give the only row of a table, by column."""
    (row,) = contents_of(ledger)[table]
    return dict(zip(metadata.tables[table].columns.keys(), row, strict=True))


@contextmanager
def unchanged(ledger: Ledger) -> Iterator[None]:
    """Insist that the block changes no row of any table."""
    before = contents_of(ledger)
    yield
    assert contents_of(ledger) == before


def one_writer(ledger: Ledger) -> bool:
    """Whether the database has one writer at a time, so that nobody can overtake a command: SQLite."""
    return ledger.database.dialect == SQLITE

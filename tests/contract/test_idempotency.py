"""An idempotency key makes one Run per project, and a conflict of what differs (R2.11)."""

from __future__ import annotations

from typing import Any

import pytest

from runfacts import AlreadyCreated, Created, IdempotencyConflict, Ledger, RetryPolicy, RunStatus
from runfacts.testing.clock import EPOCH_MS
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, created, finished, unchanged


def again(ledger: Ledger, **options: Any) -> Created | AlreadyCreated:  # noqa: ANN401 - any option of create
    return ledger.create(actor=ANA, **{"task": "report", "idempotency_key": "k", **options})


def test_the_same_key_gives_the_same_run_and_writes_nothing(ledger_factory: ThrowAwayLedgers) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    run_id = created(ledger, idempotency_key="k")
    for each in (ledger, other):
        with unchanged(ledger):
            answer = again(each)
        assert answer == AlreadyCreated(ledger.run(run_id))


def test_the_run_is_given_as_it_stands_now(ledger: Ledger) -> None:
    claim = finished(ledger, idempotency_key="k")
    with unchanged(ledger):
        answer = again(ledger)
    assert isinstance(answer, AlreadyCreated)
    assert (answer.run.run_id, answer.run.status, answer.run.version) == (claim.run_id, RunStatus.SUCCEEDED, 9)


def test_a_key_belongs_to_its_project(ledger: Ledger) -> None:
    first = again(ledger, project="one")
    second = again(ledger, project="two")
    assert isinstance(first, Created)
    assert isinstance(second, Created)
    assert first.run.run_id != second.run.run_id


def test_runs_without_a_key_are_all_new(ledger: Ledger) -> None:
    assert created(ledger) != created(ledger)


@pytest.mark.parametrize(
    ("options", "field"),
    [({"task": "other"}, "task"), ({"policy": RetryPolicy(max_attempts=2, retry_on_failure=True)}, "policy")],
)
def test_another_task_or_policy_is_a_conflict(ledger: Ledger, options: dict[str, Any], field: str) -> None:
    run_id = created(ledger, idempotency_key="k")
    with unchanged(ledger), pytest.raises(IdempotencyConflict) as caught:
        again(ledger, **options)
    assert (caught.value.run_id, caught.value.field) == (run_id, field)


def test_what_else_differs_is_no_conflict(ledger: Ledger) -> None:
    run_id = created(ledger, idempotency_key="k")
    answer = again(ledger, timeout_ms=5, deadline_at_ms=EPOCH_MS, correlation_id="c")
    assert answer == AlreadyCreated(ledger.run(run_id))

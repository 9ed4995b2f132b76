"""A dedupe key records a command once, and is looked at before any version (R3.3, R3.4)."""

from __future__ import annotations

from typing import Any

import pytest

from runfacts import (
    Claimed,
    DedupeConflict,
    InvalidValue,
    Ledger,
    NotClaimable,
    Recorded,
    Refusal,
    Repeated,
    RunStatus,
    RunVersionConflict,
)
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, created, finished, queued, unchanged


def test_a_recorded_key_answers_with_the_present_state_and_writes_nothing(ledger_factory: ThrowAwayLedgers) -> None:
    ledger, other = ledger_factory(), ledger_factory()
    run_id = created(ledger)
    assert isinstance(ledger.queue(run_id, actor=ANA, dedupe_key="q"), Recorded)
    assert ledger.history(run_id)[-1].dedupe_key == "q"
    for each in (ledger, other):
        with unchanged(ledger):
            assert each.queue(run_id, actor=WORKER, dedupe_key="q") == Repeated(run_id, RunStatus.QUEUED, 2)
    assert isinstance(ledger.claim(run_id, actor=WORKER, executor_type="batch"), Claimed)
    with unchanged(ledger):
        assert ledger.queue(run_id, actor=ANA, dedupe_key="q") == Repeated(run_id, RunStatus.DISPATCHING, 4)


def test_the_key_comes_before_the_version(ledger: Ledger) -> None:
    run_id = created(ledger)
    first = ledger.queue(run_id, actor=ANA, dedupe_key="q", expected_version=1)
    assert isinstance(first, Recorded)
    with unchanged(ledger):
        again = ledger.queue(run_id, actor=ANA, dedupe_key="q", expected_version=1)
    assert again == Repeated(run_id, RunStatus.QUEUED, 2)
    with unchanged(ledger), pytest.raises(RunVersionConflict):
        ledger.queue(run_id, actor=ANA, dedupe_key="other", expected_version=1)


def test_a_repeated_claim_gives_no_second_attempt_and_no_token(ledger: Ledger) -> None:
    run_id = queued(ledger)
    first = ledger.claim(run_id, actor=WORKER, executor_type="batch", worker_id="w", dedupe_key="c")
    assert isinstance(first, Claimed)
    assert [fact.dedupe_key for fact in ledger.history(run_id)] == [None, None, None, "c"]
    with unchanged(ledger):
        again = ledger.claim(run_id, actor=WORKER, executor_type="batch", worker_id="w", dedupe_key="c")
    assert again == NotClaimable(run_id, RunStatus.DISPATCHING, Refusal.REPEATED)


@pytest.mark.parametrize("other", [{"executor_type": "stream"}, {"worker_id": "x"}, {"gated": True}])
def test_another_content_under_the_same_key_is_a_conflict(ledger: Ledger, other: dict[str, Any]) -> None:
    run_id = queued(ledger)
    content: dict[str, Any] = {"executor_type": "batch", "worker_id": "w", "gated": False}
    ledger.claim(run_id, actor=WORKER, dedupe_key="c", **content)
    with unchanged(ledger), pytest.raises(DedupeConflict) as caught:
        ledger.claim(run_id, actor=WORKER, dedupe_key="c", **(content | other))
    assert (caught.value.run_id, caught.value.dedupe_key) == (run_id, "c")


def test_another_command_under_the_same_key_is_a_conflict(ledger: Ledger) -> None:
    run_id = created(ledger)
    ledger.queue(run_id, actor=ANA, dedupe_key="k")
    with unchanged(ledger), pytest.raises(DedupeConflict):
        ledger.claim(run_id, actor=WORKER, executor_type="batch", dedupe_key="k")


def test_a_key_belongs_to_its_run(ledger: Ledger) -> None:
    first, second = created(ledger), created(ledger)
    assert isinstance(ledger.queue(first, actor=ANA, dedupe_key="k"), Recorded)
    assert isinstance(ledger.queue(second, actor=ANA, dedupe_key="k"), Recorded)


def test_a_key_that_recorded_nothing_is_free(ledger: Ledger) -> None:
    claim = finished(ledger)
    run_id = created(ledger)
    ledger.queue(run_id, actor=ANA)
    with unchanged(ledger):
        ledger.queue(run_id, actor=ANA, dedupe_key="k")
        ledger.queue(claim.run_id, actor=ANA, dedupe_key="k")
    assert isinstance(ledger.claim(run_id, actor=WORKER, executor_type="batch", dedupe_key="k"), Claimed)


def test_a_key_that_cannot_be_stored_is_refused(ledger: Ledger) -> None:
    run_id = created(ledger)
    with unchanged(ledger):
        for key in ("", "x" * 257, "a\nb", "a\x00b", "\ud800"):
            with pytest.raises(InvalidValue, match="dedupe_key"):
                ledger.queue(run_id, actor=ANA, dedupe_key=key)


def test_a_key_of_256_characters_of_any_script_is_stored(ledger: Ledger) -> None:
    run_id = created(ledger)
    key = "鍵" * 256
    ledger.queue(run_id, actor=ANA, dedupe_key=key)
    assert ledger.history(run_id)[-1].dedupe_key == key

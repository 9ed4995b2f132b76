"""A closed ledger: it says so, connects no more, and its followers end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from runfacts import Checkpoint, DatabaseUnreachable, FeedPage, Ledger
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import PauseAt, listening
from stages import ANA, created, running


@pytest.mark.parametrize(
    "call",
    [
        lambda ledger: ledger.create(actor=ANA, task="report"),
        lambda ledger: ledger.runs(),
        lambda ledger: ledger.feed(),
        lambda ledger: ledger.verify(),
        lambda ledger: list(ledger.heads()),
    ],
    ids=["create", "runs", "feed", "verify", "heads"],
)
def test_a_closed_ledger_says_that_it_is_closed(ledger: Ledger, call: Callable[[Ledger], object]) -> None:
    call(ledger)
    ledger.close()
    with pytest.raises(DatabaseUnreachable, match="this ledger is closed"):
        call(ledger)
    ledger.close()


def test_a_claim_is_of_use_to_another_ledger_after_its_own_was_closed(ledger_factory: ThrowAwayLedgers) -> None:
    first, second = ledger_factory(), ledger_factory()
    claim = running(first)
    first.close()
    assert second.renew(claim).attempt_status == "running"


def test_what_is_under_way_when_the_ledger_is_closed_is_finished(ledger_factory: ThrowAwayLedgers) -> None:
    closing, reader = ledger_factory(), ledger_factory()
    run_id = created(closing)
    pause = PauseAt("sql:before:commit")
    with listening(closing, pause):
        queueing = threading.Thread(target=closing.queue, args=(run_id,), kwargs={"actor": ANA})
        queueing.start()
        pause.wait()
        closing.close()
        pause.resume()
        queueing.join()
    assert reader.run(run_id).status == "queued"


def test_a_follower_that_reads_while_the_ledger_is_closed_ends(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = ledger.feed

    def closed_before_it_reads(after: Checkpoint | None = None, *, limit: int | None = None) -> FeedPage:
        ledger.close()
        return feed(after, limit=limit)

    with ledger.follow() as following:
        monkeypatch.setattr(ledger, "feed", closed_before_it_reads)
        assert list(following) == []

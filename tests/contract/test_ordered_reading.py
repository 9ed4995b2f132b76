"""The feed means the same on every database: in order, once, after the commit, none skipped (R3.9)."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine

from followers import following
from runfacts import Checkpoint, CheckpointLost, Fact, InvalidValue, Ledger
from runfacts.infrastructure.database.engines import parse_url
from runfacts.infrastructure.database.wakeups import FACTS
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, created, finished


def positions(facts: tuple[Fact, ...]) -> list[int | None]:
    return [fact.position for fact in facts]


def test_an_empty_ledger_has_an_empty_feed(ledger: Ledger) -> None:
    page = ledger.feed()
    assert (page.facts, page.checkpoint, page.waiting) == ((), None, None)


def test_the_feed_gives_every_fact_once_by_position(ledger: Ledger) -> None:
    runs = [finished(ledger).run_id for _ in range(2)]
    facts: list[Fact] = []
    checkpoint = None
    while (page := ledger.feed(checkpoint, limit=4)).facts:
        assert page.checkpoint is not None
        assert page.checkpoint == Checkpoint.of(page.facts[-1])
        facts += page.facts
        checkpoint = page.checkpoint
    assert page.checkpoint == checkpoint
    assert positions(tuple(facts)) == list(range(1, 19))
    for run_id in runs:
        assert tuple(fact for fact in facts if fact.run_id == run_id) == ledger.history(run_id)


def test_a_checkpoint_is_good_for_another_ledger_on_the_same_database(ledger_factory: ThrowAwayLedgers) -> None:
    one, other = ledger_factory(), ledger_factory()
    finished(one)
    checkpoint = one.feed(limit=3).checkpoint
    assert positions(other.feed(checkpoint, limit=3).facts) == [4, 5, 6]


@pytest.mark.parametrize("limit", [0, 501])
def test_a_page_is_bounded(ledger: Ledger, limit: int) -> None:
    with pytest.raises(InvalidValue):
        ledger.feed(limit=limit)
    with pytest.raises(InvalidValue):
        ledger.follow(limit=limit)


def test_a_checkpoint_whose_position_holds_another_fact_stops_the_reader(ledger: Ledger) -> None:
    created(ledger)
    checkpoint = ledger.feed().checkpoint
    assert checkpoint is not None
    forged = Checkpoint(1, "0" * 64)
    with pytest.raises(CheckpointLost) as caught:
        ledger.feed(forged)
    assert (caught.value.position, caught.value.found) == (1, checkpoint.hash)
    with pytest.raises(CheckpointLost), ledger.follow(forged) as iterator:
        next(iterator)
    with pytest.raises(CheckpointLost):
        ledger.feed_health(forged)


def test_a_checkpoint_whose_position_holds_nothing_stops_the_reader(ledger: Ledger) -> None:
    created(ledger)
    with pytest.raises(CheckpointLost) as caught:
        ledger.feed(Checkpoint(2, "0" * 64))
    assert (caught.value.position, caught.value.found) == (2, None)
    created(ledger)
    assert positions(ledger.feed().facts) == [1, 2]


def test_facts_in_a_callers_transaction_come_with_its_commit(ledger: Ledger, ledger_factory: ThrowAwayLedgers) -> None:
    created(ledger)
    engine = create_engine(parse_url(ledger_factory.url))
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA foreign_keys=ON")
        ledger.create(actor=ANA, task="report", connection=connection)
        assert positions(ledger.feed().facts) == [1]
        connection.commit()
        assert positions(ledger.feed().facts) == [1, 2]
        ledger.create(actor=ANA, task="report", connection=connection)
        connection.rollback()
    engine.dispose()
    created(ledger)
    assert [fact.sequence for fact in ledger.feed().facts] == [1, 1, 1]


def test_a_follower_is_given_what_is_there_and_what_comes(ledger: Ledger) -> None:
    first = finished(ledger).run_id
    with following(ledger, limit=4) as follower:
        follower.await_facts(9)
        second = finished(ledger).run_id
        follower.await_facts(18)
    assert tuple(follower.facts) == ledger.history(first) + ledger.history(second)
    assert follower.following.checkpoint == Checkpoint.of(follower.facts[-1])


def test_followers_do_not_disturb_each_other(ledger: Ledger) -> None:
    with ExitStack() as stack:
        followers = [stack.enter_context(following(ledger)) for _ in range(3)]
        finished(ledger)
        for follower in followers:
            follower.await_facts(9)
        last = stack.enter_context(following(ledger, followers[0].following.checkpoint))
        created(ledger)
        last.await_facts(1)
        assert positions(tuple(last.facts)) == [10]


def test_a_follower_of_another_ledger_object_is_woken_or_looks(ledger_factory: ThrowAwayLedgers) -> None:
    writer = ledger_factory()
    with following(ledger_factory()) as follower:
        for count in range(1, 4):
            created(writer)
            follower.await_facts(count)


def test_a_follower_finds_what_nobody_announced(
    ledger_factory: ThrowAwayLedgers, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ledger_factory()
    monkeypatch.setattr(writer.database.wakeups(FACTS), "announce", lambda: None)
    with following(ledger_factory(feed_poll_ms=200)) as follower:
        created(writer)
        follower.await_facts(1)


def test_closing_the_ledger_ends_its_followers(ledger: Ledger) -> None:
    created(ledger)
    with following(ledger) as follower:
        follower.await_facts(1)
        ledger.close()
        follower.end()


def test_stopping_gives_nothing_more_and_keeps_the_checkpoint(ledger: Ledger) -> None:
    finished(ledger)
    given = []
    with ledger.follow() as iterator:
        for fact in iterator:
            given.append(fact)
            if fact.position == 3:
                iterator.stop()
    assert positions(tuple(given)) == [1, 2, 3]
    assert iterator.checkpoint == Checkpoint.of(given[-1])
    assert list(iterator) == []


def test_following_starts_no_thread(ledger: Ledger) -> None:
    created(ledger)
    threads = threading.active_count()
    with ledger.follow() as iterator:
        assert next(iterator).position == 1
        assert threading.active_count() == threads


def test_health_says_how_far_a_reader_is_behind(ledger: Ledger, ledger_factory: ThrowAwayLedgers) -> None:
    empty = ledger.feed_health()
    assert (empty.position, empty.newest, empty.lag_facts, empty.lag_ms, empty.waiting) == (0, 0, 0, 0, None)
    created(ledger)
    ledger_factory.clock.advance(2_000)
    created(ledger)
    ledger_factory.clock.advance(500)
    start = ledger.feed_health()
    assert (start.position, start.newest, start.lag_facts, start.lag_ms) == (0, 2, 2, 2_500)
    middle = ledger.feed_health(ledger.feed(limit=1).checkpoint)
    assert (middle.position, middle.newest, middle.lag_facts, middle.lag_ms) == (1, 2, 1, 500)
    end = ledger.feed_health(ledger.feed().checkpoint)
    assert (end.position, end.newest, end.lag_facts, end.lag_ms) == (2, 2, 0, 0)

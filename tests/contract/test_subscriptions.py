"""Subscriptions of our recorders: in order, woken by commits, ended from any thread (R3.9)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from eventsourcing.persistence import Notification, StoredEvent
from sqlalchemy import MetaData

from followers import DEADLINE_S, eventually
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.stores.recorder import SqlApplicationRecorder, events_table, plain_shape

METADATA = MetaData()
TABLE = events_table('Some "odd" Table', METADATA)
Recorders = Callable[[], SqlApplicationRecorder]


@pytest.fixture
def recorders(database_url: str) -> Iterator[Recorders]:
    """Makes recorders on one database, each a user of its own, that look for new events once an hour."""
    databases: list[Database] = []
    made: list[SqlApplicationRecorder] = []

    def make() -> SqlApplicationRecorder:
        databases.append(open_database(database_url))
        METADATA.create_all(databases[-1].engine)
        # SQLite wakes nobody in another process, so looking is all that there is.
        poll_s = 3_600.0 if databases[-1].dialect == "postgresql" else 0.1
        made.append(SqlApplicationRecorder(databases[-1], plain_shape(TABLE, str), poll_s=poll_s))
        return made[-1]

    yield make
    for recorder in made:
        recorder.close()
    for database in databases:
        database.close()


class Subscriber(threading.Thread):
    """Iterates over a subscription in a thread of its own."""

    def __init__(self, subscription: Any) -> None:  # noqa: ANN401 - generic in the package
        super().__init__()
        self.subscription = subscription
        self.found: list[Notification] = []
        self.start()

    def run(self) -> None:
        """Iterate."""
        for notification in self.subscription:
            self.found.append(notification)

    def end(self) -> None:
        """Stop, and wait for the thread."""
        self.subscription.stop()
        self.join(DEADLINE_S)
        assert not self.is_alive()


def happened(version: int, topic: str = "t") -> StoredEvent:
    return StoredEvent("a", version, topic, b"s")


def test_events_of_another_user_come_as_they_are_committed(recorders: Recorders) -> None:
    writer = recorders()
    writer.insert_events([happened(1)])
    subscriber = Subscriber(recorders().subscribe())
    for version in (2, 3):
        writer.insert_events([happened(version)])
        eventually(lambda version=version: len(subscriber.found) == version, "the event comes")  # type: ignore[misc]
    subscriber.end()
    assert [notification.id for notification in subscriber.found] == [1, 2, 3]


def test_events_in_a_callers_transaction_come_with_its_commit(recorders: Recorders) -> None:
    writer = recorders()
    subscriber = Subscriber(recorders().subscribe())
    with writer._database.engine.begin() as connection:
        writer.insert_events([happened(1)], connection=connection)
        assert subscriber.found == []
    eventually(lambda: len(subscriber.found) == 1, "the event comes")
    subscriber.end()


def test_a_rollback_that_leaves_a_gap_stops_nobody(recorders: Recorders) -> None:
    writer = recorders()
    subscriber = Subscriber(recorders().subscribe())
    with writer._database.engine.connect() as slow:
        writer.insert_events([happened(1)], connection=slow)
        if writer._database.dialect == "postgresql":
            writer.insert_events([happened(2)])
            assert [found.id for found in writer.select_notifications(None, 10)] == []
        slow.rollback()
    if writer._database.dialect == "sqlite":
        writer.insert_events([happened(2)])
    eventually(lambda: len(subscriber.found) == 1, "the event above the gap comes")
    assert subscriber.found[0].originator_version == 2
    subscriber.end()


def test_only_chosen_topics_come_and_others_are_not_looked_at_again(recorders: Recorders) -> None:
    writer = recorders()
    subscription: Any = recorders().subscribe(gt=1, topics=["wanted"])
    subscriber = Subscriber(subscription)
    writer.insert_events([happened(1, "wanted"), happened(2, "other"), happened(3, "wanted"), happened(4, "other")])
    eventually(lambda: subscription._read_to == 4, "all are looked at")
    subscriber.end()
    assert [notification.id for notification in subscriber.found] == [3]


def test_a_subscription_that_nobody_iterates_can_be_stopped(recorders: Recorders) -> None:
    with recorders().subscribe() as subscription:
        subscription.stop()
        subscription.stop()
        with pytest.raises(StopIteration):
            next(subscription)


def test_closing_the_database_ends_its_subscriptions(recorders: Recorders) -> None:
    recorder = recorders()
    subscriber = Subscriber(recorder.subscribe())
    recorder._database.close()
    subscriber.join(DEADLINE_S)
    assert not subscriber.is_alive()


def test_a_subscription_that_reads_while_its_database_is_closed_ends(
    recorders: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = recorders()
    read_after = recorder.read_after

    def closed_before_it_reads(*asked: Any) -> object:  # noqa: ANN401 - as the recorder is asked
        recorder._database.close_for_good()
        return read_after(*asked)

    monkeypatch.setattr(recorder, "read_after", closed_before_it_reads)
    assert list(recorder.subscribe()) == []

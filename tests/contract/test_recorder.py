"""The general recorder where the package's suites do not look (R3.9, R4.5)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from uuid import UUID, uuid4

import pytest
from eventsourcing.persistence import IntegrityError, NotSupportedError, OperationalError, StoredEvent, Tracking
from sqlalchemy import MetaData

from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.opening import open_database
from runfacts.infrastructure.stores.recorder import (
    SqlAggregateRecorder,
    SqlApplicationRecorder,
    events_table,
    plain_shape,
)

METADATA = MetaData()
TABLE = events_table("things_that_happened", METADATA)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A ledger's database with a table of events of its own."""
    database = open_database(database_url)
    with database.engine.begin() as connection:
        METADATA.create_all(connection)
    yield database
    database.close()


@pytest.fixture
def recorder(database: Database) -> Iterator[SqlApplicationRecorder]:
    recorder = SqlApplicationRecorder(database, plain_shape(TABLE, str), poll_s=0.005)
    yield recorder
    recorder.close()


def event(version: int = 1, *, of: str = "a", topic: str = "t", state: bytes = b"s") -> StoredEvent:
    return StoredEvent(of, version, topic, state)


def ids(
    recorder: SqlApplicationRecorder, start: int | None = None, limit: int = 100, stop: int | None = None
) -> list[int]:
    return [notification.id for notification in recorder.select_notifications(start, limit, stop)]


def test_the_order_of_a_batch_is_the_order_of_its_positions(recorder: SqlApplicationRecorder) -> None:
    batch = [event(version, of=aggregate) for aggregate in "cab" for version in (3, 1, 2)]
    assert recorder.insert_events(batch) == list(range(1, 10))
    found = recorder.select_notifications(None, 100)
    assert [(one.originator_id, one.originator_version) for one in found] == [
        (one.originator_id, one.originator_version) for one in batch
    ]


@pytest.mark.parametrize("state", [b"", b"\x00\xff\x80", bytes(range(256)) * 4_096])
def test_a_state_is_any_bytes(recorder: SqlApplicationRecorder, state: bytes) -> None:
    recorder.insert_events([event(state=state)])
    assert recorder.select_events("a") == [event(state=state)]
    (notification,) = recorder.select_notifications(None, 1)
    assert notification.state == state


def test_ids_have_the_type_that_was_asked_for(database: Database) -> None:
    text, uuid = plain_shape(TABLE, str), plain_shape(TABLE, UUID)
    aggregate = uuid4()
    SqlAggregateRecorder(database, uuid).insert_events([StoredEvent(aggregate, 1, "t", b"")])
    assert SqlAggregateRecorder(database, uuid).select_events(aggregate)[0].originator_id == aggregate
    assert SqlAggregateRecorder(database, text).select_events(str(aggregate))[0].originator_id == str(aggregate)


def test_a_version_that_is_taken_leaves_nothing_of_the_batch(recorder: SqlApplicationRecorder) -> None:
    recorder.insert_events([event(1)])
    with pytest.raises(IntegrityError):
        recorder.insert_events([event(2), event(1), event(3)])
    assert [one.originator_version for one in recorder.select_events("a")] == [1]
    # The next batch follows the hole that PostgreSQL leaves, and nobody waits for it.
    recorder.insert_events([event(2)])
    assert len(ids(recorder)) == 2


def test_events_of_a_callers_transaction_come_and_go_with_it(
    database: Database, recorder: SqlApplicationRecorder
) -> None:
    with database.engine.connect() as connection:
        assert recorder.insert_events([event(1)], connection=connection) == [1]
        connection.rollback()
    assert recorder.select_events("a") == []
    with database.engine.begin() as connection:
        recorder.insert_events([event(1)], connection=connection)
        with pytest.raises(IntegrityError):
            recorder.insert_events([event(1)], connection=connection)
        recorder.insert_events([event(2)], connection=connection)
    assert [one.originator_version for one in recorder.select_events("a")] == [1, 2]


def test_what_cannot_be_written_with_the_events_is_refused(
    database: Database, recorder: SqlApplicationRecorder
) -> None:
    for one in (recorder, SqlAggregateRecorder(database, plain_shape(TABLE, str))):
        with pytest.raises(NotSupportedError, match="without tracking"):
            one.insert_events([event()], tracking=Tracking("upstream", 1))
    assert recorder.select_events("a") == []


def test_nothing_is_written_for_nothing(database: Database, recorder: SqlApplicationRecorder) -> None:
    assert recorder.insert_events([]) == []
    assert SqlAggregateRecorder(database, plain_shape(TABLE, str)).insert_events([]) is None
    assert recorder.max_notification_id() is None


@pytest.mark.parametrize(
    ("start", "limit", "stop", "expected"),
    [
        (None, 100, None, [1, 2, 3, 4, 5]),
        (0, 100, None, [1, 2, 3, 4, 5]),
        (-7, 100, None, [1, 2, 3, 4, 5]),
        (3, 100, None, [3, 4, 5]),
        (3, 1, None, [3]),
        (2, 100, 4, [2, 3, 4]),
        (2, 2, 4, [2, 3]),
        (None, 100, 0, []),
        (4, 100, 3, []),
        (6, 100, None, []),
        (1, 0, None, []),
        (1, -1, None, []),
        (1 << 62, 1, None, []),
    ],
)
def test_notifications_are_bounded_by_start_limit_and_stop(
    recorder: SqlApplicationRecorder, start: int | None, limit: int, stop: int | None, expected: list[int]
) -> None:
    recorder.insert_events([event(version) for version in range(1, 6)])
    assert ids(recorder, start, limit, stop) == expected


def test_topics_are_found_behind_any_number_of_others(recorder: SqlApplicationRecorder) -> None:
    recorder.insert_events(
        [event(version, topic="rare" if version == 1_203 else "often") for version in range(1, 1_205)]
    )
    assert [one.id for one in recorder.select_notifications(None, 5, topics=["rare"])] == [1_203]
    assert [one.id for one in recorder.select_notifications(None, 3, topics=["often", "rare"])] == [1, 2, 3]
    assert recorder.select_notifications(1_204, 5, topics=["rare"]) == []
    assert recorder.select_notifications(None, 5, stop=1_202, topics=["rare"]) == []


def test_a_subscription_waits_for_what_comes_and_stops_from_another_thread(recorder: SqlApplicationRecorder) -> None:
    recorder.insert_events([event(1), event(2, topic="other")])
    with recorder.subscribe(topics=["t"]) as subscription:
        assert next(subscription).id == 1
        writer = Thread(target=recorder.insert_events, args=([event(3)],))
        writer.start()
        assert next(subscription).originator_version == 3
        writer.join(30)
        stopper = Thread(target=subscription.stop)
        stopper.start()
        assert list(subscription) == []
        stopper.join(30)


def test_a_batch_that_is_not_committed_yet_is_not_given_and_not_lost(
    database: Database, recorder: SqlApplicationRecorder
) -> None:
    if database.dialect == "sqlite":
        # One writer: whoever comes second waits or is refused, and positions are committed in their order.
        with database.engine.begin() as connection:
            recorder.insert_events([event(1, of="slow")], connection=connection)
            assert ids(recorder) == []
        assert ids(recorder) == [1]
        return
    with database.engine.begin() as connection:
        recorder.insert_events([event(1, of="slow")], connection=connection)
        assert recorder.insert_events([event(1, of="fast")]) == [2]
        assert recorder.max_notification_id() == 2
        # Position 1 may still come: 2 is not given before it.
        assert ids(recorder) == []
        assert recorder.select_notifications(None, 10, topics=["t"]) == []
    assert ids(recorder) == [1, 2]


def test_many_writers_and_a_reader_that_misses_nothing(recorder: SqlApplicationRecorder) -> None:
    seen: list[int] = []

    def write(writer: int) -> None:
        for version in range(1, 31):
            recorder.insert_events([event(version, of=f"{writer}"), event(version, of=f"{writer}-too")])

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(write, writer) for writer in range(4)]
        while not all(one.done() for one in done):
            seen += ids(recorder, seen[-1] + 1 if seen else None, 50)
        for one in done:
            one.result()
    seen += ids(recorder, seen[-1] + 1 if seen else None, 1_000)
    assert seen == sorted(set(seen))
    assert len(seen) == 240


def test_a_database_that_cannot_be_used_is_named_in_the_packages_words(
    database: Database, recorder: SqlApplicationRecorder
) -> None:
    broken = SqlApplicationRecorder(database, plain_shape(events_table("not_there", MetaData()), str))
    with pytest.raises((OperationalError, database.driver_error)):
        broken.insert_events([event()])
    broken.close()
    assert recorder.select_events("a") == []

"""
A platform that lives on ``eventsourcing`` uses the ledger's database for its own events, beside our facts (R3.9, R4.5).

Its applications, snapshots, notification logs, projections and systems are the package's own; only the recorders are
ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from eventsourcing.application import AggregateNotFoundError, Application, ProcessingEvent
from eventsourcing.dispatch import singledispatchmethod
from eventsourcing.domain import Aggregate, DomainEventProtocol, event
from eventsourcing.persistence import InfrastructureFactory, InfrastructureFactoryError, IntegrityError, Tracking
from eventsourcing.projection import Projection, ProjectionRunner
from eventsourcing.system import MultiThreadedRunner, ProcessApplication, Runner, SingleThreadedRunner, System
from eventsourcing.utils import Environment
from sqlalchemy import Column, Integer, MetaData, Table, Text, func, select

from followers import eventually
from runfacts import Fact, Ledger
from runfacts.infrastructure.persistence import LedgerFactory, LedgerFacts
from runfacts.infrastructure.stores.tracking import SqlTrackingRecorder
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of
from stages import ANA, created, finished

MODULE = "runfacts.infrastructure.persistence"
COUNTS = Table("type_counts", MetaData(), Column("type", Text, primary_key=True), Column("count", Integer))


class Order(Aggregate):
    """What the platform's customers order."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.runs: list[str] = []

    @event("RunStarted")
    def run_with(self, run_id: str) -> None:
        """Say which Run makes it."""
        self.runs.append(run_id)


class Orders(Application[UUID]):
    """The platform's own application."""


class OrdersWithSnapshots(Orders):
    """The same, with snapshots."""

    snapshotting_intervals = {Order: 2}  # noqa: RUF012 - as the package has it


class Bill(Aggregate):
    """What is to be paid."""

    def __init__(self, order_id: UUID) -> None:
        self.order_id = order_id


class Bills(ProcessApplication[UUID]):
    """Writes a bill for every order."""

    @singledispatchmethod
    def policy(self, domain_event: DomainEventProtocol[UUID], processing_event: ProcessingEvent[UUID]) -> None:
        """Ignore what is no order."""

    @policy.register
    def _(self, domain_event: Order.Created, processing_event: ProcessingEvent[UUID]) -> None:
        processing_event.collect_events(Bill(domain_event.originator_id))


class Counts(SqlTrackingRecorder):
    """How many facts or events there are of each type."""

    def tables(self) -> tuple[Table, ...]:
        """See ``SqlTrackingRecorder``."""
        return (*super().tables(), COUNTS)

    def count(self, name: str, tracking: Tracking) -> None:
        """Count one more."""
        with self.tracked(tracking) as connection:
            found = connection.execute(select(COUNTS.c.count).where(COUNTS.c.type == name)).scalar()
            if found is None:
                connection.execute(COUNTS.insert().values(type=name, count=1))
            else:
                connection.execute(COUNTS.update().where(COUNTS.c.type == name).values(count=found + 1))

    def all(self) -> dict[str, int]:
        """Give the counts."""
        with self.engine.connect() as connection:
            return {row.type: row.n for row in connection.execute(select(COUNTS.c.type, COUNTS.c.count.label("n")))}


class CountingFacts(Projection[Counts]):
    """Counts the ledger's facts."""

    def process_event(self, domain_event: Any, tracking: Tracking) -> None:  # noqa: ANN401 - the package's signature
        """Count a fact."""
        assert isinstance(domain_event, Fact)
        self.view.count(domain_event.type, tracking)


class CountingOrders(Projection[Counts]):
    """Counts the platform's own events."""

    def process_event(self, domain_event: Any, tracking: Tracking) -> None:  # noqa: ANN401 - the package's signature
        """Count an event."""
        self.view.count(type(domain_event).__name__, tracking)


@pytest.fixture
def env(ledger_factory: ThrowAwayLedgers) -> dict[str, str]:
    """What names the ledger's database to the package."""
    ledger_factory()
    return {"PERSISTENCE_MODULE": MODULE, "RUNFACTS_URL": ledger_factory.url}


@pytest.fixture
def orders(env: dict[str, str]) -> Iterator[Orders]:
    """The platform's application."""
    with Orders(env) as orders:
        yield orders
    orders.close()


def test_an_application_keeps_its_aggregates_snapshots_and_log_in_the_ledgers_database(
    env: dict[str, str], ledger: Ledger
) -> None:
    before = contents_of(ledger)
    orders = OrdersWithSnapshots(env)
    order = Order("coffee")
    orders.save(order)
    order.run_with("one")
    order.run_with("two")
    orders.save(order)
    assert orders.snapshots is not None
    assert [snapshot.originator_version for snapshot in orders.snapshots.get(order.id)] == [2]
    again: Order = orders.repository.get(order.id)
    assert (again.what, again.runs) == ("coffee", ["one", "two"])
    assert [item.id for item in orders.notification_log.select(start=1, limit=10)] == [1, 2, 3]
    assert [item.id for item in orders.notification_log["1,10"].items] == [1, 2, 3]
    orders.close()
    assert contents_of(ledger) == before


def test_a_version_that_is_taken_is_a_conflict(orders: Orders) -> None:
    order = Order("coffee")
    orders.save(order)
    one: Order = orders.repository.get(order.id)
    other: Order = orders.repository.get(order.id)
    one.run_with("one")
    other.run_with("two")
    orders.save(one)
    with pytest.raises(IntegrityError):
        orders.save(other)
    assert orders.repository.get(order.id).runs == ["one"]


def test_the_platforms_events_and_our_facts_are_committed_together(orders: Orders, ledger: Ledger) -> None:
    order = Order("coffee")
    with ledger.database.engine.begin() as connection:
        run = ledger.create(actor=ANA, task="make coffee", connection=connection).run
        order.run_with(run.run_id)
        orders.save(order, connection=connection)
    assert orders.repository.get(order.id).runs == [run.run_id]
    assert ledger.run(run.run_id).version == 1


def test_the_platforms_events_and_our_facts_vanish_together(orders: Orders, ledger: Ledger) -> None:
    order = Order("coffee")
    with ledger.database.engine.connect() as connection:
        ledger.create(actor=ANA, task="make coffee", connection=connection)
        orders.save(order, connection=connection)
        connection.rollback()
    with pytest.raises(AggregateNotFoundError):
        orders.repository.get(order.id)
    assert ledger.runs().items == ()
    assert orders.recorder.max_notification_id() is None


def test_a_conflict_leaves_the_rest_of_the_callers_transaction_as_it_was(orders: Orders, ledger: Ledger) -> None:
    order = Order("coffee")
    orders.save(order)
    late: Order = orders.repository.get(order.id)
    order.run_with("first")
    orders.save(order)
    late.run_with("second")
    with ledger.database.engine.begin() as connection:
        run_id = ledger.create(actor=ANA, task="make coffee", connection=connection).run.run_id
        with pytest.raises(IntegrityError):
            orders.save(late, connection=connection)
    assert ledger.run(run_id).version == 1
    assert orders.repository.get(order.id).runs == ["first"]


def test_a_projection_of_the_platforms_events_runs(env: dict[str, str]) -> None:
    threads = threading.active_count()
    with ProjectionRunner(
        application_class=Orders, projection_class=CountingOrders, view_class=Counts, env=env
    ) as runner:
        order = Order("coffee")
        runner.app.save(order)
        order.run_with("one")
        recordings = runner.app.save(order)
        runner.wait(recordings[-1].notification.id, timeout=30)
        assert runner.view.all() == {"Created": 1, "RunStarted": 1}
    runner.view.close()
    assert threading.active_count() == threads


def test_a_projection_of_our_facts_runs_and_goes_on_where_it_stopped(env: dict[str, str], ledger: Ledger) -> None:
    finished(ledger)

    def run(meanwhile: Callable[[], object], total: int) -> dict[str, int]:
        with ProjectionRunner(
            application_class=LedgerFacts, projection_class=CountingFacts, view_class=Counts, env=env
        ) as runner:
            meanwhile()
            runner.wait(runner.app.recorder.max_notification_id(), timeout=30)
            counts = runner.view.all()
        runner.view.close()
        assert sum(counts.values()) == total
        return counts

    assert run(lambda: finished(ledger), 18)["run.created"] == 2
    created(ledger)
    assert run(lambda: created(ledger), 20)["run.created"] == 4


def test_a_projection_can_choose_types_and_does_not_read_the_others_again(env: dict[str, str], ledger: Ledger) -> None:
    class CountingEnds(CountingFacts):
        topics = ("run.succeeded",)

    with ProjectionRunner(
        application_class=LedgerFacts, projection_class=CountingEnds, view_class=Counts, env=env
    ) as runner:
        finished(ledger)
        created(ledger)
        eventually(lambda: runner.view.all() == {"run.succeeded": 1}, "the chosen fact is counted")
        subscription: Any = runner._subscription.subscription
        eventually(lambda: subscription._read_to == 10, "the others are passed over")
    runner.view.close()


def test_an_event_that_is_processed_twice_changes_a_view_once(env: dict[str, str]) -> None:
    factory = LedgerFactory(Environment("orders", env))
    view = factory.tracking_recorder(Counts)
    view.count("a", Tracking("upstream", 1))
    with pytest.raises(IntegrityError):
        view.count("a", Tracking("upstream", 1))
    assert view.all() == {"a": 1}
    view.count("a", Tracking("upstream", 2))
    assert view.all() == {"a": 2}
    assert view.max_tracking_id("upstream") == 2
    factory.close()


def test_a_view_can_have_the_ledger_record_what_follows_in_the_same_transaction(
    env: dict[str, str], ledger: Ledger
) -> None:
    factory = LedgerFactory(Environment("orders", env))
    view = factory.tracking_recorder(Counts)
    with view.tracked(Tracking("upstream", 1)) as connection:
        ledger.create(actor=ANA, task="follow up", connection=connection)
    with pytest.raises(IntegrityError), view.tracked(Tracking("upstream", 1)) as connection:
        ledger.create(actor=ANA, task="follow up", connection=connection)
    assert len(ledger.runs().items) == 1
    with ledger.database.engine.connect() as connection:
        with view.tracked(Tracking("upstream", 2), connection) as same:
            assert same is connection
        connection.rollback()
    assert view.max_tracking_id("upstream") == 1
    factory.close()


@pytest.mark.parametrize("kind", [SingleThreadedRunner, MultiThreadedRunner])
def test_a_system_of_applications_runs(env: dict[str, str], kind: type[Runner[UUID]]) -> None:
    with kind(System(pipes=[[Orders, Bills]]), env) as runner:
        for what in ("coffee", "tea"):
            runner.get(Orders).save(Order(what))
        bills = runner.get(Bills)
        eventually(lambda: bills.recorder.max_tracking_id("Orders") == 2, "both orders are processed")
        topics = [item.topic for item in bills.notification_log.select(start=1, limit=10)]
    assert [topic.rpartition(":")[2] for topic in topics] == ["Bill.Created", "Bill.Created"]


def test_an_open_ledgers_connections_can_be_shared(ledger: Ledger) -> None:
    class Shared(Orders):
        def construct_factory(self, env: Environment) -> InfrastructureFactory[Any]:
            return LedgerFactory(env, ledger.database)

    shared = Shared({})
    order = Order("coffee")
    shared.save(order)
    assert shared.repository.get(order.id).what == "coffee"
    shared.close()
    created(ledger)
    with ledger.database.engine.connect() as connection:
        table = Table("shared_events", MetaData(), autoload_with=connection)
        assert connection.execute(select(func.count()).select_from(table)).scalar() == 1


@pytest.mark.parametrize(
    ("name", "given", "word"),
    [
        ("orders", {"RUNFACTS_URL": ""}, "ORDERS_RUNFACTS_URL"),
        ("orders", {"ORIGINATOR_ID_TYPE": "number"}, "neither uuid nor text"),
        ("drop table runs", {}, "cannot be the name of a table"),
        ("x" * 50, {}, "cannot be the name of a table"),
    ],
)
def test_what_cannot_be_used_is_refused(env: dict[str, str], name: str, given: dict[str, str], word: str) -> None:
    def use() -> None:
        factory = LedgerFactory(Environment(name, {**env, **given}))
        try:
            factory.application_recorder()
        finally:
            factory.close()

    with pytest.raises(InfrastructureFactoryError, match=word):
        use()


def test_facts_are_only_in_a_ledger() -> None:
    with pytest.raises(InfrastructureFactoryError, match="facts are in a ledger"):
        LedgerFacts({"PERSISTENCE_MODULE": "eventsourcing.popo"})

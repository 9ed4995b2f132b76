"""Our facts, read with the tools of the ``eventsourcing`` package (R3.1, R3.7, R3.9)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from eventsourcing.application import AggregateNotFoundError, LocalNotificationLog, Repository
from eventsourcing.persistence import EventStore, MapperDeserialisationError, NotSupportedError, StoredEvent

from runfacts import Ledger, Outcome
from runfacts.domain.attempt import Attempt
from runfacts.domain.canonical import GENESIS
from runfacts.domain.facts import Fact
from runfacts.domain.run import Run
from runfacts.infrastructure.stores.fact_recorder import FactMapper, FactRecorder
from stages import ANA, created, finished, running
from tampering import insert_copy, owner_of

MAPPER = FactMapper()


@pytest.fixture
def recorder(ledger: Ledger) -> Iterator[FactRecorder]:
    recorder = FactRecorder(ledger.database, poll_s=0.005)
    yield recorder
    recorder.close()


def test_the_packages_repository_rebuilds_runs_and_attempts(ledger: Ledger, recorder: FactRecorder) -> None:
    claim = finished(ledger, Outcome.failed(exit_code=7, error_code="E7"))
    aggregates: Repository[str] = Repository(EventStore(MAPPER, recorder))
    run: Run = aggregates.get(claim.run_id)
    assert (run.id, run.status, run.task, run.version) == (claim.run_id, "failed", "report", 5)
    attempt: Attempt = aggregates.get(claim.attempt_id)
    assert (attempt.id, attempt.run_id, attempt.status) == (claim.attempt_id, claim.run_id, "failed")
    assert (attempt.exit_code, attempt.error_code, attempt.version) == (7, "E7", 4)


def test_an_aggregate_is_rebuilt_as_it_was_at_a_version(ledger: Ledger, recorder: FactRecorder) -> None:
    claim = finished(ledger)
    aggregates: Repository[str] = Repository(EventStore(MAPPER, recorder))
    statuses = []
    for version in range(1, 6):
        run: Run = aggregates.get(claim.run_id, version=version)
        statuses.append(run.status.value)
    assert statuses == ["created", "queued", "dispatching", "running", "succeeded"]
    with pytest.raises(AggregateNotFoundError):
        aggregates.get("01890000-0000-7000-8000-00000000000f")


def test_events_are_the_facts_of_one_aggregate(ledger: Ledger, recorder: FactRecorder) -> None:
    claim = finished(ledger)
    store: EventStore[str] = EventStore(MAPPER, recorder)
    facts = ledger.history(claim.run_id)
    # Without the position: a stored event has none.
    wanted = [replace(fact, position=None) for fact in facts if fact.aggregate_id == claim.attempt_id]
    assert list(store.get(claim.attempt_id)) == wanted
    assert list(store.get(claim.attempt_id, gt=1, lte=3)) == wanted[1:3]
    assert list(store.get(claim.attempt_id, desc=True, limit=2)) == wanted[:1:-1]


def test_notifications_are_all_facts_in_order_and_whole(ledger: Ledger, recorder: FactRecorder) -> None:
    one, other = finished(ledger), running(ledger)
    notifications = recorder.select_notifications(None, 100)
    facts = [MAPPER.to_domain_event(notification) for notification in notifications]
    assert [fact.position for fact in facts] == list(range(1, 17))
    for run_id in (one.run_id, other.run_id):
        assert tuple(fact for fact in facts if fact.run_id == run_id) == ledger.history(run_id)
    assert recorder.max_notification_id() == 16


def test_whoever_has_only_notifications_can_check_the_chain(ledger: Ledger, recorder: FactRecorder) -> None:
    finished(ledger)
    previous = GENESIS
    for notification in recorder.select_notifications(None, 100):
        fact = MAPPER.to_domain_event(notification)
        assert fact.computed_hash(previous) == fact.hash
        previous = fact.hash


def test_notifications_are_filtered_by_type(ledger: Ledger, recorder: FactRecorder) -> None:
    claim = finished(ledger)
    found = recorder.select_notifications(None, 10, topics=["run.created", "attempt.succeeded"])
    assert [(one.topic, one.originator_id) for one in found] == [
        ("run.created", claim.run_id),
        ("attempt.succeeded", claim.attempt_id),
    ]


def test_the_packages_notification_log_reads_sections(ledger: Ledger, recorder: FactRecorder) -> None:
    finished(ledger)
    log = LocalNotificationLog(recorder, section_size=5)
    first = log["1,5"]
    assert (first.id, first.next_id, len(first.items)) == ("1,5", "6,10", 5)
    assert [item.id for item in log["6,10"].items] == [6, 7, 8, 9]


def test_a_subscription_gives_facts_as_they_are_recorded(ledger: Ledger, recorder: FactRecorder) -> None:
    run_id = created(ledger)
    with recorder.subscribe(gt=0) as subscription:
        assert next(subscription).topic == "run.created"
        ledger.queue(run_id, actor=ANA)
        assert next(subscription).topic == "run.queued"


def test_facts_are_written_by_the_ledgers_commands_alone(ledger: Ledger, recorder: FactRecorder) -> None:
    run_id = created(ledger)
    store: EventStore[str] = EventStore(MAPPER, recorder)
    (fact,) = ledger.history(run_id)
    with pytest.raises(NotSupportedError, match="by the commands of the ledger"):
        store.put([replace(fact, aggregate_version=2, sequence=2)])
    assert store.put([]) == []
    assert len(ledger.history(run_id)) == 1


def test_a_fact_goes_there_and_back(ledger: Ledger) -> None:
    for fact in ledger.history(finished(ledger).run_id):
        stored = MAPPER.to_stored_event(fact)
        assert (stored.originator_id, stored.originator_version) == (fact.aggregate_id, fact.aggregate_version)
        assert stored.topic == fact.type
        assert MAPPER.to_domain_event(stored) == replace(fact, position=None)
    with pytest.raises(TypeError):
        MAPPER.to_stored_event(object())  # type: ignore[arg-type]  # that is what is refused


@pytest.mark.parametrize("name", ["run.paused", "this:x", "os:system"])
def test_an_unknown_type_is_kept_and_never_imported(
    ledger: Ledger, recorder: FactRecorder, database_url: str, name: str
) -> None:
    run_id = created(ledger)
    with owner_of(database_url) as owner:
        insert_copy(
            owner, "facts", {"run_id": run_id, "sequence": 1}, {"sequence": 2, "aggregate_version": 2, "type": name}
        )
    fact = MAPPER.to_domain_event(recorder.select_notifications(2, 1)[0])
    assert (fact.type, fact.known) == (name, False)
    aggregates: Repository[str] = Repository(EventStore(MAPPER, recorder))
    run: Run = aggregates.get(run_id)
    assert (run.version, run.status) == (2, "created")


def changed(fact: Fact, **fields: object) -> StoredEvent:
    """A stored event whose state says something else in some fields; None takes one away."""
    stored = MAPPER.to_stored_event(fact)
    state = {name: value for name, value in (json.loads(stored.state) | fields).items() if value is not None}
    return replace(stored, state=json.dumps(state).encode())


def test_a_state_that_is_no_fact_is_refused(ledger: Ledger) -> None:
    (fact,) = ledger.history(created(ledger))
    stored = MAPPER.to_stored_event(fact)
    assert MAPPER.to_domain_event(changed(fact)) == replace(fact, position=None)
    wrong = [
        *(replace(stored, state=state) for state in (b"", b"{", b"[]", b"7", b"null", b"\xff", b"{}")),
        *(changed(fact, **{name: None}) for name in ("run_id", "sequence", "hash", "payload", "actor_type")),
        changed(fact, more=1),
        changed(fact, sequence="1"),
        changed(fact, sequence=True),
        changed(fact, payload={}),
        # What is around the state must be what it says.
        replace(stored, topic="run.queued"),
        replace(stored, originator_version=2),
        replace(stored, originator_id="01890000-0000-7000-8000-00000000000f"),
    ]
    for event in wrong:
        with pytest.raises(MapperDeserialisationError, match="holds no fact"):
            MAPPER.to_domain_event(event)

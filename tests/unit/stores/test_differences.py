"""What is wrong with a ledger whose hashes are right: somebody who can write wrote nonsense (R2, R3, R14.2)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest

from histories import ANA, BY_ANA, BY_ATTEMPT_STATUS, BY_RUN_STATUS, FIRST, NOW_MS, RUN, SECOND, created
from runfacts.domain import facts as domain_facts
from runfacts.domain.canonical import GENESIS
from runfacts.domain.facts import Fact, decode_payload
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.lifecycle import AttemptStatus, RunStatus
from runfacts.domain.payloads import (
    FACT_TYPES,
    AttemptClaimed,
    AttemptFailed,
    AttemptRunning,
    AttemptStarting,
    RunDispatching,
    RunFailed,
    RunPayload,
    RunQueued,
    RunRunning,
    RunSucceeded,
)
from runfacts.infrastructure.stores.differences import ledger_differences


def ledger(*drafts: Draft) -> list[Fact]:
    """Facts with positions, whatever they say."""
    history = History(RUN, "shop")
    return [replace(fact, position=10 + at) for at, fact in enumerate(history.record(drafts, BY_ANA))]


def rehashed(facts: list[Fact], at: int, **changes: Any) -> list[Fact]:  # noqa: ANN401 - any field
    """The same facts with one of them changed, and every hash from there on made to fit."""
    found = [replace(fact, **changes) if index == at else fact for index, fact in enumerate(facts)]
    if "payload_text" in changes:
        fact = found[at]
        found[at] = replace(fact, payload=decode_payload(fact.type, fact.schema_version, fact.payload_text))
    previous = GENESIS
    for index, fact in enumerate(found):
        found[index] = replace(fact, hash=fact.computed_hash(previous))
        previous = found[index].hash
    return found


def named(facts: list[Fact]) -> list[tuple[str, str, int | None]]:
    return [(item.kind, item.field, item.sequence) for item in ledger_differences(RUN, facts)]


@pytest.mark.parametrize("status", list(RunStatus))
def test_what_the_rules_allow_is_clean(status: RunStatus) -> None:
    assert named(ledger(*BY_RUN_STATUS[status])) == []


@pytest.mark.parametrize(
    ("drafts", "sequence"),
    [
        ((Draft(RunQueued()),), 1),
        ((created(), Draft(RunDispatching(number=1))), 2),
        ((created(), Draft(RunQueued()), Draft(RunQueued())), 3),
        ((created(), Draft(RunRunning())), 2),
        ((*BY_RUN_STATUS[RunStatus.SUCCEEDED], Draft(RunFailed())), 10),
        ((*BY_ATTEMPT_STATUS[AttemptStatus.CLAIMED], Draft(AttemptRunning(), FIRST)), 5),
        ((*BY_ATTEMPT_STATUS[AttemptStatus.FAILED], Draft(AttemptFailed(), FIRST)), 10),
        ((created(), Draft(AttemptStarting(), FIRST)), 2),
        ((created(), created()), 2),
    ],
)
def test_a_transition_that_no_table_has_is_named(drafts: tuple[Draft, ...], sequence: int) -> None:
    assert named(ledger(*drafts)) == [("transition", "type", sequence)]


def test_a_transition_says_from_where_to_where() -> None:
    (wrong,) = ledger_differences(RUN, ledger(created(), Draft(RunSucceeded())))
    assert (wrong.recorded, wrong.recomputed) == ("created to succeeded", "a transition of the table")


def test_after_a_wrong_transition_it_goes_on_from_there() -> None:
    assert named(ledger(created(), Draft(RunRunning()), Draft(RunSucceeded()))) == [("transition", "type", 2)]


def test_a_second_active_attempt_is_named() -> None:
    second = Draft(AttemptClaimed(number=2, executor_type="local"), SECOND)
    assert named(ledger(*BY_ATTEMPT_STATUS[AttemptStatus.CLAIMED], second)) == [("attempt", "type", 5)]
    again = (*BY_RUN_STATUS[RunStatus.RETRY_WAIT], Draft(RunQueued()), Draft(RunDispatching(number=2), SECOND), second)
    assert named(ledger(*again)) == []


def test_attempts_that_are_not_numbered_one_two_three_are_named() -> None:
    third = Draft(AttemptClaimed(number=3, executor_type="local"), SECOND)
    again = (*BY_RUN_STATUS[RunStatus.RETRY_WAIT], Draft(RunQueued()), Draft(RunDispatching(number=2), SECOND), third)
    assert named(ledger(*again)) == [("attempt", "number", 12)]


@pytest.mark.parametrize(
    ("at", "changes", "wrong"),
    [
        (2, {"project": "other"}, [("project", "project", 3)]),
        (2, {"recorded_at_ms": NOW_MS - 1}, [("time", "recorded_at_ms", 3)]),
        (2, {"position": 11}, [("position", "position", 3)]),
        (2, {"position": 7}, [("position", "position", 3)]),
        (2, {"position": None}, [("position", "position", 3)]),
        (2, {"aggregate_version": 9}, [("version", "aggregate_version", 3), ("version", "aggregate_version", 7)]),
        (3, {"attempt_id": SECOND}, [("aggregate", "attempt_id", 4)]),
        (3, {"attempt_id": None}, [("aggregate", "attempt_id", 4)]),
    ],
)
def test_an_envelope_that_does_not_fit_is_named(
    at: int, changes: dict[str, object], wrong: list[tuple[str, str, int]]
) -> None:
    assert named(rehashed(ledger(*BY_RUN_STATUS[RunStatus.RUNNING]), at, **changes)) == wrong


def test_a_fact_in_the_stream_of_the_wrong_aggregate_is_named() -> None:
    moved = rehashed(ledger(*BY_RUN_STATUS[RunStatus.QUEUED]), 1, aggregate_id=FIRST, attempt_id=FIRST)
    assert ("aggregate", "aggregate_id", 2) in named(moved)


def test_a_dedupe_key_that_is_there_twice_is_named() -> None:
    one, two = replace(created(), dedupe_key="k"), Draft(RunQueued(), dedupe_key="k")
    assert named(ledger(one, two)) == [("dedupe", "dedupe_key", 2)]


@pytest.mark.parametrize(
    "text",
    [
        '{"number": 1}',
        '{"number":1}\n',
        '{"number":1,"number":1}',
        '{"number":1,"more":1}',
        '{"number":2e0}',
        "[1]",
        "",
    ],
)
def test_a_payload_that_is_not_what_we_would_write_is_named(text: str) -> None:
    wrong = named(rehashed(ledger(*BY_RUN_STATUS[RunStatus.DISPATCHING]), 2, payload_text=text))
    assert ("payload", "payload", 3) in wrong
    assert {sequence for _, _, sequence in wrong} == {3}


def test_a_null_where_a_field_should_be_left_out_is_named() -> None:
    running = ledger(*BY_RUN_STATUS[RunStatus.RUNNING])
    assert named(rehashed(running, 4, payload_text='{"deadline_at_ms":null}')) == [("payload", "payload", 5)]


def test_an_unknown_type_is_no_difference_and_leaves_open_what_it_did() -> None:
    facts = ledger(created(), Draft(RunDispatching(number=1)))
    assert named(facts) == [("transition", "type", 2)]
    first, queued, dispatching = ledger(created(), Draft(RunQueued()), Draft(RunDispatching(number=1)))
    stranger = replace(queued, type="run.lined_up", payload=decode_payload("run.lined_up", 1, "{}"))
    assert named(rehashed([first, stranger, dispatching], 1, payload_text="{}")) == []


def test_an_unknown_payload_must_be_canonical_all_the_same() -> None:
    first, second = ledger(created(), Draft(RunQueued()))
    stranger = replace(second, type="run.paused")
    assert named(rehashed([first, stranger], 1, payload_text='{"b":1, "a":2}')) == [("payload", "payload", 2)]
    assert named(rehashed([first, stranger], 1, payload_text='{"a":2,"b":1}')) == []


class Tea(RunPayload):
    """A type of the tests alone, in its second version."""

    TYPE: ClassVar[str] = "run.tea"
    VERSION: ClassVar[int] = 2

    cups: int
    with_milk: bool = False


@pytest.mark.parametrize(("version", "text"), [(1, '{"mugs":2}'), (2, '{"cups":2}')])
def test_a_fact_is_clean_as_an_earlier_release_wrote_it(
    monkeypatch: pytest.MonkeyPatch, version: int, text: str
) -> None:
    # The first version, and the second one as it was before it had the field with a default.
    monkeypatch.setitem(FACT_TYPES, Tea.TYPE, Tea)
    monkeypatch.setitem(domain_facts.UPCASTERS, (Tea.TYPE, 1), lambda raw: {"cups": raw["mugs"]})
    first, second = ledger(created(), Draft(RunQueued()))
    facts = rehashed([first, replace(second, type=Tea.TYPE, schema_version=version)], 1, payload_text=text)
    assert facts[1].payload == Tea(cups=2)
    assert named(facts) == []


def test_a_missing_fact_is_named_once_and_the_chain_goes_on_behind_it() -> None:
    facts = ledger(*BY_RUN_STATUS[RunStatus.FAILED])
    wrong = named([*facts[:4], *facts[5:7], replace(facts[7], causation_id="x"), facts[8]])
    assert ("sequence", "sequence", 5) in wrong
    assert [item for item in wrong if item[0] == "hash"] == [("hash", "hash", 8)]


def test_a_fact_that_is_there_twice_is_named() -> None:
    first, second = ledger(created(), Draft(RunQueued()))
    assert ("sequence", "sequence", 3) in named([first, second, second])


def test_a_changed_content_is_named_where_it_is_and_a_changed_hash_too() -> None:
    facts = ledger(*BY_RUN_STATUS[RunStatus.FAILED])
    for at in range(len(facts)):
        content = [replace(fact, causation_id="x") if index == at else fact for index, fact in enumerate(facts)]
        assert named(content) == [("hash", "hash", at + 1)]
        hashed = [replace(fact, hash="0" * 64) if index == at else fact for index, fact in enumerate(facts)]
        assert named(hashed) == [("hash", "hash", at + 1)]


def test_a_hash_made_to_fit_its_changed_fact_breaks_the_chain_behind_it() -> None:
    facts = ledger(*BY_RUN_STATUS[RunStatus.FAILED])
    forged = replace(facts[3], causation_id="x")
    forged = replace(forged, hash=forged.computed_hash(facts[2].hash))
    assert named([*facts[:3], forged, *facts[4:]]) == [("hash", "hash", 5)]


def test_what_is_shown_can_be_printed_whatever_was_found() -> None:
    (fact,) = ledger(created())
    found = list(ledger_differences(RUN, [replace(fact, project="a\udcffb", payload_text='{"\udcff":1 }')]))
    assert [item.kind for item in found] == ["hash", "payload"]
    assert found[1].recorded == '{"\\udcff":1 }'
    for item in found:
        f"{item}".encode()


def test_time_may_stand_still() -> None:
    history = History(RUN, "shop")
    recorded = [*history.record([created()], RecordedBy(ANA, NOW_MS)), *history.record([Draft(RunQueued())], BY_ANA)]
    assert named([replace(fact, position=at) for at, fact in enumerate(recorded, start=1)]) == []

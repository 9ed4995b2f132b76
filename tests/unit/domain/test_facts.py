"""Facts as they are read: known, of a later release, of an earlier one, or tampered with (R3.6, R3.7)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar

import pytest
from eventsourcing.domain import CanMutateProtocol, DomainEventProtocol

from histories import FIRST, NOW_MS, RUN, created, facts_of
from runfacts.domain import facts
from runfacts.domain.attempt import Attempt
from runfacts.domain.errors import InvalidValue
from runfacts.domain.facts import (
    MALFORMED,
    UNKNOWN_TYPE,
    UNKNOWN_VERSION,
    UnknownPayload,
    decode_payload,
    encode_payload,
)
from runfacts.domain.history import Draft
from runfacts.domain.payloads import FACT_TYPES, AttemptClaimed, Payload, RunDispatching, RunPayload, RunQueued
from runfacts.domain.run import Run


class CoffeeBrewed(RunPayload):
    """A type of the tests alone, in its third version."""

    TYPE: ClassVar[str] = "run.coffee_brewed"
    VERSION: ClassVar[int] = 3

    cups: int
    beans: str


@pytest.fixture
def coffee(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that has the type, and upcasters from its first two versions."""

    def first_to_second(raw: dict[str, object]) -> dict[str, object]:
        return {"cups": raw["mugs"]}

    def second_to_third(raw: dict[str, object]) -> dict[str, object]:
        return raw | {"beans": "arabica"}

    monkeypatch.setitem(FACT_TYPES, CoffeeBrewed.TYPE, CoffeeBrewed)
    monkeypatch.setitem(facts.UPCASTERS, (CoffeeBrewed.TYPE, 1), first_to_second)
    monkeypatch.setitem(facts.UPCASTERS, (CoffeeBrewed.TYPE, 2), second_to_third)


@pytest.mark.usefixtures("coffee")
@pytest.mark.parametrize(
    ("version", "text"), [(1, '{"mugs":2}'), (2, '{"cups":2}'), (3, '{"beans":"arabica","cups":2}')]
)
def test_a_payload_of_an_earlier_version_reads_as_todays(version: int, text: str) -> None:
    assert decode_payload("run.coffee_brewed", version, text) == CoffeeBrewed(cups=2, beans="arabica")


@pytest.mark.usefixtures("coffee")
def test_a_payload_of_a_later_version_is_kept_as_it_is_stored() -> None:
    assert unknown("run.coffee_brewed", 4, '{"litres":1}').reason == UNKNOWN_VERSION


@pytest.mark.usefixtures("coffee")
@pytest.mark.parametrize("version", [0, -1, -(1 << 62), 1 << 62])
def test_a_version_that_no_release_had_is_unknown(version: int) -> None:
    assert unknown("run.coffee_brewed", version, "{}").reason == UNKNOWN_VERSION


@pytest.mark.usefixtures("coffee")
def test_a_version_without_a_way_to_todays_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(facts.UPCASTERS, ("run.coffee_brewed", 2))
    assert unknown("run.coffee_brewed", 1, '{"mugs":2}').reason == UNKNOWN_VERSION


@pytest.mark.usefixtures("coffee")
@pytest.mark.parametrize("text", ["", "{", "[]", "7", "null", '{"cups":2}', '{"mugs":"two"}', "[" * 16_000, "\udcff"])
def test_an_earlier_payload_that_was_tampered_with_is_malformed(text: str) -> None:
    assert unknown("run.coffee_brewed", 1, text).reason == MALFORMED


def unknown(type_name: str, version: int, text: str) -> UnknownPayload:
    """The payload, seen to be kept as it is stored."""
    payload = decode_payload(type_name, version, text)
    assert isinstance(payload, UnknownPayload)
    assert (payload.stored_type, payload.stored_version, payload.text) == (type_name, version, text)
    return payload


@pytest.mark.parametrize("name", ["run.coffee_brewed", "", "this:x", "os:system", "Run.queued", "run.queued "])
def test_an_unknown_type_is_kept_and_never_imported(name: str) -> None:
    assert unknown(name, 1, '{"x":1}').reason == UNKNOWN_TYPE


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.queued", '{"more":1}'),
        ("run.queued", ""),
        ("run.queued", "[]"),
        ("run.queued", "{}{}"),
        ("run.queued", "\udcff"),
        ("run.queued", "[" * 16_000),
        ("run.dispatching", '{"number":0}'),
        ("run.dispatching", '{"number":"1"}'),
        ("run.dispatching", '{"number":1.0}'),
        ("run.dispatching", '{"number":true}'),
        ("run.dispatching", "{}"),
        ("run.lost", '{"evidence":"hearsay"}'),
        ("run.created", '{"task":"t","policy":{"max_attempts":17}}'),
        ("run.created", '{"task":"t","policy":{"retry_on_lost":true}}'),
        ("run.created", '{"task":"t","policy":{"more":1}}'),
        ("run.waiting_approval", '{"reason":"' + "x" * 257 + '"}'),
    ],
)
def test_a_payload_that_does_not_fit_its_model_is_malformed(name: str, text: str) -> None:
    assert unknown(name, 1, text).reason == MALFORMED


class Enormous(RunPayload):
    """A payload of the tests alone, with no bound of its own."""

    TYPE: ClassVar[str] = "run.enormous"

    text: str


@pytest.mark.parametrize("character", ["x", "é", "\U0001f600"])
def test_a_payload_of_16384_bytes_is_taken_and_one_byte_more_is_refused(character: str) -> None:
    frame = len('{"text":""}')
    size = len(character.encode())
    filled = character * ((16_384 - frame) // size)
    rest = "x" * (16_384 - frame - len(filled.encode()))
    assert len(encode_payload(Enormous(text=filled + rest)).encode()) == 16_384
    with pytest.raises(InvalidValue, match=r"payload of run\.enormous is longer than 16384 bytes"):
        encode_payload(Enormous(text=filled + rest + "x"))


def test_a_fact_has_the_protocol_of_domain_events() -> None:
    run_fact, _, _, attempt_fact = facts_of(
        created(),
        Draft(RunQueued()),
        Draft(RunDispatching(number=1), FIRST),
        Draft(AttemptClaimed(number=1, executor_type="local"), FIRST),
    )
    assert isinstance(run_fact, DomainEventProtocol)
    assert isinstance(run_fact, CanMutateProtocol)
    assert (run_fact.originator_id, run_fact.originator_version, run_fact.of_attempt) == (RUN, 1, False)
    assert (attempt_fact.originator_id, attempt_fact.originator_version, attempt_fact.of_attempt) == (FIRST, 1, True)
    assert attempt_fact.sequence == 4
    assert isinstance(run_fact.mutate(None), Run)
    assert isinstance(attempt_fact.mutate(None), Attempt)


def test_mutate_goes_on_with_the_aggregate_that_is_given() -> None:
    first, second = facts_of(created(), Draft(RunQueued()))
    run: Run | None = first.mutate(None)
    assert run is not None
    assert second.mutate(run) is run
    assert (run.version, run.status) == (2, "queued")


@pytest.mark.parametrize(
    ("at_ms", "moment"),
    [
        (NOW_MS, datetime(1970, 1, 1, 0, 16, 40, tzinfo=UTC)),
        (1_767_225_600_123, datetime(2026, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)),
        (1 << 62, datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)),
        (-(1 << 62), datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_fact_knows_its_moment_whatever_was_stored(at_ms: int, moment: datetime) -> None:
    (fact,) = facts_of(created())
    assert replace(fact, recorded_at_ms=at_ms).timestamp == moment


def test_what_is_known_says_so() -> None:
    (fact,) = facts_of(created())
    assert fact.known
    stored: Payload = decode_payload("run.coffee_brewed", 1, "{}")
    assert not replace(fact, payload=stored).known

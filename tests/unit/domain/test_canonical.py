"""Canonical bytes, and the hash that chains a Run's facts (R3.1)."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histories import ANA, FIRST, NOW_MS, RUN, created, facts_of
from runfacts.domain.actors import Actor
from runfacts.domain.canonical import GENESIS, canonical_json, chained_hash
from runfacts.domain.facts import Fact, envelope
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.payloads import AttemptClaimed, RunDispatching, RunQueued, RunWaitingApproval


def test_keys_are_sorted_by_code_point_without_white_space() -> None:
    assert canonical_json({"b": 1, "a": [1, {"z": "x", "Y": True}], "é": "ü", "Z": ""}) == (
        '{"Z":"","a":[1,{"Y":true,"z":"x"}],"b":1,"é":"ü"}'
    )


def test_absent_fields_are_left_out_at_every_depth() -> None:
    assert canonical_json({"a": None, "b": {"c": None, "d": [None]}}) == '{"b":{"d":[null]}}'


@pytest.mark.parametrize("value", [1.0, float("nan"), b"x", {1}, object()])
def test_what_has_no_single_form_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="canonical JSON has no place for"):
        canonical_json({"a": value})
    with pytest.raises(TypeError):
        canonical_json({"a": [{"b": value}]})


def test_characters_are_written_as_themselves_but_for_those_that_json_escapes() -> None:
    assert canonical_json({"a": '"\\\n\x00\u2028😀'}) == '{"a":"\\"\\\\\\n\\u0000\u2028😀"}'


def test_the_first_facts_hash_written_out_by_hand() -> None:
    (fact,) = facts_of(created())
    assert fact.payload_text == (
        '{"execution_owner":"runtime","policy":{"backoff_max_ms":60000,"backoff_ms":1000,"max_attempts":1,'
        '"retry_on_failure":false,"retry_on_lost":false,"safety":"unknown"},"task":"build"}'
    )
    canonical = (
        '{"actor_id":"ana","actor_type":"user",'
        '"aggregate_id":"01890000-0000-7000-8000-000000000001","aggregate_version":1,'
        f'"payload":{fact.payload_text},'
        '"project":"shop","recorded_at_ms":1000000,"run_id":"01890000-0000-7000-8000-000000000001",'
        '"schema_version":1,"sequence":1,"type":"run.created"}'
    )
    assert fact.hash == sha256(("0" * 64 + canonical).encode()).hexdigest()


def test_a_later_facts_hash_with_every_field_written_out_by_hand() -> None:
    history = History(RUN, "s'höp\"")
    history.record([created(), Draft(RunQueued())], RecordedBy(Actor.scheduler(), 5))
    before = history.head_hash
    _, claimed = history.record(
        [
            Draft(RunDispatching(number=1), FIRST),
            Draft(AttemptClaimed(number=1, executor_type="local"), FIRST, dedupe_key="key"),
        ],
        RecordedBy(ANA, NOW_MS, "correlation", "causation"),
    )
    dispatching = (
        '{"actor_id":"ana","actor_type":"user","aggregate_id":"01890000-0000-7000-8000-000000000001",'
        '"aggregate_version":3,"attempt_id":"01890000-0000-7000-8000-00000000000a","causation_id":"causation",'
        '"correlation_id":"correlation","payload":{"number":1},"project":"s\'höp\\"","recorded_at_ms":1000000,'
        '"run_id":"01890000-0000-7000-8000-000000000001","schema_version":1,"sequence":3,"type":"run.dispatching"}'
    )
    canonical = (
        '{"actor_id":"ana","actor_type":"user","aggregate_id":"01890000-0000-7000-8000-00000000000a",'
        '"aggregate_version":1,"attempt_id":"01890000-0000-7000-8000-00000000000a","causation_id":"causation",'
        '"correlation_id":"correlation","dedupe_key":"key",'
        '"payload":{"executor_type":"local","gated":false,"number":1},"project":"s\'höp\\"",'
        '"recorded_at_ms":1000000,"run_id":"01890000-0000-7000-8000-000000000001","schema_version":1,"sequence":4,'
        '"type":"attempt.claimed"}'
    )
    between = sha256((before + dispatching).encode()).hexdigest()
    assert claimed.hash == sha256((between + canonical).encode()).hexdigest()


CHANGES: dict[str, Any] = {
    "run_id": RUN[:-1] + "9",
    "sequence": 9,
    "type": "run.queuee",
    "schema_version": 2,
    "project": "shoq",
    "attempt_id": FIRST,
    "actor": Actor.user("anb"),
    "dedupe_key": "k",
    "correlation_id": "k",
    "causation_id": "k",
    "recorded_at_ms": NOW_MS + 1,
    "payload_text": '{"reason":"y"}',
    "aggregate_id": FIRST,
    "aggregate_version": 9,
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_the_hash_covers_every_field(name: str) -> None:
    _, fact = facts_of(created(), Draft(RunWaitingApproval(reason="x")))
    assert fact.computed_hash(GENESIS) != replace(fact, **{name: CHANGES[name]}).computed_hash(GENESIS)


def test_the_hash_covers_the_actors_kind_and_its_absence() -> None:
    (fact,) = facts_of(created())
    hashes = {
        replace(fact, actor=actor).computed_hash(GENESIS)
        for actor in (Actor.user("ana"), Actor.operator("ana"), Actor.user())
    }
    assert len(hashes) == 3


def test_every_field_of_a_fact_is_hashed_but_position_and_the_hash_itself() -> None:
    fields = set(Fact.__dataclass_fields__) - {"position", "hash", "payload", "payload_text", "actor"}
    (fact,) = facts_of(created())
    assert set(envelope(fact)) == fields | {"actor_type", "actor_id"}


def test_the_position_is_not_hashed() -> None:
    (fact,) = facts_of(created())
    assert replace(fact, position=7).computed_hash(GENESIS) == fact.hash


def test_the_hash_covers_the_fact_before() -> None:
    (fact,) = facts_of(created())
    assert fact.computed_hash("1" + "0" * 63) != fact.hash


@given(
    st.dictionaries(
        st.sampled_from(sorted(envelope(facts_of(created())[0]))),
        st.none() | st.integers(0, 1 << 53) | st.text(max_size=20),
    ),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=20), max_size=4),
)
def test_the_quick_way_gives_the_bytes_of_the_plain_way(fields: dict[str, Any], payload: dict[str, Any]) -> None:
    plain = json.dumps(
        {name: value for name, value in fields.items() if value is not None} | {"payload": payload},
        ensure_ascii=False,
        separators=(",", ":"),
        sort_keys=True,
    )
    expected = sha256((GENESIS + plain).encode()).hexdigest()
    assert chained_hash(GENESIS, fields, canonical_json(payload)) == expected


def test_a_text_that_is_no_proper_text_still_has_a_hash() -> None:
    # What somebody wrote into a file is hashed, found different and named; it never stops a verification.
    assert chained_hash(GENESIS, {"project": "\udcff"}, "{}") != chained_hash(GENESIS, {"project": "?"}, "{}")

"""Lines of archives: a fact there and back, and what no fact can be (R3.1, R14.2)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from histories import BY_RUN_STATUS, facts_of
from runfacts.domain.archives import LINE_MAX, BadLine, line_of, parse
from runfacts.domain.facts import Fact
from runfacts.domain.lifecycle import RunStatus
from runfacts.domain.limits import PAYLOAD_MAX

FACTS = facts_of(*BY_RUN_STATUS[RunStatus.RUNNING])


def text_of(fact: Fact) -> bytes:
    """Give a fact's line as an archive has it."""
    return json.dumps(line_of(fact, len(FACTS))).encode()


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.type)
def test_a_fact_goes_there_and_back(fact: Fact) -> None:
    parsed = parse(text_of(replace(fact, position=77)))
    assert parsed.run_version == 7
    assert parsed.fact == replace(fact, position=fact.sequence)


def test_a_payload_that_somebody_changed_stays_text() -> None:
    for text in ('{"number": 1}', "no json", '{"b":1,"a":2}', "[1]", '{"a":0.5}'):
        changed = replace(FACTS[2], payload_text=text)
        line = line_of(changed, 7)
        assert line["payload"] == text
        assert parse(json.dumps(line).encode()).fact.payload_text == text


def test_the_longest_fact_fits_into_a_line_however_it_is_escaped() -> None:
    for character in ("x", "é", "雪", "😀", '"', "\\", "\u2028"):
        size = len(json.dumps(character, ensure_ascii=False).encode()) - 2
        text = '{"a":' + json.dumps(character * ((PAYLOAD_MAX - 8) // size), ensure_ascii=False) + "}"
        key = "😀" * 256
        fact = replace(FACTS[2], payload_text=text, dedupe_key=key, correlation_id=key, causation_id=key)
        line = text_of(fact)
        assert len(line) < LINE_MAX
        assert parse(line).fact.payload_text == text


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sequence": 0}, "has as sequence what no fact can have"),
        ({"sequence": 1 << 53}, "has as sequence what no fact can have"),
        ({"sequence": "1"}, "has as sequence what no fact can have"),
        ({"recorded_at_ms": -1}, "has as recorded_at_ms what no fact can have"),
        ({"recorded_at_ms": 1.5}, "has as recorded_at_ms what no fact can have"),
        ({"run_id": "01890000-0000-7000-8000-00000000000A"}, "has as run_id what no fact can have"),
        ({"hash": "0" * 63}, "has as hash what no fact can have"),
        ({"actor_id": "a\x1b"}, "has as actor_id what no fact can have"),
        ({"project": ""}, "has as project what no fact can have"),
        ({"type": None}, "has no type"),
        ({"payload": None}, "has no payload"),
        ({"payload": [1]}, "has as payload what no fact can have"),
        ({"payload": {"a": 1.5}}, "has a payload that has no canonical form"),
        ({"payload": {"a": "\ud800"}}, "has a payload that is no text"),
        ({"payload": "x"}, f"has a payload that is not an object of at most {PAYLOAD_MAX} bytes"),
    ],
)
def test_what_no_fact_can_be_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(BadLine, match=f"^{reason}$"):
        parse(json.dumps(line_of(FACTS[0], 7) | change).encode())

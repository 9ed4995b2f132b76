"""Rows become facts, whatever stands in them (R3.1, R3.7)."""

from __future__ import annotations

import pickle
from copy import copy
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from histories import BY_RUN_STATUS, facts_of
from runfacts.domain.facts import Fact, UnknownPayload
from runfacts.domain.lifecycle import RunStatus
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of, fact_row

MADE = tuple(
    replace(fact, position=fact.sequence, dedupe_key=f"k{fact.sequence}", correlation_id="c", causation_id="d")
    for fact in facts_of(*BY_RUN_STATUS[RunStatus.SUCCEEDED])
)


def stored(fact: Fact) -> tuple[object, ...]:
    """Give the row of a fact, as a database does."""
    row = {**fact_row(fact), "position": fact.position}
    return tuple(row[column.name] for column in FACT_COLUMNS)


@pytest.mark.parametrize("fact", MADE, ids=lambda fact: str(fact.type))
def test_a_stored_fact_is_the_one_that_was_recorded(fact: Fact) -> None:
    read = fact_of(stored(fact))
    assert type(read) is Fact
    assert read == fact
    assert hash(read) == hash(fact)
    assert repr(read) == repr(fact)
    assert (copy(read), pickle.loads(pickle.dumps(read)), replace(read)) == (fact, fact, fact)  # noqa: S301 - our own


@pytest.mark.parametrize("name", [field.name for field in fields(Fact)])
def test_nobody_changes_a_stored_fact(name: str) -> None:
    read = fact_of(stored(MADE[0]))
    with pytest.raises(FrozenInstanceError):
        setattr(read, name, None)
    with pytest.raises(FrozenInstanceError):
        delattr(read, name)


def test_a_row_that_no_release_has_written_is_read_too() -> None:
    row = list(stored(MADE[0]))
    names = [column.name for column in FACT_COLUMNS]
    for name, value in {"actor_type": "ghost", "actor_id": b"\xff", "type": "run.none", "payload": "\udcff"}.items():
        row[names.index(name)] = value
    read = fact_of(row)
    assert repr(read.actor) == "Actor(type='ghost', id=b'\\xff')"
    assert isinstance(read.payload, UnknownPayload)
    assert read.payload.text == "\udcff"

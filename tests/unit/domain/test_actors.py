"""Who did it: the twelve kinds of actors and their ids (R3.5)."""

from __future__ import annotations

from typing import Any

import pytest

from runfacts.domain.actors import Actor, ActorType
from runfacts.domain.errors import InvalidValue


def test_there_are_twelve_kinds_of_actors() -> None:
    assert [kind.value for kind in ActorType] == [
        "user",
        "api",
        "trigger",
        "agent",
        "worker",
        "executor",
        "scheduler",
        "supervisor",
        "reconciler",
        "operator",
        "system",
        "legacy",
    ]


@pytest.mark.parametrize(
    ("actor", "kind"),
    [
        (Actor.user("x"), "user"),
        (Actor.worker("x"), "worker"),
        (Actor.executor("x"), "executor"),
        (Actor.operator("x"), "operator"),
        (Actor.scheduler("x"), "scheduler"),
        (Actor.system("x"), "system"),
    ],
)
def test_each_maker_makes_its_own_kind(actor: Actor, kind: str) -> None:
    assert (actor.type.value, actor.id) == (kind, "x")


def test_an_actor_may_have_no_id() -> None:
    assert Actor.system() == Actor(ActorType.SYSTEM, None)


def test_a_kind_may_be_given_by_its_name() -> None:
    made: Any = Actor("api", "gateway")  # type: ignore[arg-type]  # callers without types do this
    assert made.type is ActorType.API


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidValue, match="actor type is none of user, api"):
        Actor("robot")  # type: ignore[arg-type]  # that is what is refused


@pytest.mark.parametrize("name", ["a", "a" * 128, "Ana Ruiz", "ünïcode ✓"])
def test_an_id_of_one_to_128_printable_characters_is_taken(name: str) -> None:
    assert Actor.user(name).id == name


@pytest.mark.parametrize("name", ["", "a" * 129, "a\nb", "a\x00b", "\x1b[31m", "a\ud800", "a\u2028b", "a\x7f", 7])
def test_any_other_id_is_refused(name: Any) -> None:  # noqa: ANN401 - whatever a caller passes
    with pytest.raises(InvalidValue, match="actor id"):
        Actor.user(name)


def test_a_recorded_actor_is_whatever_was_stored() -> None:
    # R3.7: reading never fails, also not on what a later release or a hand on the file wrote.
    assert Actor.recorded("user", "ana") == Actor.user("ana")
    assert Actor.recorded("user", None).type is ActorType.USER
    strange = Actor.recorded("robot", "\x00")
    assert (str(strange.type), strange.id) == ("robot", "\x00")

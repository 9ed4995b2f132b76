"""The embedding platform says who a caller is (R13.3)."""

from __future__ import annotations

import pytest

from runfacts import Actor, ActorType, NotAuthenticated, authenticated
from runfacts.domain.authentication import VOUCHED_FOR

OLGA = Actor.operator("olga")


class Platform:
    """Knows one session."""

    def __init__(self, actor: Actor | None) -> None:
        self.actor = actor

    def authenticate(self, credential: str) -> Actor | None:
        """See ``Authenticator``."""
        return self.actor if credential == "session-of-olga" else None


class Unreachable:
    """Cannot ask its directory."""

    def authenticate(self, credential: str) -> Actor | None:
        """See ``Authenticator``."""
        raise ConnectionError(len(credential))


def test_the_actor_is_the_one_whom_the_platform_names() -> None:
    assert authenticated(Platform(OLGA), "session-of-olga") is OLGA


def test_a_credential_that_proves_nobody_is_refused_and_not_repeated() -> None:
    with pytest.raises(NotAuthenticated, match="proves nobody") as refused:
        authenticated(Platform(OLGA), "stolen-session")
    assert "stolen" not in str(refused.value) + repr(refused.value)


def test_an_actor_without_an_id_is_nobody() -> None:
    with pytest.raises(NotAuthenticated, match="nobody in particular"):
        authenticated(Platform(Actor.operator()), "session-of-olga")


@pytest.mark.parametrize("kind", ["worker", "supervisor", "reconciler", "system", "legacy"])
def test_no_caller_is_a_part_of_the_product(kind: str) -> None:
    assert set(ActorType) - VOUCHED_FOR == {"worker", "supervisor", "reconciler", "system", "legacy"}
    with pytest.raises(NotAuthenticated, match=kind):
        authenticated(Platform(Actor(ActorType(kind), "x")), "session-of-olga")


def test_the_platforms_own_errors_go_up() -> None:
    with pytest.raises(ConnectionError):
        authenticated(Unreachable(), "session-of-olga")

"""
Authentication: who a caller is, by the word of the platform that embeds the ledger (R13.3).

The ledger keeps no accounts and checks no passwords. An embedding platform implements ``Authenticator`` over what it
has, a session, a token, a certificate; ``authenticated`` asks it and gives the actor for a command or an operator's
verb. The credential goes to the authenticator and nowhere else. What the command is told with ``--as`` is somebody's
own word, and no authenticator is asked.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeVar

from runfacts.domain.actors import Actor, ActorType
from runfacts.domain.errors import NotAuthenticated

Credential = TypeVar("Credential")
_Credential_contra = TypeVar("_Credential_contra", contravariant=True)

VOUCHED_FOR: Final = frozenset(
    {
        ActorType.USER,
        ActorType.API,
        ActorType.TRIGGER,
        ActorType.AGENT,
        ActorType.EXECUTOR,
        ActorType.SCHEDULER,
        ActorType.OPERATOR,
    }
)
"""The kinds of actors that a platform can name; as the others only the product itself acts."""


class Authenticator(Protocol[_Credential_contra]):
    """Knows whom a credential belongs to."""

    def authenticate(self, credential: _Credential_contra) -> Actor | None:
        """Give the actor that the credential proves, with an id; None where it proves nobody.

        Its own errors, of a directory that cannot be reached for instance, go up to the caller unchanged.
        """
        ...


def authenticated(authenticator: Authenticator[Credential], credential: Credential) -> Actor:
    """Give the actor whom the platform vouches for, to be named as ``actor`` of a command or verb (R13.3).

    Raises ``NotAuthenticated`` where the credential proves nobody, or the answer names nobody in particular or a part
    of the product itself.
    """
    actor = authenticator.authenticate(credential)
    if actor is None:
        raise NotAuthenticated("the credential proves nobody")
    if actor.id is None:
        raise NotAuthenticated("the authenticator names nobody in particular")
    if actor.type not in VOUCHED_FOR:
        raise NotAuthenticated(f"no caller can be a {actor.type}")
    return actor

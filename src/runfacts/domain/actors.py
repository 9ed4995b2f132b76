"""
Who did it: no fact is without an actor (R3.5).

The type says what kind of party acted; the id, where there is one, who exactly. Ids are opaque: a worker's id is
drawn anew for every process start and holds no host name and no PID.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from runfacts.domain.errors import InvalidValue
from runfacts.domain.texts import is_plain_name

ACTOR_ID_MAX: Final = 128
"""Longest actor id, in characters."""


class ActorType(StrEnum):
    """The kinds of parties that act (R3.5)."""

    USER = "user"
    API = "api"
    TRIGGER = "trigger"
    AGENT = "agent"
    WORKER = "worker"
    EXECUTOR = "executor"
    SCHEDULER = "scheduler"
    SUPERVISOR = "supervisor"
    RECONCILER = "reconciler"
    OPERATOR = "operator"
    SYSTEM = "system"
    LEGACY = "legacy"


_KINDS: Final[Mapping[str, ActorType]] = {kind.value: kind for kind in ActorType}


@dataclass(frozen=True, slots=True)
class Actor:
    """One party: its kind and, where it has one, its id (at most 128 characters, no control characters)."""

    type: ActorType
    id: str | None = None

    def __post_init__(self) -> None:
        """Refuse an unknown kind or an unusable id (``InvalidValue``)."""
        try:
            object.__setattr__(self, "type", ActorType(self.type))
        except ValueError:
            raise InvalidValue("actor type", f"is none of {', '.join(ActorType)}") from None
        if self.id is not None and not is_plain_name(self.id, ACTOR_ID_MAX):
            raise InvalidValue("actor id", f"is not a text of 1 to {ACTOR_ID_MAX} printable characters")

    @classmethod
    def recorded(cls, kind: str, actor_id: str | None) -> Actor:
        """The actor of a stored fact, whatever it says: reading never fails on what was stored (R3.7)."""
        actor = object.__new__(cls)
        object.__setattr__(actor, "type", _KINDS.get(kind, kind))
        object.__setattr__(actor, "id", actor_id)
        return actor

    @classmethod
    def user(cls, name: str | None = None) -> Actor:
        """A person."""
        return cls(ActorType.USER, name)

    @classmethod
    def worker(cls, worker_id: str | None = None) -> Actor:
        """One incarnation of a worker process."""
        return cls(ActorType.WORKER, worker_id)

    @classmethod
    def executor(cls, name: str | None = None) -> Actor:
        """Whatever runs an Attempt."""
        return cls(ActorType.EXECUTOR, name)

    @classmethod
    def operator(cls, name: str | None = None) -> Actor:
        """A person with an operator's rights."""
        return cls(ActorType.OPERATOR, name)

    @classmethod
    def scheduler(cls, name: str | None = None) -> Actor:
        """Whatever queues Runs."""
        return cls(ActorType.SCHEDULER, name)

    @classmethod
    def system(cls, name: str | None = None) -> Actor:
        """The product itself."""
        return cls(ActorType.SYSTEM, name)

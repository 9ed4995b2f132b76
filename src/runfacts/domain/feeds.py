"""
What a feed gives: facts in order, and how far somebody has got with them (R3.9).

A feed is all facts of a ledger by position, each once, after its commit, every Run's by ``sequence``. Whoever reads it
keeps a ``Checkpoint``: the position of the last fact that was dealt with, and that fact's hash, by which a database
that was set back is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

from runfacts.domain.errors import InvalidCursor
from runfacts.domain.facts import Fact

_TEXT: Final = re.compile(r"([1-9][0-9]{0,18}):([0-9a-f]{64})", re.ASCII)
_POSITION_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a reader has got. ``str()`` gives the text to store, ``parse`` reads it."""

    position: int
    hash: str
    """Of the fact at that position."""

    @classmethod
    def of(cls, fact: Fact) -> Self:
        """Say that this fact, which a feed gave, is dealt with."""
        if fact.position is None:
            raise InvalidCursor
        return cls(fact.position, fact.hash)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str()`` gave (``InvalidCursor``)."""
        found = _TEXT.fullmatch(text)
        if found is None or int(found[1]) > _POSITION_MAX:
            raise InvalidCursor
        return cls(int(found[1]), found[2])

    def __str__(self) -> str:
        return f"{self.position}:{self.hash}"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a reader waits for: a position that a transaction in flight may still fill."""

    position: int
    """The lowest such position."""
    waited_ms: int
    """For how long this process has waited for it."""
    holders: int
    """How many transactions that were writing facts then are still in flight."""


@dataclass(frozen=True, slots=True)
class FeedPage:
    """Facts in order, and the checkpoint after them."""

    facts: tuple[Fact, ...]
    checkpoint: Checkpoint | None
    """To go on from; the one that was given where there are no facts."""
    waiting: Waiting | None
    """Why there are no more facts yet, although later ones are committed; None where nothing is in the way."""


@dataclass(frozen=True, slots=True)
class FeedHealth:
    """How far a reader is behind, and what it waits for."""

    position: int
    """The reader's position; 0 at the beginning."""
    newest: int
    """The highest position that is committed."""
    lag_facts: int
    """How many committed facts the reader does not have; no more than 100,000 are counted."""
    lag_ms: int
    """How long ago the oldest of them was recorded."""
    waiting: Waiting | None
    """What the next read would wait for."""

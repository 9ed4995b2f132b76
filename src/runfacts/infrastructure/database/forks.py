"""
Forks: a connection belongs to the process that made it.

A child that went on with its parent's connections would mix its words with the parent's: over one socket to PostgreSQL
each gets answers that were meant for the other, and the locks of SQLite are not inherited. So a child gets connections
of its own. Those of its parent it neither uses nor closes: closing would hang up for the parent.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What has connections."""

    def forked(self) -> list[object]:
        """Go on in a child without the connections of its parent; return them."""


_parted: WeakSet[Forked] = WeakSet()
_left_to_the_parent: list[object] = []


def part_at_forks(owner: Forked) -> None:
    """Tell ``owner`` in every child that is forked from now on."""
    _parted.add(owner)


def _in_the_child() -> None:
    for owner in list(_parted):
        # Kept, since an object that is thrown away closes its connection.
        _left_to_the_parent.extend(owner.forked())


os.register_at_fork(after_in_child=_in_the_child)

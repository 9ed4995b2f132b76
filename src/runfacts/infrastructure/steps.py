"""
Named steps: the places at which a test can fail, kill or pause the product.

Code that a crash must not harm calls ``steps.reached("…")`` at each point where a crash could do harm: before and
after each SQL statement, before and after each commit, around everything that a launch does, and around each signal
of a stop. In production nothing listens and the call costs an attribute look-up. A test gives the ledger its own
``Steps`` and raises, kills the process or waits there.

Names are stable and listed in ``docs/testing.md``: ``sql:before:<statement>``, ``sql:after:<statement>``,
``sql:before:commit``, ``sql:after:commit``; ``launch:…``, ``keeper:…`` and ``child:…``, each with ``before:<what>`` or
``after:<what>``; ``stop:after:proof``, and ``stop:before:<signal>``, ``stop:after:<signal>``.
"""

from __future__ import annotations

from typing import Protocol


class Steps(Protocol):
    """Whoever wants to know that a named step has been reached."""

    def reached(self, name: str) -> None:
        """Be told that the step ``name`` is reached. What this raises, the product sees as its own failure there."""
        ...


class _NoSteps:
    """Nobody listens."""

    __slots__ = ()

    def reached(self, name: str) -> None:
        """Do nothing."""


NO_STEPS: Steps = _NoSteps()
"""The steps of production: nobody listens."""

"""What a host runs, and what may become of it (R10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runfacts.domain.answers import Finished, LateCallback, NotClaimable, Repeated, StartRefused, StopNotProven
from runfacts.domain.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Command:
    """What to run. Neither command nor environment is shown when it is printed: either may hold secrets."""

    argv: tuple[str, ...] = field(repr=False)
    cwd: str | None = None
    """The working directory; the host's own when left out."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """The environment; the host's own when left out."""
    stdin: bool = False
    """Whether the command reads the host's standard input; else ``/dev/null``."""


@dataclass(frozen=True, slots=True)
class NotHosted:
    """There was no Attempt to be had; nothing ran."""

    run_id: str
    answer: NotClaimable


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The Run had been ended, or asked to stop, before the gate: nothing ran, and nothing will."""

    run_id: str
    attempt_id: str
    answer: StartRefused


@dataclass(frozen=True, slots=True)
class NeverRan:
    """The Attempt began, but its command never ran and never will."""

    run_id: str
    attempt_id: str
    reason: str
    """``launch_failed``, ``gate_closed``, ``lease_over``, ``commit_unknown`` or ``attempt_ended``."""
    detail: str
    """The same in words."""
    answer: Finished | Repeated | LateCallback | StopNotProven | None
    """What the ledger said to that; ``None`` when it could not be told."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The command ended, and its receipt was consumed: here, or by whoever was faster (``Repeated``)."""

    run_id: str
    attempt_id: str
    outcome: Outcome
    answer: Finished | Repeated | LateCallback | StopNotProven


@dataclass(frozen=True, slots=True)
class KeeperLost:
    """The keeper left no receipt, so nobody knows how the command ended; the host recorded nothing (R10.2)."""

    run_id: str
    attempt_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Detached:
    """The host was asked to go; the command runs on under its keeper (R10.5)."""

    run_id: str
    attempt_id: str


HostedOutcome = NotHosted | NotStarted | NeverRan | Ended | KeeperLost | Detached
"""What became of hosting one Attempt."""

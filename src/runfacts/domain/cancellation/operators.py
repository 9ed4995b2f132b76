"""
What operators see and do about cancellations (R6.2, R13).

A blocked dispatch comes with a diagnosis in words: what was recorded, what was seen, what it means and what can be
done. Each verb needs an actor, a reason and the version of what it acts on; saying the same again gives the first
answer, saying something else is a conflict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from runfacts.domain.cancellation.results import DispatchResult, DispatchStatus
from runfacts.domain.lifecycle import RunStatus

UNSERVED: Final = "scope_unserved"
"""The reason of a dispatch that has long been due and that nobody of its scope claims (R8.2)."""


@dataclass(frozen=True, slots=True)
class BlockedDispatch:
    """A dispatch that waits for an operator (R13.1). ``version`` is what ``rearm`` and ``abandon`` take."""

    run_id: str
    attempt_id: str
    reason: str
    since_ms: int
    diagnosis: str
    version: int


@dataclass(frozen=True, slots=True)
class UnprovenStop:
    """A Run whose stop is not proven (R6.2). ``version`` is the Run's, which ``confirm_stopped`` takes."""

    run_id: str
    attempt_id: str | None
    reason: str
    since_ms: int
    diagnosis: str
    version: int


@dataclass(frozen=True, slots=True)
class Rearmed:
    """The dispatch is tried again from ``next_attempt_at_ms`` on, with new tries (R13.2)."""

    run_id: str
    version: int
    next_attempt_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """No more signals are sent for this Run (R13.2)."""

    run_id: str
    version: int


@dataclass(frozen=True, slots=True)
class StopConfirmed:
    """Attempt and Run have ended on an operator's word (R13.2)."""

    run_id: str
    status: RunStatus
    version: int


REARMABLE: Final = frozenset({DispatchStatus.BLOCKED, DispatchStatus.DISPATCHED})
"""Statuses from which a dispatch may be rearmed (R13.2)."""

DIAGNOSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        DispatchResult.IDENTITY_MISMATCH.value: (
            "The process that has the recorded number now is not the one that was recorded: start time, boot or "
            "group differ. The recorded one has most likely ended and its number was given to a stranger; no "
            "signal was sent. Check the machine; if nothing of the run is left, confirm-stopped, otherwise stop "
            "it by hand."
        ),
        DispatchResult.PID_MISMATCH.value: (
            "The attempt's process number and the one in its handle differ, so neither can be trusted; no signal "
            "was sent. Check on the machine what runs, then confirm-stopped or stop it by hand."
        ),
        DispatchResult.UNSUPPORTED.value: (
            "This worker's platform cannot signal a proven process, or the handle was made on another platform; "
            "no signal was sent. Run a worker on Linux 5.3 or later in the attempt's scope, then rearm."
        ),
        DispatchResult.INVALID.value: (
            "The attempt's handle cannot be read, so its process cannot be found; no signal was sent. Check on "
            "the machine what runs, then confirm-stopped or stop it by hand."
        ),
        DispatchResult.SCOPE_MISMATCH.value: (
            "The process was recorded on another machine or in other namespaces than the worker's, from where it "
            "cannot be proven; no signal was sent. Start a worker in the attempt's own scope, then rearm."
        ),
        DispatchResult.GROUP_SURVIVORS.value: (
            "The command's first process has ended, but members of its process group live and cannot be proven to "
            "belong to the attempt; they were not signalled. Look at the group on the machine; stop it by hand or "
            "leave it, then rearm or confirm-stopped."
        ),
        DispatchResult.NOT_PERMITTED.value: (
            "A member of the process group belongs to another user and this worker may not signal it. Stop it by "
            "hand as that user or as root, then rearm."
        ),
        DispatchResult.LIMIT.value: (
            "The delivery was tried as often as allowed without a result, or its workers died while trying. See "
            "the run's audit trail for the single tries, remove the cause, then rearm."
        ),
        DispatchResult.ABANDONED.value: (
            "An operator ended the delivery. The run still ends by its own report, its receipt or a confirmation."
        ),
        UNSERVED: (
            "The delivery is due, and no worker of the attempt's executor type and scope has claimed it. The "
            "machine may be off, or no worker runs there. Start one, or confirm-stopped if nothing of the run is "
            "left."
        ),
    }
)
"""What an operator is told, by reason (R13.1)."""

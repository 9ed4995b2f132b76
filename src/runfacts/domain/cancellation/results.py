"""
What can come of delivering a cancellation, as one table (R7.4).

Three kinds of results: delivered, so that nothing more is to be sent; blocked, so that an operator must look; failed,
so that it is tried again later. Each kind has one status of the dispatch and one type of fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from runfacts.domain.payloads import (
    RunCancelDispatchBlocked,
    RunCancelDispatched,
    RunCancelDispatchFailed,
)


class DispatchStatus(StrEnum):
    """The statuses of a dispatch (R7.1)."""

    PENDING = "pending"
    LEASED = "leased"
    RETRY_WAIT = "retry_wait"
    DISPATCHED = "dispatched"
    BLOCKED = "blocked"


FINISHED_DISPATCH: Final = frozenset({DispatchStatus.DISPATCHED, DispatchStatus.BLOCKED})
"""Statuses in which the dispatcher has nothing more to do."""


class DispatchResult(StrEnum):
    """What came of one try (R7.4)."""

    TERMINATION_REQUESTED = "termination_requested"
    """The signal was accepted; nothing is known to have stopped yet."""
    ALREADY_EXITED = "already_exited"
    """There was nothing left to signal."""
    IDENTITY_MISMATCH = "identity_mismatch"
    """The process of that number is not the one that was recorded."""
    PID_MISMATCH = "pid_mismatch"
    """The Attempt's process number is not its handle's."""
    UNSUPPORTED = "unsupported"
    """This platform cannot signal a proven process, or the handle is of another one."""
    INVALID = "invalid"
    """The handle cannot be read."""
    SCOPE_MISMATCH = "scope_mismatch"
    """The process lives on another machine or in other namespaces."""
    GROUP_SURVIVORS = "group_survivors"
    """The leader is gone, members of its group live, and they cannot be proven."""
    NOT_PERMITTED = "not_permitted"
    """A member may not be signalled."""
    LIMIT = "limit"
    """It was tried as often as allowed."""
    ABANDONED = "abandoned"
    """An operator ended the delivery (R13.2)."""
    CONTROLLER_MISSING = "controller_missing"
    """This worker has no controller for the executor type."""
    HANDLE_MISSING = "handle_missing"
    """The Attempt has no handle yet."""
    DISPATCH_ERROR = "dispatch_error"
    """The controller failed."""


DELIVERED: Final = frozenset({DispatchResult.TERMINATION_REQUESTED, DispatchResult.ALREADY_EXITED})
"""Results after which nothing more is sent."""
FAILED: Final = frozenset(
    {DispatchResult.CONTROLLER_MISSING, DispatchResult.HANDLE_MISSING, DispatchResult.DISPATCH_ERROR}
)
"""Results after which it is tried again."""
BLOCKED: Final = frozenset(DispatchResult) - DELIVERED - FAILED
"""Results after which an operator must look."""

SETTLED: Final = frozenset(DispatchResult) - {DispatchResult.LIMIT, DispatchResult.ABANDONED}
"""Results that a claim's holder may settle with; the others are written by a claim or a verb."""

STATUS_AFTER: Final[Mapping[DispatchResult, DispatchStatus]] = MappingProxyType(
    {
        **dict.fromkeys(DELIVERED, DispatchStatus.DISPATCHED),
        **dict.fromkeys(BLOCKED, DispatchStatus.BLOCKED),
        **dict.fromkeys(FAILED, DispatchStatus.RETRY_WAIT),
    }
)
"""The dispatch's status after each result."""

FACT_AFTER: Final[
    Mapping[DispatchStatus, type[RunCancelDispatched | RunCancelDispatchBlocked | RunCancelDispatchFailed]]
] = MappingProxyType(
    {
        DispatchStatus.DISPATCHED: RunCancelDispatched,
        DispatchStatus.BLOCKED: RunCancelDispatchBlocked,
        DispatchStatus.RETRY_WAIT: RunCancelDispatchFailed,
    }
)
"""The fact that a settle into each status records."""

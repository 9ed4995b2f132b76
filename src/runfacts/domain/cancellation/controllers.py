"""
Controllers: how a cancellation reaches what it is meant for (R8).

A controller stops what one executor type runs. It is asked only by the holder of a claim, proves before every signal
that the process is the recorded one, and never signals on a doubt. Users write their own for their executors;
``runfacts.testing`` has the contract suite that each must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.errors import InvalidValue
from runfacts.domain.payloads import Escalation


@dataclass(frozen=True, slots=True)
class StopTarget:
    """What is to be stopped: a copy of what was recorded, and nothing that can be claimed with.

    Handle and number are not shown when it is printed: it may be in a log line (R3.6).
    """

    run_id: str
    attempt_id: str
    executor_type: str
    scope: str
    handle: str | None = field(repr=False)
    pid: int | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class StopResult:
    """What came of it."""

    result: DispatchResult
    escalation: Escalation = Escalation.NONE
    """The strongest signal that was accepted."""


class TimeLeft(Protocol):
    """How long the holder of the claim may still act (R8.4)."""

    def allows(self, wanted_ms: int) -> bool:
        """Tell whether ``wanted_ms`` from now is still before the holder's own deadline."""
        ...


class OutOfTime(Exception):
    """The holder's own deadline left no time for the next signal.

    Nothing more is sent and nothing is settled (R8.4).
    """


class ExecutionController(Protocol):
    """Stops what one executor type runs."""

    @property
    def executor_type(self) -> str:
        """The executor type, exactly; there is no default controller (R8.1)."""
        ...

    @property
    def scopes(self) -> frozenset[str]:
        """The scopes from which this controller can prove a process (R8.2)."""
        ...

    @property
    def worst_case_ms(self) -> int:
        """The longest that one ``stop`` takes, in milliseconds (R8.1, R8.7)."""
        ...

    def stop(self, target: StopTarget, time_left: TimeLeft) -> StopResult:
        """Prove and signal. Called outside of any transaction.

        Raises ``OutOfTime`` before a signal for which no time is left; any other exception counts as
        ``dispatch_error``.
        """
        ...


class Controllers:
    """The controllers that a worker has, by exact executor type; copied when they are registered (R8.1)."""

    def __init__(self, controllers: Iterable[ExecutionController] = ()) -> None:
        """Register controllers; two for one type are refused (``InvalidValue``)."""
        found: dict[str, ExecutionController] = {}
        for controller in controllers:
            if controller.executor_type in found:
                raise InvalidValue("controllers", f"has two for executor type {controller.executor_type!r}")
            found[controller.executor_type] = controller
        self._by_type: Mapping[str, ExecutionController] = MappingProxyType(found)

    def find(self, executor_type: str) -> ExecutionController | None:
        """Give the controller of exactly this executor type."""
        return self._by_type.get(executor_type)

    @property
    def served(self) -> tuple[tuple[str, str], ...]:
        """The pairs of executor type and scope that these controllers serve, in order."""
        return tuple(sorted((name, scope) for name, controller in self._by_type.items() for scope in controller.scopes))

    @property
    def worst_case_ms(self) -> int:
        """The longest worst case of all of them, in milliseconds."""
        return max((controller.worst_case_ms for controller in self._by_type.values()), default=0)


Monotonic = Callable[[], float]
"""A clock that only goes forward, in seconds."""

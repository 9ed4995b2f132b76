"""
The contract of controllers: what every ``ExecutionController`` must pass (R8).

A controller of your own is tested by a subclass that says how its executor is set up::

    class TestMyController(ControllerContract):
        @pytest.fixture
        def workbench(self) -> Iterator[MyWorkbench]:
            with MyWorkbench() as workbench:
                yield workbench

``workbench`` is a ``ControllerWorkbench``: a controller together with the means to start, watch and end what it is to
stop. The tests start real things and wait for them, at most ``patience_s`` each.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Protocol

import pytest

from runfacts.domain.cancellation.controllers import (
    Controllers,
    ExecutionController,
    OutOfTime,
    StopResult,
    StopTarget,
)
from runfacts.domain.cancellation.results import BLOCKED, SETTLED, DispatchResult
from runfacts.domain.payloads import Escalation

_POLL_S = 0.01


class ControllerWorkbench(Protocol):
    """A controller, and what there is to stop."""

    @property
    def controller(self) -> ExecutionController:
        """The controller under test."""
        ...

    def start(self, *, stubborn: bool = False) -> StopTarget:
        """Start something and give what would be recorded of it, once it runs.

        It ends when it is asked to; a stubborn one ignores that and ends by force only.
        """
        ...

    def runs(self, target: StopTarget) -> bool:
        """Tell whether something that was started runs. Not by means of the controller."""
        ...

    def end(self, target: StopTarget) -> None:
        """End something that was started, without the controller, and return when it is gone."""
        ...

    def replaced(self) -> tuple[StopTarget, StopTarget]:
        """Give the record of something that has ended, and a stranger that took its place and runs.

        The stranger has what names the first one as far as a name can be used again: the same number, host or label.
        """
        ...


class Clock:
    """How much time the holder has left; remembers what was asked for."""

    def __init__(self, *, left_ms: int) -> None:
        """Begin with ``left_ms``, which do not become less."""
        self._left_ms = left_ms
        self.wanted: list[int] = []

    def allows(self, wanted_ms: int) -> bool:
        """See ``TimeLeft``."""
        self.wanted.append(wanted_ms)
        return wanted_ms <= self._left_ms


class ControllerContract:
    """The tests. Subclass it under a name that pytest collects, and give it a ``workbench``."""

    patience_s: ClassVar[float] = 30.0
    """How long a test waits for what must happen, in seconds."""
    tolerance_s: ClassVar[float] = 5.0
    """By how much a stop may take longer than its stated worst case: a busy machine is no failure."""

    @pytest.fixture
    def workbench(self) -> ControllerWorkbench:
        """To be overridden: a controller and what it is to stop."""
        msg = f"{type(self).__name__} has to override the fixture `workbench`"
        raise NotImplementedError(msg)

    def test_it_names_its_executor_type_and_scopes(self, workbench: ControllerWorkbench) -> None:
        """Exact names, always the same: there is no default controller (R8.1, R8.2)."""
        controller = workbench.controller
        assert controller.executor_type
        assert controller.executor_type == controller.executor_type.strip()
        assert isinstance(controller.scopes, frozenset)
        assert controller.scopes == workbench.controller.scopes
        assert Controllers([controller]).find(controller.executor_type) is controller
        assert workbench.start().scope in controller.scopes

    def test_it_states_its_worst_case(self, workbench: ControllerWorkbench) -> None:
        """A lease is made longer than this (R8.1, R8.7)."""
        assert isinstance(workbench.controller.worst_case_ms, int)
        assert workbench.controller.worst_case_ms > 0

    def test_what_runs_is_asked_to_stop(self, workbench: ControllerWorkbench) -> None:
        """Delivered, with the signal that it took; only then it ends (R7.4)."""
        target = workbench.start()
        result = self._stop(workbench, target)
        assert result.result is DispatchResult.TERMINATION_REQUESTED
        self._wait_until(lambda: not workbench.runs(target), "it ends")

    def test_what_ignores_that_is_ended_or_reported_truthfully(self, workbench: ControllerWorkbench) -> None:
        """Force that was accepted ends it; without force it still runs, and nobody says otherwise (R8.6)."""
        target = workbench.start(stubborn=True)
        result = self._stop(workbench, target)
        assert result.result is DispatchResult.TERMINATION_REQUESTED
        if result.escalation is Escalation.KILL:
            self._wait_until(lambda: not workbench.runs(target), "it ends")
        else:
            assert workbench.runs(target)
            workbench.end(target)

    def test_what_has_ended_gets_nothing(self, workbench: ControllerWorkbench) -> None:
        """Nothing was left to signal (R8.6)."""
        target = workbench.start()
        workbench.end(target)
        result = self._stop(workbench, target)
        assert result.result in BLOCKED | {DispatchResult.ALREADY_EXITED}

    def test_a_second_stop_finds_nothing_to_do(self, workbench: ControllerWorkbench) -> None:
        """What a worker does that takes over after a crash (R8.8)."""
        target = workbench.start()
        self._stop(workbench, target)
        self._wait_until(lambda: not workbench.runs(target), "it ends")
        again = self._stop(workbench, target)
        assert again.result is not DispatchResult.TERMINATION_REQUESTED

    def test_only_what_is_meant_is_stopped(self, workbench: ControllerWorkbench) -> None:
        """Its neighbour runs on."""
        target, neighbour = workbench.start(), workbench.start()
        self._stop(workbench, target)
        self._wait_until(lambda: not workbench.runs(target), "it ends")
        assert workbench.runs(neighbour)

    def test_a_stranger_in_its_place_is_left_alone(self, workbench: ControllerWorkbench) -> None:
        """A name that is used again names nobody (R8.4)."""
        record, stranger = workbench.replaced()
        result = self._stop(workbench, record)
        assert result.result in BLOCKED | {DispatchResult.ALREADY_EXITED}
        assert workbench.runs(stranger)

    def test_another_scope_is_refused(self, workbench: ControllerWorkbench) -> None:
        """What cannot be proven from here is not stopped from here (R8.2, R8.4)."""
        target = workbench.start()
        result = self._stop(workbench, replace(target, scope=target.scope + "-elsewhere"))
        assert result.result in BLOCKED
        assert workbench.runs(target)

    @pytest.mark.parametrize("handle", ["", "{", "null", "\x00", "x" * 513])
    def test_a_handle_that_cannot_be_read_is_refused(self, workbench: ControllerWorkbench, handle: str) -> None:
        """And nothing is guessed from what else was recorded (R8.4)."""
        target = workbench.start()
        result = self._stop(workbench, replace(target, handle=handle))
        assert result.result in BLOCKED
        assert workbench.runs(target)

    def test_without_a_handle_nothing_is_stopped(self, workbench: ControllerWorkbench) -> None:
        """It may still come, so this may be tried again (R7.4)."""
        target = workbench.start()
        result = self._stop(workbench, replace(target, handle=None))
        assert result.result in BLOCKED | {DispatchResult.HANDLE_MISSING}
        assert workbench.runs(target)

    def test_a_number_that_is_not_the_handles_is_refused(self, workbench: ControllerWorkbench) -> None:
        """Where the executor has process numbers (R8.4)."""
        target = workbench.start()
        if target.pid is not None:
            result = self._stop(workbench, replace(target, pid=target.pid + 1))
            assert result.result in BLOCKED
        assert workbench.runs(target)

    def test_without_time_nothing_is_sent(self, workbench: ControllerWorkbench) -> None:
        """The claim may be somebody else's by now (R8.4)."""
        target = workbench.start()
        with pytest.raises(OutOfTime):
            workbench.controller.stop(target, Clock(left_ms=0))
        assert workbench.runs(target)

    def test_time_is_asked_for_and_never_more_than_the_worst_case(self, workbench: ControllerWorkbench) -> None:
        """Else a lease that just fits would never allow a signal (R8.4, R8.7)."""
        clock = Clock(left_ms=workbench.controller.worst_case_ms)
        result = workbench.controller.stop(workbench.start(stubborn=True), clock)
        assert result.result is DispatchResult.TERMINATION_REQUESTED
        assert clock.wanted
        assert all(0 < wanted <= workbench.controller.worst_case_ms for wanted in clock.wanted)

    def _stop(self, workbench: ControllerWorkbench, target: StopTarget) -> StopResult:
        """Stop with all the time in the world; the result must be one that a holder may settle with (R7.4)."""
        began = time.monotonic()
        result = workbench.controller.stop(target, Clock(left_ms=1 << 40))
        assert time.monotonic() - began <= workbench.controller.worst_case_ms / 1_000 + self.tolerance_s
        assert isinstance(result, StopResult)
        assert result.result in SETTLED
        if result.result is DispatchResult.TERMINATION_REQUESTED:
            assert result.escalation is not Escalation.NONE
        if result.result is DispatchResult.ALREADY_EXITED:
            assert result.escalation is Escalation.NONE
        return result

    def _wait_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + self.patience_s
        while not holds():
            assert time.monotonic() < deadline, f"not within {self.patience_s} s: {what}"
            time.sleep(_POLL_S)

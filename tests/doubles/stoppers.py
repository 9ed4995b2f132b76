"""Controllers that stop nothing, and note what they are asked."""

from __future__ import annotations

from collections.abc import Callable

from deliveries import SCOPE
from runfacts.domain.cancellation.controllers import StopResult, StopTarget, TimeLeft
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payloads import Escalation
from stages import EXECUTOR

TERM_ACCEPTED = StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.TERM)


class Stopper:
    """Answers every stop alike, or fails at it. See ``ExecutionController``."""

    executor_type = EXECUTOR
    scopes = frozenset({SCOPE})
    worst_case_ms = 1_000

    def __init__(self, result: StopResult = TERM_ACCEPTED, *, act: Callable[[StopTarget], None] | None = None) -> None:
        self.result = result
        self.act = act
        self.asked: list[str] = []

    def stop(self, target: StopTarget, time_left: TimeLeft) -> StopResult:
        """See ``ExecutionController``."""
        assert time_left.allows(1)
        self.asked.append(target.run_id)
        if self.act is not None:
            self.act(target)
        return self.result

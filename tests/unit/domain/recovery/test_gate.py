"""The startup gate: look, recover as often as allowed, look again (R11.9)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from runfacts.domain.recovery.claims import RecoveryScan
from runfacts.domain.recovery.gate import Admitted, NotAdmitted, pass_gate


@dataclass
class Backlog:
    """Candidates that go away page by page, or do not."""

    unsafe: int
    waiting: int = 0
    page: int = 2
    asked: list[str] = field(default_factory=list)

    def scan(self, limit: int) -> RecoveryScan:
        """See ``Gated``."""
        self.asked.append(f"scan {limit}")
        return RecoveryScan(min(limit, self.unsafe), min(limit, self.waiting))

    def cycle(self) -> int:
        """See ``Gated``."""
        self.asked.append("cycle")
        claimed = min(self.page, self.unsafe)
        self.unsafe -= claimed
        return claimed


def test_a_clean_first_look_admits_and_nothing_else_is_done() -> None:
    backlog = Backlog(0, waiting=3)
    assert pass_gate(backlog, passes=8) == Admitted(waiting=1)
    assert backlog.asked == ["scan 1"]


def test_what_is_unsafe_is_recovered_before_anything_is_admitted() -> None:
    backlog = Backlog(3, waiting=200)
    assert pass_gate(backlog, passes=8) == Admitted(waiting=128, cycles=3)
    # The third cycle found nothing to claim any more.
    assert backlog.asked == ["scan 1", "cycle", "cycle", "cycle", "scan 128"]


@pytest.mark.parametrize(("passes", "left"), [(1, 98), (8, 84), (49, 2)])
def test_with_more_than_the_allowed_cycles_settle_nothing_is_admitted(passes: int, left: int) -> None:
    backlog = Backlog(100)
    assert pass_gate(backlog, passes=passes) == NotAdmitted(unsafe=left, waiting=0, cycles=passes)


def test_a_cycle_that_finds_nothing_to_claim_is_the_last() -> None:
    # Claimed by others, or of a scope that this worker does not serve.
    backlog = Backlog(5, waiting=1, page=0)
    assert pass_gate(backlog, passes=8) == NotAdmitted(unsafe=5, waiting=1, cycles=1)


def test_a_worker_that_is_asked_to_stop_does_not_recover_first() -> None:
    backlog = Backlog(5)
    assert pass_gate(backlog, passes=8, stopping=lambda: True) == NotAdmitted(unsafe=5, waiting=0, cycles=0)
    assert backlog.asked == ["scan 1", "scan 128"]

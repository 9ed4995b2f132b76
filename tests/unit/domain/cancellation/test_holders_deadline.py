"""The holder's own deadline: from before it asked, less a margin, on its own clock (R8.4)."""

from __future__ import annotations

import pytest

from runfacts.domain.cancellation.terms import HoldersDeadline


class Ticking:
    """A clock in seconds that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """See ``Monotonic``."""
        return self.now_s


@pytest.mark.parametrize(
    ("passed_s", "wanted_ms", "allowed"),
    [
        (0.0, 0, True),
        (0.0, 7_999, True),
        (0.0, 8_000, False),  # exactly at the deadline is too late
        (5.0, 2_999, True),
        (5.0, 3_000, False),
        (7.5, 0, True),
        (8.0, 0, False),
        (100.0, 0, False),
    ],
)
def test_what_is_wanted_must_end_before_the_lease_less_its_margin(
    passed_s: float,
    wanted_ms: int,
    allowed: bool,  # noqa: FBT001 - a table's column
) -> None:
    clock = Ticking()
    deadline = HoldersDeadline(clock, lease_ms=10_000, margin_ms=2_000)
    clock.now_s += passed_s
    assert deadline.allows(wanted_ms) is allowed


def test_a_lease_no_longer_than_its_margin_allows_nothing() -> None:
    assert not HoldersDeadline(Ticking(), lease_ms=2_000, margin_ms=2_000).allows(0)


def test_a_slow_answer_to_the_claim_shortens_the_trust() -> None:
    clock = Ticking()
    deadline = HoldersDeadline(clock, lease_ms=10_000, margin_ms=2_000)
    clock.now_s += 6.0  # the claim took six seconds
    assert deadline.allows(1_999)
    assert not deadline.allows(2_000)

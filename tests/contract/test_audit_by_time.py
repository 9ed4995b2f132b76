"""The audit trail by time: in the order of time, also where positions tell another one (R14.1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from runfacts import InvalidCursor, Ledger
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.recorded import import_recorded
from stages import created

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def mixed(ledger: Ledger, manual_clock: ManualClock) -> Ledger:
    """A ledger with facts of its own, and behind them facts of an archive that are not later than the first."""
    manual_clock.advance(1_000)
    for _ in range(3):
        created(ledger)
        manual_clock.advance(1_000)
    import_recorded(ledger, GOLDEN / "0.1.0" / "cancelled_while_queued.jsonl")
    return ledger


def test_facts_of_a_time_come_in_its_order(mixed: Ledger) -> None:
    found = mixed.facts(since_ms=EPOCH_MS).items
    assert [fact.recorded_at_ms - EPOCH_MS for fact in found] == [0, 1_000, 1_000, 1_000, 1_000, 2_000, 3_000]
    assert [fact.position for fact in found if fact.recorded_at_ms == EPOCH_MS + 1_000] == [1, 5, 6, 7]
    assert [fact.position for fact in mixed.facts().items] == [1, 2, 3, 4, 5, 6, 7]


def test_pages_of_a_time_leave_nothing_out_and_repeat_nothing(mixed: Ledger) -> None:
    whole = [fact.position for fact in mixed.facts(since_ms=EPOCH_MS, until_ms=EPOCH_MS + 3_000).items]
    found: list[int | None] = []
    after = None
    while True:
        page = mixed.facts(since_ms=EPOCH_MS, until_ms=EPOCH_MS + 3_000, limit=2, after=after)
        found += [fact.position for fact in page.items]
        after = page.next
        if after is None:
            break
    assert found == whole == [4, 1, 5, 6, 7, 2]


def test_a_position_goes_on_by_positions(mixed: Ledger) -> None:
    assert [fact.position for fact in mixed.facts(since_ms=EPOCH_MS, after="5").items] == [6, 7]


@pytest.mark.parametrize("cursor", ["1.", ".", "a.1", "1.a", "1.1.1", "-1.1"])
def test_a_cursor_that_is_none_is_refused(mixed: Ledger, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        mixed.facts(since_ms=0, after=cursor)


def test_a_cursor_of_a_time_goes_with_no_other_filter(mixed: Ledger) -> None:
    with pytest.raises(InvalidCursor):
        mixed.facts(project="books", after="1.1")

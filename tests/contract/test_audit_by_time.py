"""The audit trail by time: in the order of time, also where positions tell another one (R14.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runfacts import InvalidCursor, Ledger
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.stores import audit
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


@pytest.mark.parametrize("few", [0, audit.FEW], ids=["along time", "put in order"])
@pytest.mark.parametrize(
    ("asked", "positions"),
    [
        ({"project": "books"}, [4, 5, 6, 7]),
        ({"project": "default"}, [1, 2, 3]),
        ({"actor_id": "ana"}, [4, 1, 5, 6, 7, 2, 3]),
        ({"types": "run.created"}, [4, 1, 2, 3]),
        ({"types": ["run.created", "run.queued"]}, [4, 1, 5, 2, 3]),
        ({"types": "run.created", "project": "default"}, [1, 2, 3]),
        ({"until_ms": EPOCH_MS + 2_000, "types": "run.created"}, [4, 1]),
        ({"project": "nobody"}, []),
    ],
)
def test_with_something_else_the_order_is_that_of_time_too(
    mixed: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    few: int,
    asked: dict[str, Any],
    positions: list[int],
) -> None:
    monkeypatch.setattr(audit, "FEW", few)
    assert [fact.position for fact in mixed.facts(since_ms=EPOCH_MS, **asked).items] == positions
    found: list[int | None] = []
    after: str | None = None
    while not found or after is not None:
        page = mixed.facts(since_ms=EPOCH_MS, **asked, limit=1, after=after)
        found += [fact.position for fact in page.items]
        after = page.next
        if not page.items:
            break
    assert found == positions


def test_a_run_of_a_time_is_in_its_own_order(mixed: Ledger) -> None:
    (run_id,) = {fact.run_id for fact in mixed.facts(project="books").items}
    found = mixed.facts(run_id=run_id, since_ms=EPOCH_MS + 1_000).items
    assert [fact.sequence for fact in found] == [2, 3, 4]


def test_what_has_many_facts_is_looked_for_along_time(mixed: Ledger) -> None:
    """Otherwise a page would cost what was recorded before that time, or all that the other one has."""
    names = frozenset({"since_ms", "after", "after_ms", "project", "actor_id", "types"})
    statement = audit._statement(names, by_time=True, along_time=mixed.database.dialect == SQLITE)
    values = {"project": "p", "actor_id": "a", "types": ["t"], "since_ms": 0, "after": 1, "after_ms": 0, "limit": 9}
    compiled = statement.compiled(mixed.database.dialect)
    with mixed.database.engine.connect() as connection:
        bound = dict(compiled.bind(values))
        if mixed.database.dialect == SQLITE:
            lines = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled.text}", bound)]
            assert "USING INDEX ix_facts_recorded_at_ms_position" in lines[0]
            assert not any("TEMP B-TREE" in line for line in lines)
        else:
            # What it would do if sorting cost everything: that there is a way along time.
            connection.exec_driver_sql("SET LOCAL enable_sort = off")
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
            plan = "\n".join(row[0] for row in connection.exec_driver_sql(f"EXPLAIN {compiled.text}", bound))
            assert "ix_facts_recorded_at_ms_position" in plan
            assert "Sort" not in plan


def test_a_position_goes_on_by_positions(mixed: Ledger) -> None:
    assert [fact.position for fact in mixed.facts(since_ms=EPOCH_MS, after="5").items] == [6, 7]


@pytest.mark.parametrize("cursor", ["1.", ".", "a.1", "1.a", "1.1.1", "-1.1"])
def test_a_cursor_that_is_none_is_refused(mixed: Ledger, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        mixed.facts(since_ms=0, after=cursor)


def test_a_cursor_of_a_time_goes_with_no_other_filter(mixed: Ledger) -> None:
    with pytest.raises(InvalidCursor):
        mixed.facts(project="books", after="1.1")

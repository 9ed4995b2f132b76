"""The rows of projections, without their generation."""

from __future__ import annotations

from typing import Any

from runfacts import Ledger
from runfacts.testing.ledgers import contents_of

VIEWS = ("statistics_runs", "statistics", "stop_proofs")


def rows_of(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """Give every row of every view; insist that each view has one generation."""
    contents = contents_of(ledger)
    for view in VIEWS:
        assert len({row[0] for row in contents[view]}) <= 1, view
    return {view: [row[1:] for row in contents[view]] for view in VIEWS}


def live_rows_of(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """Give every row that is read, where other generations may be left."""
    contents = contents_of(ledger)
    live = {row[0]: row[1] for row in contents["projections"] if row[2] == "live"}
    numbers = {
        "statistics_runs": live["statistics"],
        "statistics": live["statistics"],
        "stop_proofs": live["stop_proof"],
    }
    return {view: [row[1:] for row in contents[view] if row[0] == numbers[view]] for view in VIEWS}


def rebuilt_rows_of(ledger: Ledger) -> dict[str, list[tuple[Any, ...]]]:
    """Give the rows after a rebuild of every projection."""
    for health in ledger.projections():
        ledger.rebuild(health.projection)
    return rows_of(ledger)

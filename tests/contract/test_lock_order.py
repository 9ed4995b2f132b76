"""Whatever a command does, it takes its rows in one order: dispatch, claim, execution, Run, Attempt (R4.1, R4.4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from every_command import ALONE, COMMANDS, Act
from runfacts import Ledger
from runfacts.infrastructure.database.combined import CombinedTransaction
from runfacts.infrastructure.database.statements import Parameters, Statement
from runfacts.infrastructure.database.transactions import Change, Transaction
from runfacts.testing.ledgers import ThrowAwayLedgers

ORDER = ("cancellation_dispatches", "recovery_claims", "executions", "runs", "attempts")
"""Rows that are inserted are exempt: nobody else can wait for them before the commit."""
UPDATED = re.compile(r"UPDATE (\w+) ")


@pytest.mark.parametrize("prepare", COMMANDS + ALONE, ids=lambda prepare: prepare.__name__)
def test_rows_are_updated_in_the_order_of_locks(
    ledger_factory: ThrowAwayLedgers, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[Ledger], Act]
) -> None:
    ledger = ledger_factory()
    act = prepare(ledger_factory())
    written: list[Sequence[Change]] = []
    for kind in (Transaction, CombinedTransaction):
        write = kind.write

        def watched(
            self: Transaction,
            changes: Sequence[Change],
            append: Statement,
            facts: Sequence[Parameters],
            write: Callable[..., list[int]] = write,
        ) -> list[int]:
            written.append(changes)
            return write(self, changes, append, facts)

        monkeypatch.setattr(kind, "write", watched)
    act(ledger, None)
    (changes,) = written
    texts = [change.statement.compiled(ledger.database.dialect).text for change in changes]
    tables = [found[1] for text in texts if (found := UPDATED.match(text)) is not None]
    assert tables == sorted(tables, key=ORDER.index)
    assert len(tables) == len(set(tables))

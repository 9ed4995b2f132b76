"""What SQLite says without a code of its own, in our words (R4.4)."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from runfacts.domain.errors import DatabaseCorrupt
from runfacts.infrastructure.database.errors import translate


def test_a_missing_table_is_damage() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute("SELECT 1 FROM runs")
        answer = translate(caught.value)
    assert isinstance(answer, DatabaseCorrupt)
    assert str(answer) == "a table of the ledger is missing"

"""Reading Runs back: rows and payloads alone, and the product's history, replayed into its aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.ledger_sides import begin_runs, open_ledger
from runfacts.domain.payloads import FACT_TYPES
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.stores.facts import SELECT_HISTORY, read_history

_RUNS: Final = 100
_FACTS: Final = 7
_TYPE: Final = 3
_PAYLOAD: Final = 13


@dataclass(slots=True)
class Reading:
    """Reads the Runs of its ledger one after the other; a step counts for a Run's facts."""

    ledger: Ledger
    run_ids: Sequence[str]
    read: Callable[[Ledger, str], int]

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        for number in range(steps):
            yield self.read(self.ledger, self.run_ids[number % len(self.run_ids)])

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()


def replayed(url: str) -> Reading:
    """Open the side that reads, decodes and replays."""
    return _opened(url, _replay)


def decoded(url: str) -> Reading:
    """Open the side that reads rows and lets pydantic make payloads of them, and nothing else."""
    return _opened(url, _decode)


def _opened(url: str, read: Callable[[Ledger, str], int]) -> Reading:
    ledger = open_ledger(url)
    return Reading(ledger, [claim.run_id for claim in begin_runs(ledger, _RUNS, 1)], read)


def _replay(ledger: Ledger, run_id: str) -> int:
    with ledger.database.reading() as reading:
        history = read_history(reading, run_id)
    if history is None or history.version != _FACTS:
        raise RuntimeError("a Run of the bench is not as it was written")
    return _FACTS


def _decode(ledger: Ledger, run_id: str) -> int:
    with ledger.database.reading() as reading:
        rows: Sequence[Any] = reading.rows(SELECT_HISTORY, {"run_id": run_id})
    payloads = [FACT_TYPES[row[_TYPE]].model_validate_json(row[_PAYLOAD]) for row in rows]
    return len(payloads)

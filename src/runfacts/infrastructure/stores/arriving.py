"""
A Run of an archive on its way in: followed fact by fact, kept aside, and written whole or not at all (R14.2).

While lines come in nothing is written and no connection is held: the source may be slow. Each fact is checked against
all that came before it, as ``verify`` would, and kept as a row in a temporary file, which stays in memory while it is
small; so a Run of any length takes bounded memory. What is written in the end is one transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Final

from eventsourcing.domain import EventSourcingError

from runfacts.domain.archives import Parsed
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.domain.lifecycle import RUN_WITH_ATTEMPT
from runfacts.domain.payloads import RunCreated
from runfacts.domain.views import Difference
from runfacts.infrastructure.stores.differences import LedgerTracker
from runfacts.infrastructure.stores.facts import fact_row

_IN_MEMORY: Final = 1 << 20
_BATCH: Final = 100

Row = dict[str, str | int | None]


class ArrivingRun:
    """One Run's facts as they come."""

    def __init__(self, first: Parsed) -> None:
        """Begin with nothing taken in; ``first`` says which Run it is."""
        self.run_id = first.fact.run_id
        self.history = History(first.fact.run_id, first.fact.project)
        self.uncertain: set[str] = set()
        """Aggregates with facts that this release does not know."""
        self.wrong: tuple[int, str] | None = None
        """The first line that is wrong, and why."""
        self._announced = first.run_version
        self._tracker = LedgerTracker(first.fact.run_id)
        self._rows = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by close()

    @property
    def complete(self) -> bool:
        """Whether all facts are there that the archive has of the Run; not known where it does not say how many."""
        return self._announced is not None and self.history.version == self._announced

    def close(self) -> None:
        """Forget what was kept aside."""
        self._rows.close()

    def refuse(self, line: int, reason: str) -> None:
        """Note what is wrong with it; the first thing counts."""
        self.wrong = self.wrong or (line, reason)

    def take(self, parsed: Parsed, line: int) -> None:
        """Check the next fact against all before it, and keep it."""
        fact = parsed.fact
        if self.wrong is not None:
            return
        if parsed.run_version != self._announced:
            self.refuse(line, "says another number of facts of the run than the lines before it")
        elif fact.sequence == 1 and type(fact.payload) is not RunCreated:
            self.refuse(
                line, f"the first fact is {fact.type} of version {fact.schema_version}, which creates no run here"
            )
        else:
            for found in self._tracker.follow(fact):
                self.refuse(line, _words(found))
        if self.wrong is None:
            self._keep(fact, line)

    def end(self, line: int) -> None:
        """No more facts of it come: see that it is whole and makes sense."""
        if self.wrong is not None:
            return
        if self._announced is not None and not self.complete:
            self.refuse(line, f"the archive ends after fact {self.history.version} of {self._announced}")
        run = self.history.run
        if not self.uncertain and self.history.active_attempt is not None and run.status not in RUN_WITH_ATTEMPT:
            self.refuse(line, f"an attempt is active although the run is {run.status}")

    def batches(self) -> Iterator[list[Row]]:
        """Give the rows of all facts, some at a time."""
        self._rows.seek(0)
        while rows := [json.loads(text) for text in islice(self._rows, _BATCH)]:
            yield rows

    def _keep(self, fact: Fact, line: int) -> None:
        try:
            # Without its key a history does not remember the whole fact.
            self.history.take(fact if fact.dedupe_key is None else replace(fact, dedupe_key=None))
        except (EventSourcingError, LookupError) as error:
            self.refuse(line, f"makes no history: {error}")
            return
        if not fact.known:
            self.uncertain.add(fact.aggregate_id)
        self._rows.write(json.dumps(fact_row(fact)).encode() + b"\n")


def _words(found: Difference) -> str:
    return f"fact {found.sequence}: {found.field} is {found.recorded}, not {found.recomputed}"

"""Replay: what was true of a Run at any of its moments (R14.2)."""

from __future__ import annotations

from collections.abc import Iterator

from eventsourcing.domain import EventSourcingError

from runfacts.domain.errors import DatabaseCorrupt, InvalidValue, RunNotFound
from runfacts.domain.facts import Fact
from runfacts.domain.ids import canonical_id
from runfacts.domain.limits import TIME_MAX
from runfacts.domain.replay import PastRun, Replay
from runfacts.infrastructure.api.core import LedgerCore
from runfacts.infrastructure.stores.fact_pages import facts_page_by_page
from runfacts.infrastructure.stores.heads import read_head


class Replays(LedgerCore):
    """Replay Runs."""

    def facts_of(self, run_id: str) -> Iterator[Fact]:
        """Give all facts of a Run, by sequence, page by page in bounded memory (``RunNotFound``).

        They are those that are recorded when the first one is asked for.
        """
        run_id = canonical_id("run id", run_id)
        with self._database.reading() as reading:
            head = read_head(reading, run_id)
        if head is None:
            raise RunNotFound(run_id)
        yield from facts_page_by_page(self._database, run_id, head.version)

    def replay(self, run_id: str, *, sequence: int | None = None, at_ms: int | None = None) -> PastRun:
        """Give a Run as it stood after its fact number ``sequence``, or at a moment; by default after the latest.

        What was recorded at ``at_ms`` itself is included. Raises ``RunNotFound``; ``InvalidValue`` where both are
        given, where there is no such fact, and for a moment before the first one.
        """
        run_id = canonical_id("run id", run_id)
        if sequence is not None and at_ms is not None:
            raise InvalidValue("sequence", "and at_ms name two moments; give one of them")
        if at_ms is not None and not -TIME_MAX < at_ms < TIME_MAX:
            raise InvalidValue("at_ms", "is no moment in milliseconds")
        with self._database.reading() as reading:
            head = read_head(reading, run_id)
        if head is None:
            raise RunNotFound(run_id)
        if sequence is not None and not 1 <= sequence <= head.version:
            raise InvalidValue("sequence", f"is none of 1 to {head.version}, which are recorded of run {run_id}")
        replay: Replay | None = None
        try:
            for fact in facts_page_by_page(self._database, run_id, sequence or head.version):
                if at_ms is not None and fact.recorded_at_ms > at_ms:
                    break
                replay = replay or Replay.begun_by(fact)
                replay.take(fact)
            if replay is None:
                raise InvalidValue("at_ms", f"is before the first fact of run {run_id}")
            return replay.state()
        except (EventSourcingError, LookupError) as error:
            raise DatabaseCorrupt(
                f"what is recorded of run {run_id} makes no history; `runfacts verify` names what is wrong"
            ) from error

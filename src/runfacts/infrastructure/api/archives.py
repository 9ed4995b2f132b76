"""Archives of Runs: whole envelopes out, and in again (R14.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO, Final

from runfacts.domain.actors import Actor
from runfacts.domain.archives import (
    LINE_MAX,
    AlreadyImported,
    BadLine,
    Imported,
    Line,
    NotImported,
    Parsed,
    line_of,
    parse,
)
from runfacts.domain.errors import Contended, OutcomeUnknown, RunNotFound
from runfacts.domain.history import Draft, RecordedBy
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import TERMINAL_RUN
from runfacts.domain.payloads import RunImported
from runfacts.domain.views import Head
from runfacts.infrastructure.api.core import LedgerCore
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.database.wakeups import FACTS
from runfacts.infrastructure.stores.arriving import ArrivingRun, Row
from runfacts.infrastructure.stores.fact_pages import facts_page_by_page
from runfacts.infrastructure.stores.facts import fact_row
from runfacts.infrastructure.stores.heads import compare_head, read_head
from runfacts.infrastructure.stores.imported_rows import insert_run
from runfacts.infrastructure.stores.verify import run_ids

_PASSING: Final = frozenset({"deadlock", "serialization"})
_KEY: Final = "uq_runs_project_idempotency_key"


class Archives(LedgerCore):
    """Export Runs and import them."""

    def export_runs(
        self, run_ids: Iterable[str] = (), *, progress: Callable[[int, int], None] | None = None
    ) -> Iterator[Line]:
        """Give whole facts, each as a JSON object, of some Runs or of all: an archive, one object a line.

        The Runs are those that are there at the start, each as it is when its first fact is given; all of ``run_ids``
        are looked for before anything is given (``RunNotFound``). In bounded memory, holding nothing that a writer
        would wait for. ``progress`` is told, Run by Run, how many Runs and facts have been given.
        """
        wanted = list(dict.fromkeys(canonical_id("run id", run_id) for run_id in run_ids))
        for run_id in wanted:
            if self._head(run_id) is None:
                raise RunNotFound(run_id)
        return self._export(wanted, progress)

    def _export(self, wanted: list[str], progress: Callable[[int, int], None] | None) -> Iterator[Line]:
        seen = 0
        for number, run_id in enumerate(wanted or run_ids(self._database), start=1):
            head = self._head(run_id)
            if head is None:
                continue
            for fact in facts_page_by_page(self._database, run_id, head.version):
                yield line_of(fact, head.version)
            seen += head.version
            if progress is not None:
                progress(number, seen)

    def import_runs(
        self, archive: IO[bytes], *, actor: Actor, as_archive: bool = False
    ) -> Iterator[Imported | AlreadyImported | NotImported]:
        """Take Runs in from an archive, each whole and in a transaction of its own, and say of each what came of it.

        A Run is refused, and nothing of it is written, when its facts are not what some ledger recorded: hash chain,
        sequences, versions, transitions, dedupe keys, payloads, or an end that is missing; when another history is
        recorded here under its id or its idempotency key is taken; and when it has not ended, unless ``as_archive``:
        then ``actor`` records ``run.imported``, and nobody here executes it. A Run that is here already with these
        facts is left as it is, so an import can be repeated. Positions are new. Facts of types that this release does
        not know are kept. Nothing happens until the answers are asked for.
        """
        arriving: ArrivingRun | None = None
        number = 0
        try:
            for number, parsed in _lines(archive):
                same = isinstance(parsed, Parsed) and arriving is not None and arriving.run_id == parsed.fact.run_id
                if isinstance(parsed, str) and arriving is not None and not arriving.complete:
                    # Nobody can say what stood there.
                    arriving.refuse(number, parsed)
                    continue
                if arriving is not None and not same:
                    yield self._arrived(arriving, number - 1, actor, as_archive=as_archive)
                    arriving = None
                if isinstance(parsed, str):
                    yield NotImported(None, number, parsed)
                    continue
                arriving = arriving or ArrivingRun(parsed)
                arriving.take(parsed, number)
            if arriving is not None:
                yield self._arrived(arriving, number, actor, as_archive=as_archive)
        finally:
            if arriving is not None:
                arriving.close()

    def _arrived(
        self, run: ArrivingRun, line: int, actor: Actor, *, as_archive: bool
    ) -> Imported | AlreadyImported | NotImported:
        """Write a Run that came in, or say why not."""
        try:
            run.end(line)
            if run.wrong is not None:
                return NotImported(run.run_id, *run.wrong)
            head = Head(run.run_id, run.history.version, run.history.head_hash)
            with self._database.reading() as reading:
                there = _there(reading, head, line)
                now_ms = reading.now_ms()
            if there is not None:
                return there
            batches = run.batches
            if run.history.run.status not in TERMINAL_RUN:
                if not as_archive:
                    return NotImported(run.run_id, line, f"the run has not ended, it is {run.history.run.status}")
                rows = [
                    fact_row(fact) for fact in run.history.record([Draft(RunImported())], RecordedBy(actor, now_ms))
                ]
                batches = lambda: chain(run.batches(), [rows])  # noqa: E731 - the same, and one more
            return self._written(run, head, line, batches)
        finally:
            run.close()

    def _written(
        self, run: ArrivingRun, head: Head, line: int, batches: Callable[[], Iterator[list[Row]]]
    ) -> Imported | AlreadyImported | NotImported:
        """Write a Run in one transaction, and again where that was undone by no fault of its own (R4.3, R4.6)."""
        driver = self._database.engine.dialect.loaded_dbapi
        imported = Imported(run.run_id, run.history.version)
        sent = False
        for _ in range(self._settings.decide_retries + 1):
            try:
                with self._database.transaction() as transaction:
                    there = _there(transaction, head, line)
                    if there is None:
                        insert_run(transaction, run.history, run.uncertain, batches())
            except LostRace as race:
                if race.constraint not in _PASSING and self._head(run.run_id) is None:
                    return NotImported(run.run_id, line, _taken(race.constraint))
            except OutcomeUnknown:
                sent = True
            except (driver.IntegrityError, driver.DataError):
                return NotImported(run.run_id, line, "its state is none that a run can be in")
            else:
                if there is not None and not (sent and isinstance(there, AlreadyImported)):
                    return there
                self._database.wakeups(FACTS).announce()
                return imported
        raise Contended(run.run_id, self._settings.decide_retries + 1)

    def _head(self, run_id: str) -> Head | None:
        with self._database.reading() as reading:
            return read_head(reading, run_id)


def _there(reading: Reading, head: Head, line: int) -> AlreadyImported | NotImported | None:
    """Compare a Run with what is recorded under its id; None where nothing is."""
    recorded = read_head(reading, head.run_id)
    if recorded is None:
        return None
    if recorded.version < head.version:
        return NotImported(head.run_id, line, f"the run is recorded here with {recorded.version} facts only")
    if compare_head(reading, head) is not None:
        return NotImported(head.run_id, line, "the run is recorded here with another history")
    return AlreadyImported(head.run_id, recorded.version)


def _taken(constraint: str) -> str:
    if constraint == _KEY:
        return "another run of its project has its idempotency key here"
    return "an id of its own is recorded here as another run's"


def _lines(archive: IO[bytes]) -> Iterator[tuple[int, Parsed | str]]:
    """Give each line's number and what it says, or why it says nothing; empty lines are none."""
    number = 0
    while text := archive.readline(LINE_MAX + 1):
        number += 1
        if len(text) > LINE_MAX:
            while text and not text.endswith(b"\n"):
                text = archive.readline(LINE_MAX)
            yield number, f"the line is longer than {LINE_MAX} bytes"
        elif text.strip():
            try:
                yield number, parse(text)
            except BadLine as error:
                yield number, f"the line {error}"

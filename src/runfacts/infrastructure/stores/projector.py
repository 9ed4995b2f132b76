"""
The runner of projections: brings facts into views, exactly once (R1.4, R14.1).

A page of facts is read in order (R3.9) and folded without holding anything; one short transaction then advances the
checkpoint and writes the view. That transaction is the tracking of ``eventsourcing``'s projections with two
differences: a page of facts shares one commit, and the checkpoint also says which fact it was (R3.9) and of which
generation. The package's own runner commits once for each fact and knows one generation; following a ledger with it
works too (``persistence.py``), but a view of millions of facts is not built that way.

Any number of runners may work on one ledger: whose page is not the next one any more loses, and reads again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy import bindparam, select

from runfacts.domain.errors import Contended, DatabaseBusy, RebuildOvertaken
from runfacts.domain.facts import Fact
from runfacts.domain.feeds import Checkpoint
from runfacts.domain.projecting import Projected, ProjectionName, Rebuilt, Retried
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.projection_tables import GenerationState
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts as facts_table
from runfacts.infrastructure.database.transactions import Reading, Transaction
from runfacts.infrastructure.stores import generations
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of
from runfacts.infrastructure.stores.generations import Generation, live_of, read_generations
from runfacts.infrastructure.stores.ordered import OrderedReader
from runfacts.infrastructure.stores.projection_views import SWEEP_PAGE, VIEWS, View
from runfacts.projections.folding import Fold

LIVE_PAGE: Final = 500
"""Facts that are brought into a live view at once: other writers wait for such a transaction on SQLite."""
REBUILD_PAGE: Final = 4_000
_RETRIED_RUNS: Final = 50
_RACES_MAX: Final = 100
_BUSY_MAX: Final = 20

Stopping = Callable[[], bool]


def never() -> bool:
    """Nobody asked to stop."""
    return False


class Projector:
    """Brings facts into one projection."""

    def __init__(self, database: Database, reader: OrderedReader, name: ProjectionName) -> None:
        """Read facts with ``reader``."""
        self._database = database
        self._reader = reader
        self._view: View = VIEWS[name]
        self._name = name

    def catch_up(self, stopping: Stopping = never) -> Projected:
        """Bring the live view up to the facts that can be read now; ``stopping`` ends it after a page."""
        done = Projected()
        races = 0
        while True:
            one = self._live()
            try:
                page, _ = self._page(one, LIVE_PAGE)
            except LostRace:
                # Somebody else brings it up to date.
                races += 1
                if races == _RACES_MAX:
                    break
                continue
            done += page
            if page.seen < LIVE_PAGE or stopping():
                break
        return done

    def rebuild(self, progress: Callable[[int], None] | None = None) -> Rebuilt:
        """Build another generation beside the live view, then put it in its place (``RebuildOvertaken``)."""
        began_s = time.monotonic()
        self._live()
        self._sweep_all()
        one = self._begin()
        done = Projected()
        busy = 0
        try:
            while True:
                try:
                    page, one = self._page(one, REBUILD_PAGE)
                except DatabaseBusy:
                    # What was built so far is worth more than a page's wait.
                    busy += 1
                    if busy == _BUSY_MAX:
                        raise
                    continue
                busy = 0
                done += page
                if progress is not None:
                    progress(done.seen)
                if page.seen < REBUILD_PAGE and self._swap(one):
                    break
        except LostRace:
            raise RebuildOvertaken(self._name.value) from None
        self._sweep_all()
        return Rebuilt(self._name, done.seen, time.monotonic() - began_s, done.set_aside, done.unknown)

    def retry(self) -> Retried:
        """Try again what the live view has set aside, Run by Run."""
        applied, after = 0, ""
        while True:
            one = self._live()
            with self._database.reading() as reading:
                given = {**one.key, "after": after, "limit": _RETRIED_RUNS}
                run_ids = [str(row[0]) for row in reading.rows(generations.SELECT_ASIDE_RUNS, given)]
            for run_id in run_ids:
                applied += self._retry_run(run_id)
            if len(run_ids) < _RETRIED_RUNS:
                break
            after = run_ids[-1]
        with self._database.reading() as reading:
            left = int(reading.rows(generations.COUNT_ASIDE, self._live().key)[0][0])
        return Retried(self._name, applied, left)

    def sweep(self) -> bool:
        """Delete a page of what is not read any more; whether there was something."""
        with self._database.reading() as reading:
            known = read_generations(reading, self._name)
        dropped = next((one for one in known if one.state is GenerationState.DROPPED), None)
        if dropped is None:
            return False
        with self._database.transaction() as transaction:
            transaction.run(generations.DELETE_ASIDE, dropped.key)
            gone = [transaction.run(sweep, {"generation": dropped.number}) for sweep in self._view.sweeps]
            if max(gone) < SWEEP_PAGE:
                transaction.run(generations.DELETE_GENERATION, dropped.key)
        return True

    def _sweep_all(self) -> None:
        while self.sweep():
            pass

    def _live(self) -> Generation:
        """Give the live generation; make the first one."""
        while True:
            with self._database.reading() as reading:
                live = live_of(read_generations(reading, self._name))
            if live is not None:
                return live
            with self._database.transaction() as transaction:
                row = generations.new_row(self._name, 1, GenerationState.LIVE, transaction.now_ms())
                transaction.run(generations.INSERT_LIVE, row)

    def _page(self, one: Generation, limit: int) -> tuple[Projected, Generation]:
        """Bring a page of facts into a generation, and give it as it is then (``LostRace``)."""
        facts = self._reader.read(one.checkpoint, limit).facts
        if not facts:
            return Projected(), one
        run_ids = sorted({fact.run_id for fact in facts})
        with self._database.reading() as reading:
            fold = self._fold(reading, one, run_ids)
        for fact in facts:
            fold.take(fact)
        with self._database.transaction() as transaction:
            now_ms = transaction.now_ms()
            to = Checkpoint.of(facts[-1])
            generations.advance(transaction, one, to=to, facts=len(facts), unknown=fold.unknown, now_ms=now_ms)
            self._write(transaction, one, fold)
            generations.put_aside(transaction, one, fold.aside, now_ms)
        after = replace(one, version=one.version + 1, checkpoint=to)
        return Projected(len(facts), len(fold.aside), fold.unknown), after

    def _fold(self, reading: Reading, one: Generation, run_ids: Sequence[str]) -> Fold[object]:
        given = {**one.key, "run_ids": run_ids}
        blocked = [str(row[0]) for row in reading.rows(generations.SELECT_BLOCKED, given)]
        return Fold(self._view.projection, self._view.standing(reading, one.number, run_ids), blocked)

    def _write(self, transaction: Transaction, one: Generation, fold: Fold[object]) -> None:
        changed = {run_id: fold.runs[run_id] for run_id in fold.changed}
        self._view.write(transaction, one.number, changed, fold.totals)

    def _retry_run(self, run_id: str) -> int:
        """Apply what is set aside of a Run, until one cannot be applied; how many were."""
        for _ in range(_RACES_MAX):
            one = self._live()
            try:
                return self._try_run(one, run_id)
            except LostRace:
                continue
        raise Contended(run_id, _RACES_MAX)

    def _try_run(self, one: Generation, run_id: str) -> int:
        with self._database.reading() as reading:
            aside = self._aside_of(reading, one, run_id)
            fold = Fold(self._view.projection, self._view.standing(reading, one.number, [run_id]))
        applied = [fact for fact in aside if fold.take(fact)]
        with self._database.transaction() as transaction:
            now_ms = transaction.now_ms()
            generations.advance(transaction, one, to=one.checkpoint, facts=0, unknown=fold.unknown, now_ms=now_ms)
            self._write(transaction, one, fold)
            transaction.run_many(
                generations.DELETE_ONE_ASIDE, [{**one.key, "position": fact.position} for fact in applied]
            )
            transaction.run_many(
                generations.TRIED_ASIDE,
                [{**one.key, "position": item.position, "reason": item.reason} for item in fold.aside],
            )
        return len(applied)

    def _aside_of(self, reading: Reading, one: Generation, run_id: str) -> list[Fact]:
        given = {**one.key, "run_id": run_id}
        positions = {row[0] for row in reading.rows(generations.SELECT_ASIDE_OF_RUN, given)}
        rows = reading.rows(SELECT_FACTS_OF_RUN, {"run_id": run_id})
        return [fact_of(row) for row in rows if row[0] in positions]

    def _begin(self) -> Generation:
        """Make a generation to be built; one that somebody else builds is overtaken."""
        with self._database.transaction() as transaction:
            known = read_generations(transaction, self._name)
            for other in known:
                if other.state is GenerationState.BUILDING:
                    self._drop(transaction, other)
            number = max((one.number for one in known), default=0) + 1
            row = generations.new_row(self._name, number, GenerationState.BUILDING, transaction.now_ms())
            transaction.run(generations.INSERT_GENERATION, row)
        return Generation(self._name, number, GenerationState.BUILDING, 0, None, 0, 0)

    def _swap(self, one: Generation) -> bool:
        """Put a generation in the place of the live one, unless that has taken in more."""
        with self._database.transaction() as transaction:
            live = live_of(read_generations(transaction, self._name))
            if live is not None:
                # Locks it: what was brought into it before is seen from here on, and nothing more comes.
                _set_state(transaction, live, GenerationState.LIVE)
                now = next(item for item in read_generations(transaction, self._name) if item.number == live.number)
                if now.position > one.position and generations.still_holds(transaction, now):
                    return False
                self._drop(transaction, live)
            _set_state(transaction, one, GenerationState.LIVE)
        return True

    def _drop(self, transaction: Transaction, other: Generation) -> None:
        _set_state(transaction, other, GenerationState.DROPPED)


SELECT_FACTS_OF_RUN: Final = Statement(
    "select_facts_of_run",
    select(*FACT_COLUMNS).where(facts_table.c.run_id == bindparam("run_id")).order_by(facts_table.c.sequence),
)


def _set_state(transaction: Transaction, one: Generation, state: GenerationState) -> None:
    given = {**one.key, "old_state": one.state.value, "new_state": state.value}
    if transaction.run(generations.SET_STATE, given) != 1:
        raise LostRace(generations.SET_STATE.name)

"""
Many writers with rollbacks and slow commits, and readers beside them: nothing skipped, nothing twice (R3.9, R4.4).

Each writer picks a Run and lets it wait for an approval or go on, often in a transaction of its own that it then holds
open or rolls back, so that positions become visible in any order.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine

from followers import following
from runfacts import AttemptClaim, Checkpoint, Contended, DatabaseBusy, Fact, Ledger
from runfacts.infrastructure.database.engines import parse_url
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import WORKER, running

WRITERS = 8
RUNS = 24
ROLLED_BACK = 0.1
HELD = 0.08
HELD_S = 0.05


@pytest.fixture
def ledgers(database_url: str) -> Iterator[ThrowAwayLedgers]:
    """Opens ledgers on a fresh database of each kind."""
    with ThrowAwayLedgers(database_url) as ledgers:
        yield ledgers


class Writer(threading.Thread):
    """Writes until it is told to end."""

    def __init__(self, ledger: Ledger, url: str, claims: list[AttemptClaim], seed: int, end: threading.Event) -> None:
        super().__init__()
        self.ledger = ledger
        self.claims = claims
        self.random = random.Random(seed)  # noqa: S311 - a repeatable choice, no secret
        self.end = end
        self.engine = create_engine(parse_url(url))
        self.gaps = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Write."""
        try:
            while not self.end.is_set():
                try:
                    self.one()
                except (Contended, DatabaseBusy):
                    continue
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failure = error
        finally:
            self.engine.dispose()

    def one(self) -> None:
        """Write once, one way or the other."""
        claim = self.random.choice(self.claims)
        act = self.random.choice([self.ledger.wait_for_approval, self.ledger.go_on])
        # SQLite has one writer at a time: a transaction that is held open there only stops the others.
        if self.ledger.database.dialect == "sqlite" or self.random.random() < 0.5:
            act(claim, actor=WORKER)
            return
        with self.engine.connect() as connection:
            for _ in range(self.random.choice([1, 3])):
                act(claim, actor=WORKER, connection=connection)
            if self.random.random() < HELD:
                time.sleep(self.random.random() * HELD_S)
            if self.random.random() < ROLLED_BACK:
                connection.rollback()
                self.gaps += 1
            else:
                connection.commit()


class Pager(threading.Thread):
    """Reads page after page, small ones, and stores its checkpoint as text."""

    def __init__(self, ledger: Ledger, limit: int, end: threading.Event) -> None:
        super().__init__()
        self.ledger = ledger
        self.limit = limit
        self.end = end
        self.facts: list[Fact] = []
        self.waited = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Read to the end that there is when it is told to end."""
        try:
            stored: str | None = None
            while True:
                ending = self.end.is_set()
                after = None if stored is None else Checkpoint.parse(stored)
                page = self.ledger.feed(after, limit=self.limit)
                self.facts += page.facts
                self.waited += page.waiting is not None
                stored = None if page.checkpoint is None else str(page.checkpoint)
                if ending and not page.facts and page.waiting is None:
                    return
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failure = error


@pytest.mark.parametrize(
    "seconds", [2.0, pytest.param(30.0, marks=[pytest.mark.long, pytest.mark.timeout(300)])], ids=["short", "long"]
)
def test_readers_beside_many_writers_skip_nothing_and_repeat_nothing(ledgers: ThrowAwayLedgers, seconds: float) -> None:
    ledger = ledgers()
    claims = [running(ledger) for _ in range(RUNS)]
    written, read = threading.Event(), threading.Event()
    writers = [Writer(ledgers(), ledgers.url, claims, seed, written) for seed in range(WRITERS)]
    # Two of them share one ledger, and so one reader; the others have their own.
    shared = ledgers()
    pagers = [Pager(shared, 7, read), Pager(shared, 500, read), Pager(ledgers(), 50, read)]
    with following(ledgers()) as follower, following(shared, limit=3) as other:
        for thread in (*writers, *pagers):
            thread.start()
        time.sleep(seconds)
        written.set()
        for writer in writers:
            writer.join()
        read.set()
        for pager in pagers:
            pager.join()
        everything = _all_facts(ledger)
        for one in (follower, other):
            one.await_facts(len(everything))
    assert {writer.failure for writer in writers} == {None}
    assert {pager.failure for pager in pagers} == {None}
    assert len(everything) > RUNS * 8
    for facts in (*(pager.facts for pager in pagers), follower.facts, other.facts):
        assert [fact.position for fact in facts] == [fact.position for fact in everything]
        assert facts == everything
    by_run: dict[str, list[int]] = defaultdict(list)
    for fact in everything:
        by_run[fact.run_id].append(fact.sequence)
    for sequences in by_run.values():
        assert sequences == list(range(1, len(sequences) + 1))
    if ledger.database.dialect == "postgresql":
        # Else nothing was tried: there were holes, and readers met positions that were still open.
        assert sum(writer.gaps for writer in writers) > 0
        assert sum(pager.waited for pager in pagers) > 0


def _all_facts(ledger: Ledger) -> list[Fact]:
    facts: list[Fact] = []
    after = None
    while True:
        page = ledger.facts(limit=500, after=after)
        facts += page.items
        if page.next is None:
            return facts
        after = page.next

"""A backlog of Runs that nobody looks after any more, workers that drain it, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, local
from typing import Any

import psycopg
from sqlalchemy import text

from runfacts import Claimed, Ledger, RetryPolicy, Safety
from runfacts.domain.cancellation.supervisor import Diagnostic
from runfacts.domain.limits import Settings
from runfacts.domain.recovery.claims import ApplyAnswer, RecoveryApplied
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking
from runfacts.infrastructure.supervision import Supervision
from stages import ANA, WORKER

EXECUTOR = "cluster"
AGAIN = RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=0)
QUICK = {
    "evidence_timeout_ms": 1_000,
    "recovery_lease_ms": 3_000,
    "recovery_delay_ms": 200,
    "recovery_delay_max_ms": 500,
    "recovery_page": 64,
    "interval_ms": 250,
}
"""Times as short as a slow machine allows."""


def abandon(ledger: Ledger, count: int) -> set[str]:
    """Leave Runs whose Attempts run under leases that have expired, every second to be tried again; the Attempts."""
    made = set()
    with ledger.database.engine.begin() as connection:
        for number in range(count):
            run_id = ledger.create(
                actor=ANA, task="t", policy=AGAIN if number % 2 else RetryPolicy(), connection=connection
            ).run.run_id
            ledger.queue(run_id, actor=ANA, connection=connection)
            claimed = ledger.claim(run_id, actor=WORKER, executor_type=EXECUTOR, connection=connection)
            assert isinstance(claimed, Claimed)
            ledger.start(claimed.claim, actor=WORKER, connection=connection)
            ledger.running(claimed.claim, actor=WORKER, connection=connection)
            made.add(claimed.claim.attempt_id)
        connection.execute(
            text("UPDATE executions SET lease_expires_at_ms = seen_at_ms + 1, recover_at_ms = seen_at_ms + 1")
        )
    return made


@dataclass
class NotRunning:
    """Says of every Attempt that it does not run, after a call with the number of the question."""

    first: Callable[[int], object] = lambda number: number
    executor_type: str = EXECUTOR
    required: frozenset[str] = frozenset()
    asked: Counter[str] = field(default_factory=Counter)
    keeps: bool = True
    """Whether it remembers what it was asked."""
    lock: Lock = field(default_factory=Lock)

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        del timeout_ms, cancelled
        with self.lock:
            self.asked[target.attempt_id if self.keeps else ""] += 1
            number = self.asked.total()
        self.first(number)
        return Evidence.not_running()


class TellingLedger(Ledger):
    """A ledger that remembers what it said is recorded, and knows in which threads something is being recorded."""

    told: list[str]
    here: local

    def apply_lost(self, *arguments: Any, **more: Any) -> ApplyAnswer:  # noqa: ANN401 - as they are
        """See ``RecoveryClaims``."""
        self.here.applying = True
        try:
            answer = super().apply_lost(*arguments, **more)
        finally:
            self.here.applying = False
        if isinstance(answer, RecoveryApplied):
            self.told.append(arguments[0].attempt_id)
        return answer

    @property
    def applying(self) -> bool:
        """Whether this thread is recording that an Attempt is lost."""
        return getattr(self.here, "applying", False)


class Drainer:
    """A worker with a ledger of its own."""

    def __init__(self, url: str, provider: NotRunning, **settings: int) -> None:
        self.ledger = TellingLedger.open(url, settings=Settings.from_sources(QUICK | settings, {}))
        self.ledger.told, self.ledger.here = [], local()
        self.failures: list[Diagnostic] = []
        self.cycles = 0
        self.supervisions = [self.supervision(provider)]

    def supervision(self, provider: NotRunning) -> Supervision:
        """Give one more worker on the same ledger."""
        return self.ledger.supervise(
            providers=[provider], local=False, on_diagnostic=self.failures.append, on_cycle=self._count
        )

    def start(self) -> None:
        """Begin."""
        for supervision in self.supervisions:
            supervision.start()

    @property
    def goes_on(self) -> bool:
        """Whether nobody has given up."""
        return all(supervision.running for supervision in self.supervisions)

    def close(self) -> None:
        """End all of it."""
        with suppress(Exception):
            for supervision in self.supervisions:
                assert supervision.stop(30_000)
        self.ledger.close()

    def _count(self, report: object) -> None:
        del report
        self.cycles += 1


def ask(url: str, question: str) -> list[Any]:
    """Ask the database itself."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(question).fetchall()


def drained(url: str, count: int) -> bool:
    """Whether every Run has come to its end, or to its next try, and nothing is left to be looked at."""
    decided = "SELECT count(*) FROM runs WHERE status = 'failed' OR (status = 'queued' AND active_attempt_id IS NULL)"
    open_rows = "SELECT count(*) FROM recovery_claims WHERE state <> 'resolved'"
    return ask(url, decided) == [(count,)] and ask(url, open_rows) == [(0,)]


def nothing_lost_and_nothing_doubled(ledger: Ledger, url: str, attempts: set[str], told: list[str]) -> None:
    """Insist that each Attempt was lost once and decided on once, as whoever recorded it was told."""
    lost = [row[0] for row in ask(url, "SELECT attempt_id FROM facts WHERE type = 'attempt.lost'")]
    assert len(lost) == len(attempts)
    assert set(lost) == attempts
    counts = dict(ask(url, "SELECT type, count(*) FROM facts GROUP BY type"))
    retried = len(attempts) // 2
    assert counts["run.lost"] == len(attempts)
    assert counts["run.failed"] == len(attempts) - retried
    # Each was queued before its first Attempt.
    assert counts["run.queued"] == len(attempts) + retried
    assert counts.get("run.recovery_manual", 0) == 0
    assert len(told) == len(set(told))
    assert set(told) <= attempts
    report = ledger.verify()
    assert report.clean, report.differences

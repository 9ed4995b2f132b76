"""
The opponent by hand: the same rows over the plain driver, with nothing in between.

One step is one transaction of three statements. It counts the report in ``executions``, moves the Run on in ``runs``
by compare-and-set of version and hash, and inserts the fact with its position and its chained hash. The tables,
indexes, constraints and triggers are those of the product's own migration, the session settings those of the
product's connections, and what is left in the database passes the ledger's own ``verify``.

It does less than a ledger must. It never reads: it knows from its own memory where each Run stands, whose execution
it is, and that nobody else writes. It checks no token, validates nothing, decides nothing, and on PostgreSQL trusts
its own clock. So a ratio of 1.0 would mean that all of that is free.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from benchmarks.by_hand import HandConnection
from benchmarks.ledger_sides import STEPS_PER_RUN, begin_runs, open_ledger
from runfacts.domain.answers import AttemptClaim
from runfacts.infrastructure.ledger import Ledger

_COUNT: Final = """
UPDATE executions SET callback_sequence = :callback_sequence
WHERE attempt_id = :attempt_id AND callback_sequence = :expected_sequence
"""
_MOVE: Final = """
UPDATE runs SET status = :status, version = :sequence, head_hash = :hash, updated_at_ms = :now_ms
WHERE run_id = :run_id AND version = :expected_version AND head_hash = :expected_hash
"""
_APPEND: Final = """
INSERT INTO facts (run_id, sequence, type, schema_version, project, attempt_id, actor_type, actor_id, recorded_at_ms,
                   payload, aggregate_id, aggregate_version, hash)
VALUES (:run_id, :sequence, :type, 1, :project, :attempt_id, 'worker', 'bench', :now_ms, '{}', :run_id,
        :aggregate_version, :hash)
RETURNING position
"""


@dataclass(slots=True)
class _Stand:
    """Where a Run stands, by heart."""

    run_id: str
    attempt_id: str
    project: str
    sequence: int
    aggregate_version: int
    callback_sequence: int
    hash: str


@dataclass(slots=True)
class HandWritten:
    """The side."""

    ledger: Ledger
    hand: HandConnection
    statements: tuple[str, str, str]

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        claims = begin_runs(self.ledger, steps, STEPS_PER_RUN)
        return self._steps([self._stand(claim) for claim in claims])

    def close(self) -> None:
        """See ``Side``."""
        self.hand.close()
        self.ledger.close()

    def _stand(self, claim: AttemptClaim) -> _Stand:
        history = self.ledger.history(claim.run_id)
        last, of_run = history[-1], [fact for fact in history if not fact.of_attempt]
        return _Stand(claim.run_id, claim.attempt_id, last.project, len(history), len(of_run), 1, last.hash)

    def _steps(self, stands: list[_Stand]) -> Iterator[int]:
        for stand in stands:
            for _ in range(STEPS_PER_RUN // 2):
                self._command(stand, "run.waiting_approval", "waiting_approval")
                yield 1
                self._command(stand, "run.running", "running")
                yield 1

    def _command(self, stand: _Stand, type_name: str, status: str) -> None:
        count, move, append = self.statements
        now_ms = time.time_ns() // 1_000_000
        sequence, version = stand.sequence + 1, stand.aggregate_version + 1
        text = (
            f'{stand.hash}{{"actor_id":"bench","actor_type":"worker","aggregate_id":"{stand.run_id}",'
            f'"aggregate_version":{version},"attempt_id":"{stand.attempt_id}","payload":{{}},'
            f'"project":{json.dumps(stand.project, ensure_ascii=False)},"recorded_at_ms":{now_ms},'
            f'"run_id":"{stand.run_id}","schema_version":1,"sequence":{sequence},"type":"{type_name}"}}'
        )
        parameters = {
            "callback_sequence": stand.callback_sequence + 1,
            "expected_sequence": stand.callback_sequence,
            "attempt_id": stand.attempt_id,
            "status": status,
            "sequence": sequence,
            "hash": sha256(text.encode()).hexdigest(),
            "now_ms": now_ms,
            "run_id": stand.run_id,
            "expected_version": stand.sequence,
            "expected_hash": stand.hash,
            "type": type_name,
            "project": stand.project,
            "aggregate_version": version,
        }
        self.hand.begin()
        counted = self.hand.execute(count, parameters).rowcount
        moved = self.hand.execute(move, parameters).rowcount
        position = self.hand.execute(append, parameters).fetchone()
        if (counted, moved) != (1, 1) or position is None:
            raise RuntimeError("a hand-written command of the bench found somebody else's rows")
        self.hand.commit()
        stand.sequence, stand.aggregate_version = sequence, version
        stand.callback_sequence += 1
        stand.hash = parameters["hash"]  # type: ignore[assignment]  # it is the text from above


def one_fact(url: str) -> HandWritten:
    """Open the side."""
    hand = HandConnection.opened(url)
    return HandWritten(open_ledger(url), hand, (hand.said(_COUNT), hand.said(_MOVE), hand.said(_APPEND)))

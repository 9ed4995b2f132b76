"""
The opponent of deliveries: the same rows over the plain driver.

A claim is one transaction with one statement: the dispatch becomes leased, if nobody was faster. A settle is another
with four: the dispatch becomes dispatched, if it is still leased to this term; the confirmation of the stop is due
when the host has had its time to report, if that is sooner; the Run moves on; the fact is inserted with its chained
hash, and what is left passes the ledger's own ``verify``. As ``sql_sides`` says of its commands, it
reads nothing and decides nothing: it knows by heart that the Run is running and which dispatch is whose.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from benchmarks.by_hand import HandConnection
from benchmarks.delivery_sides import OWNER, RESULT, Asked, ask_runs_to_stop
from benchmarks.ledger_sides import open_ledger
from runfacts.infrastructure.ledger import Ledger

_LEASE_MS: Final = 30_000
_REPORT_MS: Final = 30_000
_CLAIM: Final = """
UPDATE cancellation_dispatches
SET status = 'leased', version = 1, dispatch_count = 1, tries_since_rearm = 1, next_attempt_at_ms = NULL,
    due_at_ms = :expires_at_ms, lease_owner = :owner, lease_token_digest = :token_digest,
    lease_expires_at_ms = :expires_at_ms, lease_boot_id = :boot_id, lease_expires_boot_ms = :expires_boot_ms,
    updated_at_ms = :now_ms
WHERE run_id = :run_id AND version = 0 AND due_at_ms IS NOT NULL
"""
_SETTLE: Final = """
UPDATE cancellation_dispatches
SET status = 'dispatched', version = 2, next_attempt_at_ms = NULL, due_at_ms = NULL, lease_owner = NULL,
    lease_token_digest = NULL, lease_expires_at_ms = NULL, lease_boot_id = NULL, lease_expires_boot_ms = NULL,
    last_result = :result, last_dispatched_at_ms = :now_ms, updated_at_ms = :now_ms
WHERE run_id = :run_id AND version = 1 AND status = 'leased' AND lease_owner = :owner
  AND lease_token_digest = :token_digest
"""
_LOOK: Final = """
UPDATE recovery_claims
SET due_at_ms = CASE WHEN due_at_ms > :report_by_ms THEN :report_by_ms ELSE due_at_ms END,
    version = CASE WHEN due_at_ms > :report_by_ms THEN version + 1 ELSE version END
WHERE purpose = 'stop' AND kind = 'run' AND item_id = :run_id AND state = 'available'
"""
_MOVE: Final = """
UPDATE runs SET version = :sequence, head_hash = :hash, updated_at_ms = :now_ms
WHERE run_id = :run_id AND version = :expected_version AND head_hash = :expected_hash
"""
_APPEND: Final = """
INSERT INTO facts (run_id, sequence, type, schema_version, project, attempt_id, actor_type, actor_id, dedupe_key,
                   recorded_at_ms, payload, aggregate_id, aggregate_version, hash)
VALUES (:run_id, :sequence, 'run.cancel_dispatched', 1, 'default', :attempt_id, 'supervisor', :owner, :dedupe_key,
        :now_ms, :payload, :run_id, :aggregate_version, :hash)
RETURNING position
"""


@dataclass(frozen=True, slots=True)
class _Stand:
    """Where a Run stands, by heart."""

    run_id: str
    attempt_id: str
    sequence: int
    aggregate_version: int
    hash: str


@dataclass(slots=True)
class HandDeliveries:
    """The side."""

    ledger: Ledger
    hand: HandConnection
    statements: tuple[str, str, str, str, str]
    on_sqlite: bool

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        return self._steps([self._stand(asked) for asked in ask_runs_to_stop(self.ledger, steps)])

    def close(self) -> None:
        """See ``Side``."""
        self.hand.close()
        self.ledger.close()

    def _stand(self, asked: Asked) -> _Stand:
        history = self.ledger.history(asked.claim.run_id)
        of_run = sum(not fact.of_attempt for fact in history)
        return _Stand(asked.claim.run_id, asked.claim.attempt_id, len(history), of_run, history[-1].hash)

    def _steps(self, stands: list[_Stand]) -> Iterator[int]:
        for stand in stands:
            token_digest = sha256(stand.run_id.encode()).hexdigest()
            self._claim(stand, token_digest)
            self._settle(stand, token_digest)
            yield 1

    def _claim(self, stand: _Stand, token_digest: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        boot: dict[str, object] = {"boot_id": None, "expires_boot_ms": None}
        if self.on_sqlite:
            boot = {"boot_id": _BOOT_ID, "expires_boot_ms": time.monotonic_ns() // 1_000_000 + _LEASE_MS}
        parameters: dict[str, object] = {
            "run_id": stand.run_id,
            "owner": OWNER,
            "token_digest": token_digest,
            "expires_at_ms": now_ms + _LEASE_MS,
            "now_ms": now_ms,
        }
        self.hand.begin()
        claimed = self.hand.execute(self.statements[0], parameters | boot).rowcount
        self.hand.commit()
        if claimed != 1:
            raise RuntimeError("a hand-written claim of the bench found somebody else's row")

    def _settle(self, stand: _Stand, token_digest: str) -> None:
        _, settle, look, move, append = self.statements
        now_ms = time.time_ns() // 1_000_000
        sequence, version = stand.sequence + 1, stand.aggregate_version + 1
        dedupe_key = f"cancel-dispatch:{stand.attempt_id}:1"
        payload = (
            f'{{"attempt_id":"{stand.attempt_id}","dispatch_count":1,"escalation":"term","result":"{RESULT.value}"}}'
        )
        text = (
            f'{stand.hash}{{"actor_id":"{OWNER}","actor_type":"supervisor","aggregate_id":"{stand.run_id}",'
            f'"aggregate_version":{version},"attempt_id":"{stand.attempt_id}","dedupe_key":"{dedupe_key}",'
            f'"payload":{payload},"project":"default","recorded_at_ms":{now_ms},"run_id":"{stand.run_id}",'
            f'"schema_version":1,"sequence":{sequence},"type":"run.cancel_dispatched"}}'
        )
        parameters: dict[str, object] = {
            "run_id": stand.run_id,
            "attempt_id": stand.attempt_id,
            "owner": OWNER,
            "token_digest": token_digest,
            "result": RESULT.value,
            "now_ms": now_ms,
            "report_by_ms": now_ms + _REPORT_MS,
            "sequence": sequence,
            "aggregate_version": version,
            "expected_version": stand.sequence,
            "expected_hash": stand.hash,
            "dedupe_key": dedupe_key,
            "payload": payload,
            "hash": sha256(text.encode()).hexdigest(),
        }
        self.hand.begin()
        settled = self.hand.execute(settle, parameters).rowcount
        looked = self.hand.execute(look, parameters).rowcount
        moved = self.hand.execute(move, parameters).rowcount
        position = self.hand.execute(append, parameters).fetchone()
        if (settled, looked, moved) != (1, 1, 1) or position is None:
            raise RuntimeError("a hand-written settle of the bench found somebody else's rows")
        self.hand.commit()


_BOOT_ID: Final = str(uuid.UUID(int=0))


def pairs(url: str) -> HandDeliveries:
    """Open the side."""
    hand = HandConnection.opened(url)
    statements = (hand.said(_CLAIM), hand.said(_SETTLE), hand.said(_LOOK), hand.said(_MOVE), hand.said(_APPEND))
    return HandDeliveries(open_ledger(url), hand, statements, url.startswith("sqlite"))

"""
The opponent of recovery: the same rows over the plain driver.

That an Attempt is lost is one transaction with seven statements: the claim is still this term's; the execution is
closed; the Run and the Attempt move on, if nobody was faster; the Run's retry may be claimed; the two facts are
inserted with their chained hashes. The settle is another with two: the claim is resolved, and the execution has
nothing to be looked at for. What is left passes the ledger's own ``verify``. As ``sql_sides`` says of its commands, it
reads nothing and decides nothing: it knows by heart where each Run stands and that its term lasts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from benchmarks.by_hand import HandConnection
from benchmarks.delivery_sides import OWNER
from benchmarks.ledger_sides import open_ledger
from benchmarks.recovery_sides import PROVIDER, claim_abandoned
from runfacts.domain.leases import TokenPurpose, digest
from runfacts.domain.recovery.claims import RecoveryClaimed
from runfacts.infrastructure.ledger import Ledger

_OF_TERM: Final = """
WHERE purpose = 'recovery' AND kind = 'attempt' AND item_id = :attempt_id AND state = 'claimed' AND version = 1
  AND owner = :owner AND token_digest = :token_digest
"""
_FENCE: Final = f"UPDATE recovery_claims SET version = version {_OF_TERM}"  # noqa: S608 - texts of ours
_RETRY: Final = """
INSERT INTO recovery_claims (purpose, kind, item_id, run_id, attempt_id, executor_type, scope, state, version,
                             due_at_ms, delays, failures, created_at_ms, updated_at_ms)
VALUES ('retry', 'run', :run_id, :run_id, :attempt_id, 'bench', '', 'available', 0, :now_ms, 0, 0, :now_ms, :now_ms)
"""
_CLOSE: Final = """
UPDATE executions SET closed_at_ms = :now_ms, recover_at_ms = NULL
WHERE attempt_id = :attempt_id AND closed_at_ms IS NULL AND callback_sequence = 1
"""
_MOVE: Final = """
UPDATE runs
SET status = 'lost', version = :sequence, head_hash = :hash, active_attempt_id = NULL, updated_at_ms = :now_ms
WHERE run_id = :run_id AND version = :expected_version AND head_hash = :expected_hash
"""
_LOSE: Final = """
UPDATE attempts SET status = 'lost', finished_at_ms = :now_ms WHERE attempt_id = :attempt_id AND status = 'running'
"""
_APPEND: Final = """
INSERT INTO facts (run_id, sequence, type, schema_version, project, attempt_id, actor_type, actor_id, dedupe_key,
                   recorded_at_ms, payload, aggregate_id, aggregate_version, hash)
VALUES (:run_id, :sequence, :type, 1, 'default', :attempt_id, 'reconciler', :owner, :dedupe_key,
        :now_ms, :payload, :aggregate_id, :aggregate_version, :hash)
RETURNING position
"""
_SETTLE: Final = f"""
UPDATE recovery_claims
SET state = 'resolved', version = 2, owner = NULL, token_digest = NULL, claim_expires_at_ms = NULL,
    claim_boot_id = NULL, claim_expires_boot_ms = NULL, next_claim_at_ms = NULL, due_at_ms = NULL, delays = 0,
    failures = 0, reason = NULL, seen = NULL, updated_at_ms = :now_ms
{_OF_TERM}
"""  # noqa: S608 - the same
_NEVER: Final = "UPDATE executions SET recover_at_ms = NULL WHERE attempt_id = :attempt_id AND recover_at_ms IS NULL"
_PAYLOAD: Final = f'{{"evidence":"not_running","provider_type":"{PROVIDER}"}}'


@dataclass(frozen=True, slots=True)
class _Stand:
    """Where a Run stands, by heart."""

    run_id: str
    attempt_id: str
    token_digest: str
    sequence: int
    of_run: int
    of_attempt: int
    hash: str


@dataclass(slots=True)
class HandLosses:
    """The side."""

    ledger: Ledger
    hand: HandConnection
    first: tuple[str, ...]
    append: str
    last: tuple[str, ...]

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        return self._steps([self._stand(claim) for claim in claim_abandoned(self.ledger, steps)])

    def close(self) -> None:
        """See ``Side``."""
        self.hand.close()
        self.ledger.close()

    def _stand(self, claim: RecoveryClaimed) -> _Stand:
        history = self.ledger.history(claim.run_id)
        of_run = sum(not fact.of_attempt for fact in history)
        token_digest = digest(TokenPurpose.RECOVERY, claim.token)
        hash_, length = history[-1].hash, len(history)
        return _Stand(claim.run_id, claim.key.item_id, token_digest, length, of_run, length - of_run, hash_)

    def _steps(self, stands: list[_Stand]) -> Iterator[int]:
        for stand in stands:
            self._lose(stand)
            self._settle(stand)
            yield 1

    def _lose(self, stand: _Stand) -> None:
        now_ms = time.time_ns() // 1_000_000
        one = _fact(stand, now_ms, stand.hash, 1)
        two = _fact(stand, now_ms, str(one["hash"]), 2)
        moving = two | {"expected_version": stand.sequence, "expected_hash": stand.hash}
        self.hand.begin()
        hit = [self.hand.execute(statement, moving).rowcount for statement in self.first]
        positions = [self.hand.execute(self.append, fact).fetchone() for fact in (one, two)]
        if hit != [1] * len(self.first) or None in positions:
            raise RuntimeError("a hand-written recovery of the bench found somebody else's rows")
        self.hand.commit()

    def _settle(self, stand: _Stand) -> None:
        parameters: dict[str, object] = {
            "attempt_id": stand.attempt_id,
            "owner": OWNER,
            "token_digest": stand.token_digest,
            "now_ms": time.time_ns() // 1_000_000,
        }
        self.hand.begin()
        hit = [self.hand.execute(statement, parameters).rowcount for statement in self.last]
        if hit != [1] * len(self.last):
            raise RuntimeError("a hand-written settle of the bench found somebody else's rows")
        self.hand.commit()


def _fact(stand: _Stand, now_ms: int, before: str, number: int) -> dict[str, object]:
    """Give the parameters of the first fact, which is the Attempt's, or of the second, which is the Run's."""
    of_attempt = number == 1
    aggregate_id = stand.attempt_id if of_attempt else stand.run_id
    version = (stand.of_attempt if of_attempt else stand.of_run) + 1
    dedupe_key = f"{'lost' if of_attempt else 'run-lost'}:{stand.attempt_id}"
    type_ = "attempt.lost" if of_attempt else "run.lost"
    sequence = stand.sequence + number
    text = (
        f'{before}{{"actor_id":"{OWNER}","actor_type":"reconciler","aggregate_id":"{aggregate_id}",'
        f'"aggregate_version":{version},"attempt_id":"{stand.attempt_id}","dedupe_key":"{dedupe_key}",'
        f'"payload":{_PAYLOAD},"project":"default","recorded_at_ms":{now_ms},"run_id":"{stand.run_id}",'
        f'"schema_version":1,"sequence":{sequence},"type":"{type_}"}}'
    )
    return {
        "run_id": stand.run_id,
        "attempt_id": stand.attempt_id,
        "owner": OWNER,
        "token_digest": stand.token_digest,
        "now_ms": now_ms,
        "sequence": sequence,
        "type": type_,
        "aggregate_id": aggregate_id,
        "aggregate_version": version,
        "dedupe_key": dedupe_key,
        "payload": _PAYLOAD,
        "hash": sha256(text.encode()).hexdigest(),
    }


def losses(url: str) -> HandLosses:
    """Open the side."""
    hand = HandConnection.opened(url)
    first, last = (_FENCE, _RETRY, _CLOSE, _MOVE, _LOSE), (_SETTLE, _NEVER)
    return HandLosses(
        open_ledger(url),
        hand,
        tuple(hand.said(statement) for statement in first),
        hand.said(_APPEND),
        tuple(hand.said(statement) for statement in last),
    )

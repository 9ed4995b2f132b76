"""What a worker does about Runs whose host is gone, wired as ``Ledger.supervise`` and ``admit`` do (R11, R12, R8.3)."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from runfacts import Claimed, InvalidSetting, Ledger, RetryPolicy, Safety
from runfacts.domain.recovery.claims import Purpose
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking
from runfacts.domain.recovery.gate import Admitted, NotAdmitted
from runfacts.infrastructure.supervision import Duty
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, types, unchanged

EXECUTOR = "cluster"
LEASE_MS = 30_000


@dataclass(slots=True)
class Provider:
    """Answers for an executor of its own, always the same."""

    answer: Evidence
    asked: int = 0
    executor_type: str = EXECUTOR
    required: frozenset[str] = frozenset()

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        del target, timeout_ms, cancelled
        self.asked += 1
        return self.answer


def left_alone(ledger: Ledger, policy: RetryPolicy | None = None) -> str:
    """Give a Run whose Attempt runs under a lease that nobody renews."""
    run_id = ledger.create(actor=ANA, task="t", policy=policy or RetryPolicy()).run.run_id
    ledger.queue(run_id, actor=ANA)
    claimed = ledger.claim(run_id, actor=WORKER, executor_type=EXECUTOR, lease_ms=LEASE_MS)
    assert isinstance(claimed, Claimed)
    ledger.start(claimed.claim, actor=WORKER)
    ledger.running(claimed.claim, actor=WORKER)
    return run_id


def test_a_cycle_makes_a_run_lost_on_proof_and_decides_on_it(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = left_alone(ledger)
    provider = Provider(Evidence.not_running())
    worker = ledger.supervise(providers=[provider], local=False)
    manual_clock.advance(LEASE_MS - 1)
    assert worker.cycle()["recovery"] == {"seen": 0, "claimed": 0, "swept": 0}
    manual_clock.advance(1)
    report = worker.cycle()
    assert report["recovery"] == {"seen": 1, "claimed": 1, "found_not_running": 1, "lost": 1, "swept": 0}
    assert report["retry"] == {"seen": 1, "claimed": 1, "moved_on": 1}
    assert types(ledger, run_id)[-3:] == ["attempt.lost", "run.lost", "run.failed"]
    assert provider.asked == 1


def test_a_lost_run_that_may_be_tried_again_is_queued_when_its_wait_is_over(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    policy = RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=7_000)
    run_id = left_alone(ledger, policy)
    worker = ledger.supervise(providers=[Provider(Evidence.not_running())], local=False)
    manual_clock.advance(LEASE_MS)
    worker.cycle()
    assert types(ledger, run_id)[-3:] == ["attempt.lost", "run.lost", "run.retry_wait"]
    manual_clock.advance(6_999)
    worker.cycle()
    assert ledger.run(run_id).status == "retry_wait"
    manual_clock.advance(1)
    worker.cycle()
    assert ledger.run(run_id).status == "queued"


def test_a_run_that_was_asked_to_stop_is_confirmed_and_not_lost(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = left_alone(ledger)
    ledger.request_cancellation(run_id, actor=ANA)
    worker = ledger.supervise(providers=[Provider(Evidence.not_running())], local=False)
    manual_clock.advance(LEASE_MS)
    report = worker.cycle()
    assert report["recovery"]["claimed"] == 0
    assert report["stop"]["stopped"] == 1
    assert types(ledger, run_id)[-3:] == ["run.stop_confirmed", "attempt.cancelled", "run.cancelled"]


def test_what_lives_is_never_lost(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = left_alone(ledger)
    worker = ledger.supervise(providers=[Provider(Evidence.running())], local=False)
    for _ in range(5):
        manual_clock.advance(LEASE_MS * 20)
        worker.cycle()
    assert ledger.run(run_id).status == "running"


def test_only_the_duties_that_were_asked_for_are_done(ledger: Ledger, manual_clock: ManualClock) -> None:
    run_id = left_alone(ledger)
    manual_clock.advance(LEASE_MS)
    worker = ledger.supervise(providers=[Provider(Evidence.not_running())], local=False, duties=[Duty.RECOVERY])
    assert list(worker.cycle().counters) == ["recovery"]
    assert ledger.run(run_id).status == "lost"


def test_the_gate_of_a_clean_ledger_only_reads(ledger: Ledger) -> None:
    left_alone(ledger)
    with unchanged(ledger):
        assert ledger.admit(providers=[Provider(Evidence.not_running())], local=False) == Admitted(waiting=0)


def test_the_gate_recovers_first_and_then_admits(ledger: Ledger, manual_clock: ManualClock) -> None:
    runs = [left_alone(ledger) for _ in range(3)]
    manual_clock.advance(LEASE_MS)
    answer = ledger.admit(providers=[Provider(Evidence.not_running())], local=False)
    assert isinstance(answer, Admitted)
    assert answer.waiting == 0
    assert {ledger.run(run_id).status for run_id in runs} == {"lost"}


def test_the_gate_lets_through_what_waits_for_its_next_look(ledger: Ledger, manual_clock: ManualClock) -> None:
    left_alone(ledger)
    manual_clock.advance(LEASE_MS)
    answer = ledger.admit(providers=[Provider(Evidence.running())], local=False)
    assert isinstance(answer, Admitted)
    assert answer.waiting == 1


def test_the_gate_refuses_while_another_worker_looks_into_a_run(ledger: Ledger, manual_clock: ManualClock) -> None:
    left_alone(ledger)
    manual_clock.advance(LEASE_MS)
    held = ledger.claim_recoveries(Purpose.RECOVERY, owner="another", served=frozenset({(EXECUTOR, "")}))
    assert len(held) == 1
    answer = ledger.admit(providers=[Provider(Evidence.not_running())], local=False)
    assert answer == NotAdmitted(unsafe=1, waiting=0, cycles=1)


def test_a_lease_that_a_look_may_outlast_is_refused(ledger_factory: ThrowAwayLedgers) -> None:
    with pytest.raises(InvalidSetting, match="recovery_lease_ms"):
        ledger_factory(recovery_lease_ms=6_000, evidence_timeout_ms=5_000).supervise(local=False)

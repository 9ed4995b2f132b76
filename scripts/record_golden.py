"""
The golden histories of a release: scenarios run by hand through its own commands, kept for every later one (R3.7).

Each scenario is one Run in a fresh ledger on a clock that stands still but where the scenario moves it. The files go to
tests/golden/RELEASE and are committed once, when a release is made; a file that is there is never written again, for
what it holds is what that release recorded. tests/contract/test_golden_histories.py says what each must amount to.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from runfacts import (
    Actor,
    AttemptClaim,
    Claimed,
    Evidence,
    EvidenceTarget,
    IntentKind,
    Ledger,
    Outcome,
    RetryPolicy,
    Safety,
    StopAsking,
)
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import sqlite_ledgers

ANA = Actor.user("ana")
BO = Actor.operator("bo")
WORKER = Actor.worker("w-1")
EXECUTOR = "cluster"
LEASE_MS = 30_000


@dataclass
class Scene:
    """A ledger, its clock, and one Run."""

    ledger: Ledger
    clock: ManualClock
    run_id: str = ""

    def create(self, **options: object) -> None:
        """Create and queue the Run."""
        self.run_id = self.ledger.create(**({"actor": ANA, "task": "report", "project": "books"} | options)).run.run_id  # type: ignore[arg-type]  # options of create
        self.clock.advance(1_000)
        self.ledger.queue(self.run_id, actor=ANA)

    def up(self, *, gated: bool = False) -> AttemptClaim:
        """Bring the next Attempt to running, a second a step."""
        claim = self.claim(gated=gated)
        self.ledger.start(claim, actor=WORKER, timeout_ms=600_000)
        self.clock.advance(1_000)
        self.ledger.running(claim, actor=WORKER, handle="h" if gated else None)
        self.clock.advance(1_000)
        return claim

    def claim(self, *, gated: bool = False) -> AttemptClaim:
        """Claim the next Attempt."""
        answer = self.ledger.claim(
            self.run_id, actor=WORKER, executor_type=EXECUTOR, gated=gated, worker_id="w-1", lease_ms=LEASE_MS
        )
        if not isinstance(answer, Claimed):
            raise SystemExit(f"the run cannot be claimed: {answer}")
        self.clock.advance(1_000)
        return answer.claim

    def recover(self, evidence: Evidence) -> None:
        """Let the lease run out, and a worker look."""
        self.clock.advance(LEASE_MS)
        self.ledger.supervise(providers=[_Provider(evidence)], local=False).cycle()


@dataclass(frozen=True)
class _Provider:
    answer: Evidence
    executor_type: str = EXECUTOR
    required: frozenset[str] = frozenset()

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
        """See ``EvidenceProvider``."""
        del target, timeout_ms, cancelled
        return self.answer


def succeeded(scene: Scene) -> None:
    """A Run ends well, after an approval; a report comes late."""
    scene.create(idempotency_key="monday", timeout_ms=600_000)
    claim = scene.up(gated=True)
    scene.ledger.wait_for_approval(claim, actor=WORKER, reason="may I?")
    scene.clock.advance(60_000)
    scene.ledger.renew(claim, lease_ms=LEASE_MS)
    scene.ledger.go_on(claim, actor=ANA)
    scene.ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    scene.ledger.finish(claim, Outcome.failed(exit_code=9), actor=WORKER, sequence=99)


def failed_twice(scene: Scene) -> None:
    """A Run is tried again, and fails for good."""
    scene.create(policy=RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=5_000))
    scene.ledger.finish(
        scene.up(),
        Outcome.failed(exit_code=1, error_code="E1", error_summary="password=hunter2 Zürich 雪"),
        actor=WORKER,
    )
    scene.clock.advance(5_000)
    scene.ledger.queue(scene.run_id, actor=Actor.scheduler())
    scene.ledger.finish(scene.up(), Outcome.failed(signal=9), actor=WORKER)


def cancelled_before_a_start(scene: Scene) -> None:
    """A claimed Attempt is refused at its start barrier."""
    scene.create()
    claim = scene.claim()
    scene.ledger.request_cancellation(scene.run_id, actor=ANA, reason="wrong input")
    scene.ledger.start(claim, actor=WORKER)


def cancelled_although_it_succeeded(scene: Scene) -> None:
    """The request came first, the success after it."""
    scene.create()
    claim = scene.up()
    scene.ledger.request_cancellation(scene.run_id, actor=ANA)
    scene.ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER)


def timed_out(scene: Scene) -> None:
    """An Attempt runs longer than it may."""
    scene.create()
    claim = scene.up()
    scene.clock.advance(600_000)
    scene.ledger.request_due_deadlines(actor=Actor.scheduler())
    scene.ledger.finish(claim, Outcome.failed(signal=15), actor=WORKER)


def stop_confirmed(scene: Scene) -> None:
    """The host of a cancelled Run is gone, and the stop is proven."""
    scene.create()
    scene.up()
    scene.ledger.request_cancellation(scene.run_id, actor=ANA, kind=IntentKind.POLICY)
    scene.ledger.abandon(scene.run_id, actor=BO, because="the host is gone", version=0)
    scene.recover(Evidence.not_running())


def stopped_on_an_operators_word(scene: Scene) -> None:
    """Nobody can prove it, an operator says so."""
    scene.create()
    scene.up()
    scene.ledger.request_cancellation(scene.run_id, actor=ANA)
    scene.ledger.confirm_stopped(
        scene.run_id, actor=BO, because="saw it", version=scene.ledger.run(scene.run_id).version
    )


def lost_and_tried_again(scene: Scene) -> None:
    """A Run is lost on proof, is tried again and succeeds."""
    scene.create(policy=RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=5_000))
    scene.up()
    scene.recover(Evidence.not_running())
    scene.clock.advance(5_000)
    scene.recover(Evidence.not_running())
    scene.ledger.finish(scene.up(), Outcome.succeeded(exit_code=0), actor=WORKER)


def cancelled_while_queued(scene: Scene) -> None:
    """There is nothing to stop."""
    scene.create()
    scene.ledger.request_cancellation(scene.run_id, actor=ANA)


SCENARIOS: tuple[Callable[[Scene], None], ...] = (
    succeeded,
    failed_twice,
    cancelled_before_a_start,
    cancelled_although_it_succeeded,
    timed_out,
    stop_confirmed,
    stopped_on_an_operators_word,
    lost_and_tried_again,
    cancelled_while_queued,
)


def main() -> None:
    """Write the files of this release that are not there yet."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1] / "tests" / "golden")
    folder = parser.parse_args().folder / version("runfacts")
    folder.mkdir(parents=True, exist_ok=True)
    for scenario in SCENARIOS:
        file = folder / f"{scenario.__name__}.jsonl"
        if file.exists():
            continue
        clock = ManualClock()
        with sqlite_ledgers(clock) as ledgers, ledgers() as ledger:
            scene = Scene(ledger, clock)
            scenario(scene)
            lines = [json.dumps(line, ensure_ascii=False) for line in ledger.export_runs([scene.run_id])]
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()

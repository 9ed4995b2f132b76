"""What runs elsewhere is proven there, or by nobody: the product has no provider for remote workers (R12.4, R8.2)."""

from __future__ import annotations

import pytest

from runfacts import Ledger
from runfacts.domain.recovery.claims import Purpose
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.testing.clock import ManualClock
from stages import ANA, WORKER

LEASE_MS = 30_000
UNSERVED_MS = 10 * 60_000


def hosted_elsewhere(ledger: Ledger, executor_type: str, scope: str) -> str:
    """Start a Run on a machine that is never heard of again."""
    run_id = ledger.create(actor=ANA, task="report").run.run_id
    ledger.queue(run_id, actor=ANA)
    answer = ledger.claim(run_id, actor=WORKER, executor_type=executor_type, scope=scope, lease_ms=LEASE_MS)
    claim = answer.claim  # type: ignore[union-attr] # it is claimed
    ledger.start(claim, actor=WORKER)
    ledger.running(claim, actor=WORKER, handle="elsewhere-1", pid=4711)
    return run_id


def test_full_pages_of_ones_own_do_not_hide_a_machine_that_never_comes_back(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    gone = hosted_elsewhere(ledger, "batch", "gone")
    manual_clock.advance(LEASE_MS + UNSERVED_MS)
    for _ in range(17):
        hosted_elsewhere(ledger, "batch", "here")
    manual_clock.advance(LEASE_MS)

    def page(limit: int) -> list[tuple[str, bool]]:
        claims = ledger.claim_recoveries(
            Purpose.RECOVERY, owner="one", served=frozenset({("batch", "here")}), limit=limit
        )
        ledger.give_back(claims)
        return [(claim.scope, claim.foreign) for claim in claims]

    # One's own come first, but for one place.
    assert page(1) == [("here", False)]
    assert page(2) == [("here", False), ("gone", True)]
    assert page(16) == [("here", False)] * 15 + [("gone", True)]
    assert ledger.run(gone).status == "running"


@pytest.mark.parametrize(("executor_type", "looked"), [(EXECUTOR_TYPE, 1), ("remote-worker", 0)])
def test_a_worker_says_nothing_of_what_another_machine_ran_and_an_operator_is_asked(
    ledger: Ledger, manual_clock: ManualClock, executor_type: str, looked: int
) -> None:
    here: MachineIdentity = ledger.machine()
    elsewhere = here.scope.replace(here.machine_id, "f" * 32)
    run_id = hosted_elsewhere(ledger, executor_type, elsewhere)
    worker = ledger.supervise()
    manual_clock.advance(LEASE_MS)
    # Its own machine's workers may still come.
    assert worker.cycle()["recovery"]["claimed"] == 0
    manual_clock.advance(UNSERVED_MS)
    counted = worker.cycle()["recovery"]
    # One that serves the executor type looks, can prove nothing from here, and leaves it to a person.
    assert (counted["claimed"], counted.get("manual", 0)) == (looked, looked)
    assert ledger.run(run_id).status == "running"
    (item,) = ledger.manual().items
    assert (item.run_id, item.purpose, item.reason) == (run_id, Purpose.RECOVERY, "scope_unserved")

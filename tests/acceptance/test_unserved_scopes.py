"""
R8.2, R10.3, R13: a machine that does not come back, and one that does, with real processes.

On a server the other machine is one by its id. A file belongs to one machine: there the hosts are in another scope.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from hosted_runs import ANA, EXIT_CODE, HostedRun
from namespaces import OWN_TIME_NAMESPACE
from process_watch import Marked, wait_until
from real_time import SOME, RealTime
from runfacts import Actor, Ledger, ManualRecovery
from workers import RecoveryJob, recovering

OLGA = Actor.operator("olga")
UNSERVED_AFTER_MS = 1_000
QUICK = {
    "execution_lease_ms": 3_000,
    "evidence_timeout_ms": 1_000,
    "recovery_lease_ms": 3_000,
    "recovery_delay_ms": 200,
    "recovery_delay_max_ms": 500,
    "unserved_after_ms": UNSERVED_AFTER_MS,
}


def waiting(ledger: Ledger) -> dict[str, ManualRecovery]:
    """What waits for an operator, by Run."""
    return {item.run_id: item for item in ledger.manual().items}


@pytest.mark.parametrize("databases", SOME, indirect=True)
def test_runs_of_a_machine_that_is_away_wait_for_an_operator_until_it_is_back(
    databases: RealTime, tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    url = databases.create()
    there, here = (None, None) if databases.is_sqlite else ("rack-1", "rack-2")
    with Ledger.open(url, unserved_after_ms=UNSERVED_AFTER_MS) as ledger, ExitStack() as stack:
        back, attested, confirmed = runs = [HostedRun.submitted(ledger, url, tmp_path) for _ in range(3)]
        # Frozen between two transactions: within one, a file could be used by nobody.
        fault = {"machine_id": there, "fault": "freeze", "call": "renew", "step": "before"}
        jobs = [run.job(run.run_id, QUICK, **fault) for run in runs]
        hosts = stack.enter_context(recovering(*jobs, prefix=OWN_TIME_NAMESPACE))
        for run in runs:
            hosts.first("reached", run.run_id)
            assert run.ran == [run.first.attempt_id]
        scopes = {ledger.execution(run.first.attempt_id).scope for run in runs}
        assert scopes.isdisjoint({ledger.machine().scope})
        ledger.request_cancellation(confirmed.run_id, actor=ANA)
        job = RecoveryJob("worker", url, settings=QUICK, machine_id=here)
        worker = stack.enter_context(recovering(job))
        worker.counts("worker", "recovery", "manual", 2)
        worker.counts("worker", "stop", "manual", 1)
        items = waiting(ledger)
        assert {run_id: (item.purpose, item.reason) for run_id, item in items.items()} == {
            back.run_id: ("recovery", "scope_unserved"),
            attested.run_id: ("recovery", "scope_unserved"),
            confirmed.run_id: ("stop", "scope_unserved"),
        }
        for run in runs:
            expired_at_ms = ledger.execution(run.first.attempt_id).lease_expires_at_ms
            assert items[run.run_id].since_ms >= expired_at_ms + UNSERVED_AFTER_MS
            assert run.view.status == "running"
        for run in (attested, confirmed):
            run.kill_keeper(hosts.pid(run.run_id))
            run.kill_command()
            hosts.kill(run.run_id)
        ledger.attest_not_running(
            attested.run_id, actor=OLGA, because="I looked", version=items[attested.run_id].version
        )
        version = items[confirmed.run_id].run_version
        ledger.confirm_stopped(confirmed.run_id, actor=OLGA, because="I looked", version=version)
        for run in (attested, confirmed):
            run.ends()
        assert (attested.view.status, attested.error_code, confirmed.view.status) == (
            "failed",
            "worker_lost",
            "cancelled",
        )
        assert list(waiting(ledger)) == [back.run_id]
        hosts.thaw(back.run_id)
        wait_until(lambda: not waiting(ledger), "its renewal takes it out again")
        worker.next_cycle("worker")
        assert (waiting(ledger), back.view.status, back.first.status) == ({}, "running", "running")
        back.let_go()
        back.ends()
        assert (back.first.status, back.first.exit_code, back.ran) == ("failed", EXIT_CODE, [back.first.attempt_id])
        assert worker.end() == {"worker": 0}
        report = ledger.verify()
        assert report.clean, report.differences

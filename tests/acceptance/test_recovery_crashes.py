"""
R10, R11, R12.1: hosts, keepers, commands and recovering workers killed or frozen at each point, with real processes.

Whatever dies, and whenever: a Run is called lost only when nothing of it lives, a command's own end is never lost, and
no command runs twice unless that was declared safe and the first one was proven gone. The commands themselves watch
over the last (``hosted_runs``).
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL

import pytest

from hosted_runs import AGAIN, EXIT_CODE, HostedRun
from process_watch import Marked, wait_until
from real_time import FILE_FIRST, SERVER_FIRST, RealTime
from runfacts import Ledger
from workers import RecoveryJob, Workers, recovering

QUICK = {
    "execution_lease_ms": 3_000,
    "evidence_timeout_ms": 1_000,
    "recovery_lease_ms": 3_000,
    "recovery_delay_ms": 200,
    "recovery_delay_max_ms": 500,
}
"""Times as short as a slow machine allows."""


NEVER_RAN = {
    "launch:before:start": "pre_start",
    "launch:before:keeper": "pre_start",
    "launch:before:running": "pre_start",
    "launch:after:running": "not_running",
    "launch:before:gate": "not_running",
}
"""What proves that the command never ran, by the step at which its host was killed."""


@pytest.mark.parametrize("databases", FILE_FIRST, indirect=True)
def test_a_host_killed_before_its_gate_is_proven_to_have_run_nothing(
    databases: RealTime, tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    url = databases.create()
    with Ledger.open(url) as ledger, ExitStack() as stack:
        runs = {step: HostedRun.submitted(ledger, url, tmp_path, policy=AGAIN) for step in NEVER_RAN}
        once = {
            step: HostedRun.submitted(ledger, url, tmp_path) for step in ("launch:before:start", "launch:before:gate")
        }
        jobs = [run.job(step, QUICK, fault="kill", step=step) for step, run in runs.items()]
        jobs += [run.job(f"once {step}", QUICK, fault="kill", step=step) for step, run in once.items()]
        hosts = stack.enter_context(recovering(*jobs))
        assert {hosts.first("ended", job.name)["code"] for job in jobs} == {-SIGKILL}
        worker = stack.enter_context(recovering(RecoveryJob("worker", url, "work", QUICK)))
        for run in runs.values():
            run.let_go()
        for run in (*runs.values(), *once.values()):
            run.ends()
        for step, run in runs.items():
            one, two = run.view.attempts
            assert (one.status, one.evidence, two.status, two.exit_code) == (
                "lost",
                NEVER_RAN[step],
                "failed",
                EXIT_CODE,
            )
            assert run.ran == [two.attempt_id], step
        for step, run in once.items():
            assert (run.view.status, run.error_code, run.first.evidence) == ("failed", "worker_lost", NEVER_RAN[step])
            assert run.ran == []
        assert worker.end() == {"worker": 0}
        assert worker.all("failed") == []
        report = ledger.verify()
        assert report.clean, report.differences


SAFE = {"host and keeper", "all, safe"}
LEFT_ALIVE = ("host", "keeper", "host and keeper")
WITHOUT_KEEPER = ("keeper", "host and keeper", "all", "all, safe")


def killed(runs: dict[str, HostedRun], hosts: Workers) -> None:
    """Kill of each Run what its name says, while its command runs."""
    runs["ended"].let_go()
    for name, run in runs.items():
        if name != "ended":
            run.runs()
    for name in WITHOUT_KEEPER:
        runs[name].kill_keeper(hosts.pid(name))
    for name in ("all", "all, safe"):
        runs[name].kill_command()
    for name in ("host", *WITHOUT_KEEPER[1:]):
        hosts.kill(name)
    hosts.first("ended", "ended")


def judged(runs: dict[str, HostedRun]) -> None:
    """Check how each of them ended."""
    for run in runs.values():
        run.ends()
    for name in ("ended", "host"):
        (attempt,) = runs[name].view.attempts
        assert (attempt.status, attempt.exit_code, runs[name].ran) == ("failed", EXIT_CODE, [attempt.attempt_id]), name
        assert "attempt.lost" not in runs[name].facts
    for name in ("keeper", "all"):
        (attempt,) = runs[name].view.attempts
        assert (attempt.status, attempt.evidence, runs[name].error_code) == ("lost", "not_running", "worker_lost"), name
        assert runs[name].ran == [attempt.attempt_id]
    for name in SAFE:
        one, two = runs[name].view.attempts
        assert (one.status, one.evidence, two.status, two.exit_code) == ("lost", "not_running", "failed", EXIT_CODE), (
            name
        )
        assert runs[name].ran == [one.attempt_id, two.attempt_id]


@pytest.mark.parametrize("databases", SERVER_FIRST, indirect=True)
def test_whatever_of_host_keeper_and_command_is_killed_the_end_is_a_true_one(
    databases: RealTime, tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    url = databases.create()
    with Ledger.open(url) as ledger, ExitStack() as stack:
        runs = {
            name: HostedRun.submitted(ledger, url, tmp_path, policy=AGAIN if name in SAFE else None)
            for name in ("ended", "host", *WITHOUT_KEEPER)
        }
        fault = {"ended": {"fault": "kill", "step": "launch:before:finish"}}
        jobs = [run.job(name, QUICK, **fault.get(name, {})) for name, run in runs.items()]
        hosts = stack.enter_context(recovering(*jobs))
        killed(runs, hosts)
        worker = stack.enter_context(recovering(RecoveryJob("worker", url, "work", QUICK)))

        def looked_at_all() -> bool:
            # The host that lives looks after its own one, keeper or none.
            return worker.counted_by("worker", "recovery", "found_running") >= 3 * (len(LEFT_ALIVE) - 1)

        wait_until(looked_at_all, "what lives is found running, time and again")
        left = [runs[name].view for name in LEFT_ALIVE]
        assert [(run.status, run.attempts[-1].status, len(run.attempts)) for run in left] == [
            ("running", "running", 1)
        ] * 3
        runs["host"].let_go()
        for name in ("keeper", "host and keeper"):
            runs[name].kill_command()
        assert hosts.first("outcome", "keeper")["type"] == "KeeperLost"
        for name in SAFE:
            runs[name].let_go()
        judged(runs)
        assert worker.end() == {"worker": 0}
        report = ledger.verify()
        assert report.clean, report.differences

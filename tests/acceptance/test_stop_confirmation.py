"""
R12.2, R6.5: a Run that was asked to stop ends with evidence, whoever dies in which order, with real processes.

Its host, the worker that delivers the cancellation and its command are killed one after the other; then another worker
comes. The cases of one test run side by side, each on a database of its own, because each waits for leases to end.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from signal import SIGKILL

import pytest

from hosted_runs import ANA, CHILD_STAYS, STAYS, HostedRun
from process_watch import Marked, kill, state_of, wait_until
from real_time import FILE_FIRST, SERVER_FIRST, RealTime
from runfacts import Ledger
from runfacts.domain.payloads import RunCancelDispatched, RunStopConfirmed
from runfacts.testing.plugin import DATABASES
from workers import RecoveryJob, Workers, recovering

QUICK = {
    "execution_lease_ms": 3_000,
    "cancel_lease_ms": 5_000,
    "grace_ms": 200,
    "evidence_timeout_ms": 1_000,
    "recovery_lease_ms": 3_000,
    "recovery_delay_ms": 200,
    "recovery_delay_max_ms": 500,
    "stop_report_grace_ms": 500,
}
"""Times as short as a slow machine allows."""
WITHOUT_DELIVERY = ("completion", "recovery", "stop")


@dataclass
class Cell:
    """A hosted Run in a database of its own."""

    databases: RealTime
    root: Path
    name: str
    script: str = STAYS
    run: HostedRun = field(init=False)

    def __post_init__(self) -> None:
        """Submit it."""
        url = self.databases.create()
        self.run = HostedRun.submitted(Ledger.open(url), url, self.root, script=self.script)

    @property
    def host(self) -> RecoveryJob:
        """Its host."""
        return self.run.job(f"host, {self.name}", QUICK)

    @property
    def worker(self) -> RecoveryJob:
        """The worker that stands still once it has sent SIGTERM."""
        return RecoveryJob(
            f"worker, {self.name}", self.run.url, "supervise", QUICK, fault="freeze", step="stop:after:term"
        )

    def other(self, *duties: str) -> RecoveryJob:
        """Give the worker that comes afterwards."""
        return RecoveryJob(f"other, {self.name}", self.run.url, settings=QUICK, duties=duties)

    def evidence(self) -> str:
        """Wait until it has ended as cancelled, and say by what that is known."""
        run = self.run
        run.ends()
        (attempt,) = run.view.attempts
        assert (run.view.status, attempt.status) == ("cancelled", "cancelled"), self.name
        history = run.ledger.history(run.run_id)
        confirmed = [fact.payload.evidence for fact in history if isinstance(fact.payload, RunStopConfirmed)]
        report = run.ledger.verify()
        assert report.clean, (self.name, report.differences)
        assert run.ran == [attempt.attempt_id], self.name
        if attempt.observed is None:
            assert confirmed == ["not_running"], self.name
            return "proof"
        assert confirmed == [], self.name
        return f"receipt: {attempt.signal}"


@dataclass
class Deaths:
    """What is killed, in which order."""

    hosts: Workers
    workers: Workers

    def kill(self, cell: Cell, order: tuple[str, ...], *, keeper: bool) -> None:
        """Kill all three; with ``keeper`` it dies with its host, if it has not ended with the command."""
        for what in order:
            if what == "command":
                cell.run.kill_command()
            elif what == "worker":
                self.workers.kill(cell.worker.name)
            else:
                if keeper and cell.run.processes():
                    # First: a host that lives would look on.
                    self.hosts.freeze(cell.host.name)
                    cell.run.kill_keeper(self.hosts.pid(cell.host.name))
                self.hosts.kill(cell.host.name)


def has_ended(pid: int) -> None:
    """Wait until a process is gone."""
    wait_until(lambda: state_of(pid) is None, f"{pid} is gone")


ORDERS = tuple(permutations(("host", "worker", "command")))


@pytest.mark.parametrize(
    ("databases", "keepers"),
    [
        pytest.param("sqlite", (True,), id="sqlite-some"),
        *(
            pytest.param(database, (False, True), marks=pytest.mark.long, id=f"{database}-all")
            for database in DATABASES
        ),
    ],
    indirect=["databases"],
)
@pytest.mark.timeout(300)
def test_a_run_whose_host_worker_and_command_die_in_any_order_ends_as_cancelled(
    databases: RealTime, tmp_path: Path, marked: Marked, keepers: tuple[bool, ...]
) -> None:
    """``keepers``: whether the keeper is killed with its host."""
    assert not marked.living()
    with ExitStack() as stack:
        cells = {}
        for order in ORDERS:
            for keeper in keepers:
                name = ", ".join((*order, "and the keeper")[: 3 + keeper])
                cells[order, keeper] = cell = Cell(databases, tmp_path, name)
                stack.callback(cell.run.ledger.close)
        every = cells.values()
        hosts = stack.enter_context(recovering(*(cell.host for cell in every)))
        for cell in every:
            cell.run.runs()
            cell.run.ledger.request_cancellation(cell.run.run_id, actor=ANA)
        workers = stack.enter_context(recovering(*(cell.worker for cell in every)))
        for cell in every:
            workers.first("reached", cell.worker.name)
        deaths = Deaths(hosts, workers)
        for (order, keeper), cell in cells.items():
            deaths.kill(cell, order, keeper=keeper)
        others = stack.enter_context(recovering(*(cell.other() for cell in every)))
        for (order, keeper), cell in cells.items():
            found = cell.evidence()
            assert found in {"proof", f"receipt: {SIGKILL}"}, cell.name
            if order.index("host") < order.index("command"):
                assert found == ("proof" if keeper else f"receipt: {SIGKILL}"), cell.name
            assert cell.run.run_id not in {each.run_id for each in cell.run.ledger.unproven().items}
        assert set(others.end().values()) == {0}


@pytest.mark.parametrize("databases", SERVER_FIRST, indirect=True)
def test_a_leader_that_is_dead_confirms_nothing_while_a_child_lives(
    databases: RealTime, tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    with ExitStack() as stack:
        cells = {keeper: Cell(databases, tmp_path, f"keeper killed: {keeper}", CHILD_STAYS) for keeper in (False, True)}
        hosts = stack.enter_context(recovering(*(cell.host for cell in cells.values())))
        for keeper, cell in cells.items():
            stack.callback(cell.run.ledger.close)
            cell.run.runs()
            cell.run.ledger.request_cancellation(cell.run.run_id, actor=ANA)
            leader = cell.run.leader
            if keeper:
                cell.run.kill_keeper(hosts.pid(cell.host.name))
            hosts.kill(cell.host.name)
            kill(leader)
            has_ended(leader)
            assert len(cell.run.processes()) >= 1
        others = stack.enter_context(recovering(*(cell.other(*WITHOUT_DELIVERY) for cell in cells.values())))
        # A receipt tells of the leader only (R6.5).
        for keeper, counter in ((True, "found_running"), (False, "found_receipt")):
            others.counts(cells[keeper].other().name, "stop", counter, 3)
        for cell in cells.values():
            (item,) = cell.run.ledger.unproven().items
            assert (item.run_id, cell.run.view.status, cell.run.first.status) == (cell.run.run_id, "running", "running")
        for cell in cells.values():
            cell.run.kill_command()
        assert cells[True].evidence() == "proof"
        assert cells[False].evidence() == f"receipt: {SIGKILL}"
        for cell in cells.values():
            assert cell.run.ledger.unproven().items == ()
        assert set(others.end().values()) == {0}


@pytest.mark.parametrize("databases", FILE_FIRST, indirect=True)
def test_a_child_that_ignores_term_is_ended_and_then_the_run_is(
    databases: RealTime, tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    cell = Cell(databases, tmp_path, "child", CHILD_STAYS)
    with cell.run.ledger as ledger, recovering(cell.host) as hosts:
        cell.run.runs()
        cell.run.kill_keeper(hosts.pid(cell.host.name))
        hosts.kill(cell.host.name)
        ledger.request_cancellation(cell.run.run_id, actor=ANA)
        with recovering(cell.other()) as others:
            assert cell.evidence() == "proof"
            assert cell.run.processes() == []
            found = [fact.payload for fact in ledger.history(cell.run.run_id)]
            (sent,) = [each for each in found if isinstance(each, RunCancelDispatched)]
            assert (sent.result, sent.escalation) == ("termination_requested", "kill")
            assert others.end() == {cell.other().name: 0}

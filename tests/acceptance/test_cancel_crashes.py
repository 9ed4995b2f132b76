"""
R8.8: a worker killed, frozen or cut off from its database at each point of a delivery, with real processes.

R1.5, R7.2, R7.4, R8.4. Another worker takes over. The command is a group that ignores TERM; each of its processes
notes what it gets, and each worker says what it sends. The tables say how many signals the rules allow in each case; no
more may come, the Run ends as it did, and the audit trail shows the take-over. The cases of one test run side by side,
each on a database of its own, because each waits for a lease to end.

A worker that dies, stands still or writes in vain leaves its lease to end. Where one is frozen inside a transaction on
SQLite, nobody else can write: there is no take-over then, but the frozen one's own word once it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from left_commands import How, LeavingHost, LeftCommand
from process_watch import Marked, wait_until
from real_time import RealTime
from runfacts import Actor, Ledger
from runfacts.domain.payloads import RunCancelDispatched, RunCancelDispatchTakenOver
from runfacts.testing.plugin import DATABASES
from workers import Job, Workers, working

LEASE_MS = 5_000
"""The first worker's. Far longer than the controller needs, so that a slow machine does not run out of it."""

POINTS: dict[str, tuple[str | None, str]] = {
    "before the claim commit": ("claim", "sql:before:commit"),
    "after the claim commit": ("claim", "sql:after:commit"),
    "between proof and signal": (None, "stop:after:proof"),
    "after TERM": (None, "stop:after:term"),
    "after KILL": (None, "stop:after:kill"),
    "before the settle commit": ("settle", "sql:before:commit"),
    "after the settle commit": ("settle", "sql:after:commit"),
}


@dataclass(frozen=True)
class Case:
    """What the rules allow, and what must come of it."""

    term: int
    kill: int
    result: str
    """What the one settle says."""
    taken_over: bool
    counted: tuple[str, ...] = ()
    """What the first worker's cycles count once it goes on: one of these."""
    how: How = "stays"


REQUESTED, EXITED = "termination_requested", "already_exited"

KILLED = {
    "before the claim commit": Case(1, 1, REQUESTED, taken_over=False),
    "after the claim commit": Case(1, 1, REQUESTED, taken_over=True),
    "between proof and signal": Case(1, 1, REQUESTED, taken_over=True),
    "after TERM": Case(2, 1, REQUESTED, taken_over=True),
    "after KILL": Case(1, 1, EXITED, taken_over=True),
    "before the settle commit": Case(1, 1, EXITED, taken_over=True),
    "after the settle commit": Case(1, 1, REQUESTED, taken_over=False),
}
"""The second worker does what the first did not come to, and begins anew where it cannot know."""

FROZEN = {
    "before the claim commit": Case(1, 1, REQUESTED, taken_over=False, counted=("dispatched",)),
    "after the claim commit": Case(1, 1, REQUESTED, taken_over=True, counted=("fenced",)),
    "between proof and signal": Case(1, 1, REQUESTED, taken_over=True, counted=("out_of_time",)),
    "after TERM": Case(2, 1, REQUESTED, taken_over=True, counted=("fenced",)),
    "after KILL": Case(1, 1, EXITED, taken_over=True, counted=("fenced",)),
    "before the settle commit": Case(1, 1, EXITED, taken_over=True, counted=("fenced",)),
    "after the settle commit": Case(1, 1, REQUESTED, taken_over=False, counted=("termination_requested",)),
}
"""The same, and whoever goes on later sends nothing and is refused; or does not even ask, its time being over."""

FROZEN_ON_SQLITE = FROZEN | {
    # Its lease is over when it is written; another one may even be done before it looks.
    "before the claim commit": Case(1, 1, REQUESTED, taken_over=True, counted=("out_of_time", "fenced")),
    "before the settle commit": Case(1, 1, REQUESTED, taken_over=False, counted=("termination_requested",)),
}
WITHIN_A_TRANSACTION = {"before the claim commit", "before the settle commit"}

CUT_OFF = {
    "before the claim commit": Case(1, 1, REQUESTED, taken_over=False, counted=("error",)),
    "after the claim commit": Case(1, 1, EXITED, taken_over=True, counted=("error",)),
    "between proof and signal": Case(1, 1, EXITED, taken_over=True, counted=("error",)),
    "after TERM": Case(1, 1, EXITED, taken_over=True, counted=("error",)),
    "after KILL": Case(1, 1, EXITED, taken_over=True, counted=("error",)),
    "before the settle commit": Case(1, 1, EXITED, taken_over=True, counted=("error",)),
    "after the settle commit": Case(1, 1, REQUESTED, taken_over=False, counted=("termination_requested",)),
}
"""The claim holds, so the first worker may go through with it; that it cannot say so costs no second signal."""

Fault = tuple[str, str]
"""What happens to the first worker, and at which point."""

FAULTS: tuple[Fault, ...] = tuple((kind, point) for kind in ("kill", "freeze", "cut") for point in POINTS)


def case_of(fault: Fault, *, on_sqlite: bool) -> Case:
    """Look it up."""
    kind, point = fault
    frozen = FROZEN_ON_SQLITE if on_sqlite else FROZEN
    return {"kill": KILLED, "freeze": frozen, "cut": CUT_OFF}[kind][point]


class Cell:
    """One case under way: its Run, its command, and the first worker's fault."""

    def __init__(self, fault: Fault, case: Case, databases: RealTime, root: Path) -> None:
        self.kind, self.point = fault
        self.name = " ".join(fault)
        self.case = case
        self.holds_the_file = databases.is_sqlite and self.kind == "freeze" and self.point in WITHIN_A_TRANSACTION
        self.url = databases.create()
        self.first_url = databases.of_a_role(self.url)
        self.ledger = Ledger.open(self.url)
        self.command: LeftCommand = LeavingHost(self.ledger, root).leave(case.how)
        self.command.ask_to_stop(self.ledger)

    @property
    def first(self) -> str:
        """The name of the worker that meets the fault."""
        return f"first, {self.name}"

    @property
    def second(self) -> str:
        """The name of the one that takes over."""
        return f"second, {self.name}"

    @property
    def first_job(self) -> Job:
        """The worker that meets the fault."""
        phase, step = POINTS[self.point]
        return Job(self.first, self.first_url, lease_ms=LEASE_MS, fault=self.kind, phase=phase, step=step)

    def is_delivered(self) -> bool:
        """Whether somebody has settled it."""
        cancellation = self.ledger.run(self.command.run_id).cancellation
        return (
            cancellation is not None
            and cancellation.dispatch is not None
            and (cancellation.dispatch.status == "dispatched")
        )

    def ends(self) -> None:
        """Record the command's end from its receipt, and check that it is the true one (R6.5)."""
        run_id = self.command.run_id

        def ended() -> bool:
            self.ledger.collect_receipts(actor=Actor.worker("collector"))
            return self.ledger.run(run_id).finished_at_ms is not None

        wait_until(ended, f"{self.name}: the run ends")
        run = self.ledger.run(run_id)
        (attempt,) = run.attempts
        number = SIGKILL if self.case.how == "stays" else None
        observed = "failed" if self.case.how == "stays" else "succeeded"
        assert (run.status, attempt.status, attempt.observed, attempt.signal) == (
            "cancelled",
            "cancelled",
            observed,
            number,
        ), self.name

    def signals_are_those_allowed(self, first: Workers, second: Workers) -> None:
        """No process got more than the rules allow, and nobody sent more."""
        assert self.command.signals() == [[SIGTERM.name] * self.case.term for _ in self.command.logs], self.name
        sent = first.sent(self.first) + second.sent(self.second)
        assert sorted(sent) == [SIGKILL.name] * self.case.kill + [SIGTERM.name] * self.case.term, self.name

    def trail_shows_it(self, first: Workers, second: Workers) -> None:
        """One delivery was recorded, and who took over from whom (R1.5)."""
        owners = (first.owner(self.first), second.owner(self.second))
        history = self.ledger.history(self.command.run_id)
        takings = [fact for fact in history if isinstance(fact.payload, RunCancelDispatchTakenOver)]
        # A worker that ran out of time may take over from itself.
        seen = [
            (fact.payload.previous_owner, fact.actor.id)
            for fact in takings
            if isinstance(fact.payload, RunCancelDispatchTakenOver) and fact.payload.previous_owner != fact.actor.id
        ]
        (delivered,) = [fact.payload for fact in history if isinstance(fact.payload, RunCancelDispatched)]
        assert (delivered.result, delivered.dispatch_count) == (self.case.result, len(takings) + 1), self.name
        # Frozen in its claim's commit, the first one may be the faster one to see that its lease is over.
        if self.case.taken_over and seen:
            assert seen == [owners], self.name
        else:
            assert bool(takings) == self.case.taken_over, self.name


def judged(cells: list[Cell], first: Workers, second: Workers) -> None:
    """Check what must hold in every case."""
    for cell in cells:
        cell.ends()
        cell.signals_are_those_allowed(first, second)
        cell.trail_shows_it(first, second)
        report = cell.ledger.verify()
        assert report.clean, (cell.name, report.differences)
        counted = [first.counted(cell.first, counter) for counter in cell.case.counted]
        assert not counted or sum(counted) >= 1, cell.name


def gone_on(cells: list[Cell], first: Workers) -> None:
    """Wait until others have done what the first workers no longer may, and let those go on that still can."""
    over_s = time.monotonic() + LEASE_MS / 1_000
    for cell in cells:
        if not cell.holds_the_file:
            wait_until(cell.is_delivered, f"{cell.name}: somebody delivers it")
    frozen = [cell for cell in cells if cell.kind == "freeze"]
    if frozen:
        wait_until(lambda: time.monotonic() > over_s, "the leases of all of them are over")
    for cell in frozen:
        first.thaw(cell.first)
    for cell in cells:
        wait_until(cell.is_delivered, f"{cell.name}: somebody delivers it")
        if cell.kind != "kill":
            first.next_cycle(cell.first)


def played(faults: Iterable[tuple[Fault, Case]], databases: RealTime, root: Path) -> None:
    """Let the first workers meet their faults and the second ones take over, and judge it."""
    with ExitStack() as stack:
        cells = []
        for fault, case in faults:
            cells.append(Cell(fault, case, databases, root))
            stack.callback(cells[-1].ledger.close)
        first = stack.enter_context(working(*(cell.first_job for cell in cells)))
        for cell in cells:
            first.first("reached", cell.first)
        second = stack.enter_context(working(*(Job(cell.second, cell.url) for cell in cells)))
        for cell in cells:
            second.owner(cell.second)
        gone_on(cells, first)
        for cell in cells:
            second.next_cycle(cell.second)
        # Whoever still works ends in good order, so nothing more comes of anybody.
        assert second.end() == {cell.second: 0 for cell in cells}
        assert first.end() == {cell.first: -SIGKILL if cell.kind == "kill" else 0 for cell in cells}
        judged(cells, first, second)


SOME_ON_SQLITE: tuple[Fault, ...] = (
    *(fault for fault in FAULTS if fault[0] == "kill"),
    ("freeze", "between proof and signal"),
    ("freeze", "before the settle commit"),
    ("cut", "after the claim commit"),
    ("cut", "before the settle commit"),
)
SOME_ON_POSTGRESQL: tuple[Fault, ...] = (("kill", "after TERM"), ("freeze", "before the settle commit"))


@pytest.mark.parametrize(
    ("databases", "faults"),
    [
        pytest.param("sqlite", SOME_ON_SQLITE, id="sqlite-some"),
        pytest.param("postgresql-18", SOME_ON_POSTGRESQL, id="postgresql-18-some"),
        *(pytest.param(database, FAULTS, marks=pytest.mark.long, id=f"{database}-all") for database in DATABASES),
    ],
    indirect=["databases"],
)
@pytest.mark.timeout(600)
def test_a_worker_killed_frozen_or_cut_off_costs_no_signal_more_than_allowed(
    databases: RealTime, faults: tuple[Fault, ...], tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    played([(fault, case_of(fault, on_sqlite=databases.is_sqlite)) for fault in faults], databases, tmp_path)


def test_a_command_that_ended_on_the_killed_workers_signal_gets_no_other(tmp_path: Path, marked: Marked) -> None:
    """C13."""
    assert not marked.living()
    case = replace(KILLED["after TERM"], term=1, kill=0, result=EXITED, how="ends")
    played([(("kill", "after TERM"), case)], RealTime(tmp_path, None), tmp_path)


def test_the_end_of_a_command_is_recorded_without_waiting_for_the_dead_workers_lease(
    tmp_path: Path, marked: Marked
) -> None:
    """R7.6: what was delivered by a worker that died before it could say so is history once the Run has ended."""
    assert not marked.living()
    cell = Cell(("kill", "after KILL"), KILLED["after KILL"], RealTime(tmp_path, None), tmp_path)
    with cell.ledger as ledger, working(cell.first_job) as first:
        first.first("ended", cell.first)
        over_s = time.monotonic() + LEASE_MS / 1_000
        cell.ends()
        before = ledger.history(cell.command.run_id)
        wait_until(lambda: time.monotonic() > over_s, "the dead worker's lease is over")
        # No page lists it any more, so nobody takes it over.
        assert ledger.supervise().cycle()["cancellation"] == {"seen": 0, "claimed": 0}
        assert ledger.blocked().items == ()
        assert ledger.history(cell.command.run_id) == before
        assert cell.command.signals() == [["SIGTERM"], ["SIGTERM"]]
        assert first.sent(cell.first) == ["SIGTERM", "SIGKILL"]
        report = ledger.verify()
        assert report.clean, report.differences

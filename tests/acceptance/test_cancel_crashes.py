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
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from left_commands import How, LeavingHost, LeftCommand
from process_watch import Marked, marked_environment, state_of, wait_until
from real_time import RealTime
from runfacts import Actor, Ledger
from runfacts.domain.payloads import RunCancelDispatched, RunCancelDispatchTakenOver
from runfacts.testing.plugin import DATABASES
from runfacts.testing.postgres import PostgresServer
from workers import Job, Workers, with_fault, working

LEASE_MS = 6_000
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
    counted: str | None = None
    """What the first worker is told once it goes on, as its cycles count it."""
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
    "before the claim commit": Case(1, 1, REQUESTED, taken_over=False, counted="dispatched"),
    "after the claim commit": Case(1, 1, REQUESTED, taken_over=True, counted="out_of_time"),
    "between proof and signal": Case(1, 1, REQUESTED, taken_over=True, counted="out_of_time"),
    "after TERM": Case(2, 1, REQUESTED, taken_over=True, counted="fenced"),
    "after KILL": Case(1, 1, EXITED, taken_over=True, counted="fenced"),
    "before the settle commit": Case(1, 1, EXITED, taken_over=True, counted="fenced"),
    "after the settle commit": Case(1, 1, REQUESTED, taken_over=False, counted="termination_requested"),
}
"""The same, and whoever goes on later sends nothing and is refused."""

FROZEN_ON_SQLITE = FROZEN | {
    # Its lease is over when it is written.
    "before the claim commit": Case(1, 1, REQUESTED, taken_over=True, counted="out_of_time"),
    "before the settle commit": Case(1, 1, REQUESTED, taken_over=False, counted="termination_requested"),
}
WITH_THE_FILE_LOCKED = {"before the claim commit", "before the settle commit"}

CUT_OFF = {
    "before the claim commit": Case(1, 1, REQUESTED, taken_over=False, counted="error"),
    "after the claim commit": Case(1, 1, EXITED, taken_over=True, counted="error"),
    "between proof and signal": Case(1, 1, EXITED, taken_over=True, counted="error"),
    "after TERM": Case(1, 1, EXITED, taken_over=True, counted="error"),
    "after KILL": Case(1, 1, EXITED, taken_over=True, counted="error"),
    "before the settle commit": Case(1, 1, EXITED, taken_over=True, counted="error"),
    "after the settle commit": Case(1, 1, REQUESTED, taken_over=False, counted="termination_requested"),
}
"""The claim holds, so the first worker may go through with it; that it cannot say so costs no second signal."""


@pytest.fixture
def marked() -> Iterator[Marked]:
    """Nothing that a test starts outlives it. Asked for last: a server that others use must not get the mark."""
    with marked_environment() as mark:
        yield mark


@pytest.fixture(params=DATABASES)
def databases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealTime]:
    """Fresh databases of one kind."""
    server: PostgresServer | None = None
    if request.param != "sqlite":
        server = request.getfixturevalue(request.param.replace("postgresql-", "postgres_"))
    made = RealTime(tmp_path, server)
    yield made
    made.drop()


class Cell:
    """One case under way: its Run, its command, and the first worker's fault."""

    def __init__(self, point: str, case: Case, databases: RealTime, root: Path) -> None:
        self.point = point
        self.case = case
        self.url = databases.create()
        self.first_url = databases.of_a_role(self.url)
        self.ledger = Ledger.open(self.url)
        self.command: LeftCommand = LeavingHost(self.ledger, root).leave(case.how)
        self.command.ask_to_stop(self.ledger)

    @property
    def first(self) -> str:
        """The name of the worker that meets the fault."""
        return f"first, {self.point}"

    @property
    def second(self) -> str:
        """The name of the one that takes over."""
        return f"second, {self.point}"

    def fault(self, kind: str) -> Job:
        """The first worker."""
        phase, step = POINTS[self.point]
        return with_fault(Job(self.first, self.first_url, lease_ms=LEASE_MS), kind, phase, step)

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

        wait_until(ended, f"{self.point}: the run ends")
        run = self.ledger.run(run_id)
        (attempt,) = run.attempts
        number = SIGKILL if self.case.how == "stays" else None
        observed = "failed" if self.case.how == "stays" else "succeeded"
        assert (run.status, attempt.status, attempt.observed, attempt.signal) == (
            "cancelled",
            "cancelled",
            observed,
            number,
        ), self.point

    def signals_are_those_allowed(self, first: Workers, second: Workers) -> None:
        """No process got more than the rules allow, and nobody sent more."""
        assert self.command.signals() == [[SIGTERM.name] * self.case.term for _ in self.command.logs], self.point
        sent = first.sent(self.first) + second.sent(self.second)
        assert sorted(sent) == [SIGKILL.name] * self.case.kill + [SIGTERM.name] * self.case.term, self.point

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
        assert (delivered.result, delivered.dispatch_count) == (self.case.result, len(takings) + 1), self.point
        # Frozen in its claim's commit, the first one may be the faster one to see that its lease is over.
        if self.case.taken_over and seen:
            assert seen == [owners], self.point
        else:
            assert bool(takings) == self.case.taken_over, self.point


def judged(cells: list[Cell], first: Workers, second: Workers) -> None:
    """Check what must hold in every case."""
    for cell in cells:
        cell.ends()
        cell.signals_are_those_allowed(first, second)
        cell.trail_shows_it(first, second)
        report = cell.ledger.verify()
        assert report.clean, (cell.point, report.differences)
        if cell.case.counted is not None:
            assert first.counted(cell.first, cell.case.counted) >= 1, cell.point


def cells_of(cases: dict[str, Case], databases: RealTime, root: Path, stack: ExitStack) -> list[Cell]:
    cells = []
    for point, case in cases.items():
        cells.append(Cell(point, case, databases, root))
        stack.callback(cells[-1].ledger.close)
    return cells


def chosen(cases: dict[str, Case], *points: str) -> dict[str, Case]:
    return {point: case for point, case in cases.items() if not points or point in points}


def on(database: str, *points: str, long: bool = False) -> object:
    """A run of a test: on which database, at which points (all if none are named)."""
    name = f"{database}-{'all' if not points else 'some'}"
    return pytest.param(database, points, id=name, marks=[pytest.mark.long] if long else [])


def played(
    cases: dict[str, Case],
    kind: str,
    databases: RealTime,
    root: Path,
    *,
    code: int,
    meanwhile: Callable[[list[Cell], Workers], None] = lambda _, __: None,
) -> None:
    """Let the first workers meet their fault and the second ones take over, and judge it; ``code`` is how the first ones end."""
    with ExitStack() as stack:
        cells = cells_of(cases, databases, root, stack)
        first = stack.enter_context(working(*(cell.fault(kind) for cell in cells)))
        for cell in cells:
            first.first("reached", cell.first)
        second = stack.enter_context(working(*(Job(cell.second, cell.url) for cell in cells)))
        for cell in cells:
            second.owner(cell.second)
        meanwhile(cells, first)
        for cell in cells:
            wait_until(cell.is_delivered, f"{cell.point}: somebody delivers it")
            second.next_cycle(cell.second)
        # Whoever still works ends in good order, so nothing more comes of anybody.
        assert set(second.end().values()) == {0}
        assert set(first.end().values()) == {code}
        judged(cells, first, second)


@pytest.mark.parametrize(
    ("databases", "points"),
    [
        on("sqlite"),
        on("postgresql-18", "after TERM", "before the settle commit"),
        on("postgresql-18", long=True),
        on("postgresql-16", long=True),
    ],
    indirect=["databases"],
)
def test_a_killed_worker_costs_no_signal_more_than_allowed(
    databases: RealTime, points: tuple[str, ...], tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    played(chosen(KILLED, *points), "kill", databases, tmp_path, code=-SIGKILL)


def test_a_command_that_ended_on_the_killed_workers_signal_gets_no_other(tmp_path: Path, marked: Marked) -> None:
    """C13."""
    assert not marked.living()
    case = replace(KILLED["after TERM"], term=1, kill=0, result=EXITED, how="ends")
    played({"after TERM": case}, "kill", RealTime(tmp_path, None), tmp_path, code=-SIGKILL)


@pytest.mark.parametrize(
    ("databases", "points"),
    [
        on("sqlite", "between proof and signal", "before the settle commit"),
        on("sqlite", long=True),
        on("postgresql-18", long=True),
        on("postgresql-16", long=True),
    ],
    indirect=["databases"],
)
def test_a_frozen_worker_sends_nothing_more_when_it_goes_on(
    databases: RealTime, points: tuple[str, ...], tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()

    def go_on(cells: list[Cell], first: Workers) -> None:
        over_s = time.monotonic() + LEASE_MS / 1_000
        for cell in cells:
            wait_until(lambda cell=cell: state_of(first.first("begins", cell.first)["pid"]) == "T", "it is frozen")
            if not (databases.is_sqlite and cell.point in WITH_THE_FILE_LOCKED):
                wait_until(cell.is_delivered, f"{cell.point}: somebody delivers it")
        wait_until(lambda: time.monotonic() > over_s, "the leases of all of them are over")
        for cell in cells:
            first.thaw(cell.first)
            first.next_cycle(cell.first)

    cases = FROZEN_ON_SQLITE if databases.is_sqlite else FROZEN
    played(chosen(cases, *points), "freeze", databases, tmp_path, code=0, meanwhile=go_on)


@pytest.mark.parametrize(
    ("databases", "points"),
    [
        on("sqlite", "after the claim commit", "before the settle commit"),
        on("sqlite", long=True),
        on("postgresql-18", long=True),
        on("postgresql-16", long=True),
    ],
    indirect=["databases"],
)
def test_a_worker_cut_off_from_its_database_is_taken_over_and_goes_on_trying(
    databases: RealTime, points: tuple[str, ...], tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()

    def still_tries(cells: list[Cell], first: Workers) -> None:
        for cell in cells:
            wait_until(cell.is_delivered, f"{cell.point}: somebody delivers it")
            first.next_cycle(cell.first)

    played(chosen(CUT_OFF, *points), "cut", databases, tmp_path, code=0, meanwhile=still_tries)

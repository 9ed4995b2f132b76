"""
Whatever lives, dies or is asked in whatever order, recovery keeps its promises over a real ledger (R10 to R13).

Hosts, commands and keepers end where they like, workers die between any two of their statements, terms run out while
somebody looks, users ask Runs to stop, and operators act on what waits for them. The truth is kept in the bodies of a
machine that only evidence providers and receipts may see. With few examples on every database; with many in the long
tests.
"""

# ruff: noqa: D102 - rules and invariants are named by their sentence, like tests

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from left_behind import nothing
from left_behind_happenings import DELAY_MAX_MS, LEASE_MS, WHICH, YES_OR_NO, Happenings
from recoveries import states
from runfacts import IntentKind, RunView
from runfacts.domain.lifecycle import ACTIVE_ATTEMPT, TERMINAL_RUN, AttemptStatus, RunStatus
from runfacts.domain.recovery.claims import ClaimState, Purpose
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of, sqlite_ledgers
from runfacts.testing.postgres import PostgresServer

ROUNDS = 14
"""Cycles within which everything must have come to its end, once all can be seen."""
AFTER_THE_END = {
    "attempt.late_callback_ignored",
    "run.cancel_dispatched",
    "run.cancel_dispatch_failed",
    "run.cancel_dispatch_blocked",
}
"""What may be recorded of a Run that has ended: what is said too late."""
TERMINAL_FACTS = {f"run.{status.value}" for status in TERMINAL_RUN}

LATER = st.sampled_from([LEASE_MS, 0, LEASE_MS + DELAY_MAX_MS])
"""How much time has passed when a worker comes."""
WORKERS = st.sampled_from([0, 0, 1, 1, 2])
"""Two workers of the place, and one from elsewhere."""
HAPPENINGS = st.sampled_from(
    ["ends", "ends well", "publishes", "reports", "renews", "goes on", "is asked", "dies", "another worker", "waits"]
)


class Recovering(Happenings):
    """What workers do about them, and what must hold."""

    # Workers.

    @rule(worker=WORKERS, later_ms=LATER)
    def a_worker_works(self, worker: int, later_ms: int) -> None:
        self.clock.advance(later_ms)
        self.workers[worker].cycles()

    @rule(worker=WORKERS, later_ms=LATER, step=st.integers(0, 60), goes_on=YES_OR_NO)
    def a_worker_dies(self, worker: int, later_ms: int, step: int, goes_on: bool) -> None:  # noqa: FBT001 - as above
        self.clock.advance(later_ms)
        self.workers[worker].cycles(dies_at=step)
        if goes_on:
            # Another finds what it left, in its time.
            self.a_worker_works((worker + 1) % 2, LEASE_MS)

    @rule(worker=WORKERS, when=st.tuples(LATER, st.integers(0, 9)), which=WHICH, what=HAPPENINGS)
    def something_happens_while_a_worker_looks(self, worker: int, when: tuple[int, int], which: int, what: str) -> None:
        later_ms, step = when
        self.clock.advance(later_ms)
        reached = iter(range(1_000))

        def between() -> None:
            if next(reached) == step:
                self.machine.between = nothing
                self._happens(what, which, (worker + 1) % 2)

        self.machine.between = between
        self.workers[worker].cycles()
        self.machine.between = nothing

    def _happens(self, what: str, which: int, other: int) -> None:
        if what == "another worker":
            # The holder is slow, and its term is taken over.
            self.a_worker_works(other, LEASE_MS)
        actions: dict[str, Callable[[], None]] = {
            "ends": lambda: self.a_command_ends(which, "badly", child_stays=True, published=False),
            "ends well": lambda: self.a_command_ends(which, "well", child_stays=False, published=True),
            "publishes": lambda: self.something_dies(which, "keeper publishes"),
            "reports": lambda: self.a_host_reports(which),
            "renews": lambda: self.a_host_renews(which),
            "goes on": lambda: self.a_host_goes_on(which, 3),
            "is asked": lambda: self.somebody_asks_it_to_stop(which, IntentKind.USER),
            "dies": lambda: self.a_host_dies(which),
            "waits": lambda: self.clock.advance(LEASE_MS),
        }
        actions.get(what, nothing)()

    # What holds at all times.

    @invariant()
    def nothing_is_lost_or_stopped_while_it_lives(self) -> None:
        for run_id in set(self.runs) - self.believed:
            lives = {attempt_id: self.machine.body(attempt_id).lives for attempt_id in self._attempts(run_id)}
            assert sum(lives.values()) <= 1
            for attempt_id, status in self._attempts(run_id).items():
                if status in {AttemptStatus.LOST, AttemptStatus.CANCELLED, AttemptStatus.TIMED_OUT}:
                    assert not lives[attempt_id], status
                if status is AttemptStatus.LOST:
                    # A finished Run is never called lost (R10.2).
                    assert not self.machine.body(attempt_id).receipt

    @invariant()
    def one_attempt_is_active_at_most_and_what_has_ended_stays_so(self) -> None:
        for run_id in self.runs:
            run = self.ledger.run(run_id)
            active = [attempt for attempt in run.attempts if attempt.status in ACTIVE_ATTEMPT]
            assert len(active) == (run.status in {"dispatching", "running", "waiting_approval"})
            assert self.ended.get(run_id, run.status) is run.status
            if run.status in TERMINAL_RUN:
                self.ended[run_id] = run.status

    @invariant()
    def facts_are_dense_and_nothing_comes_after_the_end(self) -> None:
        for run_id in self.runs:
            facts = self.ledger.history(run_id)
            assert [fact.sequence for fact in facts] == list(range(1, len(facts) + 1))
            keys = [fact.dedupe_key for fact in facts if fact.dedupe_key is not None]
            assert len(keys) == len(set(keys))
            ends = [place for place, fact in enumerate(facts) if fact.type in TERMINAL_FACTS]
            assert len(ends) <= 1
            assert {fact.type for place in ends for fact in facts[place + 1 :]} <= AFTER_THE_END

    @invariant()
    def workers_fail_by_nothing_of_ours(self) -> None:
        assert [error for worker in getattr(self, "workers", ()) for error in worker.errors] == []

    # How it ends.

    def teardown(self) -> None:
        """Once everything can be seen and nobody comes back, bounded cycles bring every Run to an end or a queue."""
        try:
            if self.runs:
                self._everything_comes_to_its_end()
        finally:
            for worker in getattr(self, "workers", ()):
                self.seen.update(worker.counts)
            self.opened.close()

    def _everything_comes_to_its_end(self) -> None:
        self.machine.sight = "clear"
        for body in self.machine.bodies.values():
            body.dies()
        for _ in range(ROUNDS):
            self.clock.advance(DELAY_MAX_MS + LEASE_MS)
            self._all_work()
        listed = {item.run_id for item in self.ledger.manual(limit=100).items}
        for run_id in self.runs:
            run = self.ledger.run(run_id)
            assert self._is_over(run) or run_id in listed, (run.status, contents_of(self.ledger)["recovery_claims"])
        self._all_work()
        left = {state for purpose in Purpose for state in states(self.ledger, purpose)}
        assert left <= {ClaimState.RESOLVED, ClaimState.MANUAL}
        self.one_attempt_is_active_at_most_and_what_has_ended_stays_so()
        self.facts_are_dense_and_nothing_comes_after_the_end()
        self.workers_fail_by_nothing_of_ours()
        report = self.ledger.verify()
        assert report.clean, report.differences

    def _all_work(self) -> None:
        for worker in self.workers:
            worker.cycles()

    @staticmethod
    def _is_over(run: RunView) -> bool:
        """Whether it has ended, or waits for a worker to claim it."""
        return run.status in TERMINAL_RUN or (run.status is RunStatus.QUEUED and run.cancellation is None)


FEW = settings(
    max_examples=16,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    # Shrinking takes long and is worth it by hand only.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
FEWER = settings(FEW, max_examples=5)
MANY = settings(FEW, max_examples=300, derandomize=False)


class OnSqlite(Recovering):
    """Every example on a file of its own."""

    database = staticmethod(sqlite_ledgers)


def on_postgresql(request: pytest.FixtureRequest, version: str) -> type[Recovering]:
    """Give the machine on a server, every example on a copy of the template."""
    server: PostgresServer = request.getfixturevalue(f"postgres_{version}")
    template: str = request.getfixturevalue(f"postgres_{version}_template")

    @contextmanager
    def copied() -> Iterator[ThrowAwayLedgers]:
        url = server.create_database(template)
        with ThrowAwayLedgers(url) as ledgers:
            yield ledgers
        server.drop_database(url)

    class OnPostgresql(Recovering):
        """Every example on a copy of the template."""

        database = staticmethod(copied)

    return OnPostgresql


def test_any_death_on_sqlite() -> None:
    run_state_machine_as_test(OnSqlite, settings=FEW)
    # What never happens shows nothing.
    assert {"lost", "moved_on", "stopped", "receipt", "manual", "retry", "swept"} <= (+OnSqlite.seen).keys()


@pytest.mark.parametrize("version", ["16", "18"])
def test_any_death_on_postgresql(request: pytest.FixtureRequest, version: str) -> None:
    run_state_machine_as_test(on_postgresql(request, version), settings=FEWER)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_more_deaths_on_sqlite() -> None:
    run_state_machine_as_test(OnSqlite, settings=MANY)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", ["16", "18"])
def test_many_more_deaths_on_postgresql(request: pytest.FixtureRequest, version: str) -> None:
    run_state_machine_as_test(on_postgresql(request, version), settings=settings(MANY, max_examples=40))

"""
Whatever comes in whatever order, cancellation keeps its promises (R2 to R8, R13).

Requests, claims by several workers, crashes, expiries, late results, reports and operators' verbs come over a real
ledger and a clock that moves.

What must hold is kept in a model of a few lines, which knows no SQL: who holds the delivery and until when. On
SQLite by default; on PostgreSQL with the long tests.
"""

# ruff: noqa: D102 - rules and invariants are named by their sentence, like tests

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deliveries import OPERATOR, Asked, brought_to, claim_answer, dispatch_of, due_runs
from runfacts import (
    Conflict,
    Finished,
    IllegalTransition,
    IntentKind,
    LateCallback,
    Ledger,
    NotAllowed,
    Outcome,
    RetryPolicy,
    StopNotProven,
)
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.results import SETTLED, DispatchResult
from runfacts.domain.cancellation.terms import (
    AlreadyRequested,
    AlreadyTerminal,
    CancelRequested,
    DispatchAlreadySettled,
    DispatchClaimed,
    DispatchFenced,
    DispatchNotClaimed,
    DispatchSettled,
)
from runfacts.domain.lifecycle import TERMINAL_RUN, RunStatus
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of, sqlite_ledgers
from runfacts.testing.postgres import PostgresServer
from stages import ANA, WORKER

STAGES = ["claimed", "starting", "running", "waiting_approval"]
OWNERS = st.sampled_from(["worker-1", "worker-2", "worker-3"])
RESULTS = st.sampled_from(sorted(SETTLED))
LENGTHS = st.sampled_from([1_000, 30_000])
OUTCOMES = st.sampled_from([Outcome.succeeded(exit_code=0), Outcome.failed(exit_code=3), Outcome.cancelled(signal=15)])
# What ends the Run ends the story: most examples shall have a long one.
RARELY = st.integers(0, 9).map(lambda number: number == 5)
STEPS = st.sampled_from([1, 999, 1_000, 29_999, 30_000, 61_000])


class Cancelling(RuleBasedStateMachine):
    """One Run, its workers and its operator."""

    database: Callable[[], AbstractContextManager[ThrowAwayLedgers]]

    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()

    def teardown(self) -> None:
        self.opened.close()

    @initialize(stage=st.sampled_from(STAGES), retried=st.booleans(), unasked=RARELY)
    def begin(self, stage: str, retried: bool, unasked: bool) -> None:  # noqa: FBT001 - hypothesis names it
        self.ledgers = self.opened.enter_context(type(self).database())
        self.clock = self.ledgers.clock
        self.ledger: Ledger = self.ledgers(dispatch_limit=4, cancel_lease_ms=30_000)
        policy = RetryPolicy(max_attempts=2, retry_on_failure=retried)
        self.claim = brought_to(self.ledger, stage, policy=policy)
        self.run_id = self.claim.run_id
        self.requested_at_ms = -1
        self.terms: list[DispatchClaimed] = []
        self.holder: tuple[DispatchClaimed, int] | None = None
        self.count = 0
        self.settled: dict[int, DispatchResult] = {}
        self.attested = False
        self.reported = False
        self.barred = False
        self.status = self.ledger.run(self.run_id).status
        if not unasked:
            self.ask(IntentKind.USER)

    @property
    def asked(self) -> Asked:
        """The Run as workers know it."""
        return Asked(self.claim, self.requested_at_ms)

    @property
    def ended(self) -> bool:
        """Whether the Run has ended."""
        return self.ledger.run(self.run_id).status in TERMINAL_RUN

    def held(self) -> DispatchClaimed | None:
        """The term whose lease is valid by now."""
        if self.holder is None or self.clock.boot_ms() >= self.holder[1]:
            return None
        return self.holder[0]

    @rule(kind=st.sampled_from(IntentKind))
    def somebody_asks(self, kind: IntentKind) -> None:
        self.ask(kind)

    def ask(self, kind: IntentKind) -> None:
        """Ask the Run to stop."""
        was_ended, status = self.ended, self.ledger.run(self.run_id).status
        had_attempt = self.ledger.run(self.run_id).active_attempt is not None
        answer = self.ledger.request_cancellation(self.run_id, actor=ANA, kind=kind)
        if was_ended:
            assert isinstance(answer, AlreadyTerminal)
        elif self.requested_at_ms >= 0:
            assert isinstance(answer, AlreadyRequested)
        else:
            assert isinstance(answer, CancelRequested)
            self.requested_at_ms = answer.requested_at_ms
            # Nothing is cancelled because somebody asked, unless there is nothing to stop (R6.2, R6.3).
            assert answer.ended is not had_attempt
            self.barred = answer.ended
            assert answer.ended or answer.status is status

    @rule(ms=STEPS)
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ms=st.sampled_from([-3_600_000, 3_600_000]))
    def the_wall_clock_jumps(self, ms: int) -> None:
        self.clock.jump_wall(ms)

    @rule(owner=OWNERS, lease_ms=LENGTHS)
    def a_worker_claims_it_and_dies(self, owner: str, lease_ms: int) -> None:
        self.claim_it(owner, lease_ms)
        self.clock.advance(lease_ms)

    @rule(owner=OWNERS, lease_ms=LENGTHS)
    def its_wait_ends_and_another_claims_it(self, owner: str, lease_ms: int) -> None:
        self.clock.advance(60_000)
        self.claim_it(owner, lease_ms)

    @rule(owner=OWNERS, lease_ms=LENGTHS)
    def claim_it(self, owner: str, lease_ms: int) -> None:
        before, held = contents_of(self.ledger), self.held()
        answer = claim_answer(self.ledger, self.asked, owner, lease_ms=lease_ms)
        if isinstance(answer, DispatchNotClaimed):
            if answer.answer is not ClaimAnswer.BLOCKED:
                assert contents_of(self.ledger) == before
            if answer.answer is ClaimAnswer.LEASED:
                assert held is not None
            else:
                assert held is None or self.ended
                self.holder = None if answer.answer is ClaimAnswer.BLOCKED else self.holder
            return
        # At most one valid lease (R7.2), and never one of a Run that has ended or that nobody asked to stop.
        assert held is None
        assert self.requested_at_ms >= 0
        assert not self.ended
        assert (answer.dispatch_count, answer.taken_over) == (self.count + 1, self.unsettled_holder())
        self.count += 1
        self.terms.append(answer)
        self.holder = (answer, self.clock.boot_ms() + lease_ms)

    def unsettled_holder(self) -> bool:
        """Whether the term before ended by its expiry alone."""
        return self.holder is not None and self.holder[0].dispatch_count not in self.settled

    @rule(served=st.just(frozenset({("batch", "there")})), owner=OWNERS)
    def claim_it_from_elsewhere(self, served: frozenset[tuple[str, str]], owner: str) -> None:
        answer = claim_answer(self.ledger, self.asked, owner, served=served)
        assert isinstance(answer, DispatchNotClaimed)
        assert answer.answer is ClaimAnswer.NOT_ELIGIBLE

    @precondition(lambda self: self.terms)
    @rule(data=st.data(), result=RESULTS)
    def settle_any_term(self, data: st.DataObject, result: DispatchResult) -> None:
        term = data.draw(st.sampled_from(self.terms))
        before = contents_of(self.ledger)
        answer = self.ledger.settle_dispatch(term, result)
        recorded = self.settled.get(term.dispatch_count)
        if isinstance(answer, DispatchSettled):
            # Only the last term, once, and also after its expiry (R7.4).
            assert self.holder is not None
            assert term is self.holder[0]
            assert recorded is None
            self.settled[term.dispatch_count] = result
            self.holder = None
            return
        assert contents_of(self.ledger) == before
        if isinstance(answer, DispatchAlreadySettled):
            assert recorded is result
        else:
            assert isinstance(answer, DispatchFenced)
            assert recorded is not result
            assert recorded is not None or self.holder is None or term is not self.holder[0]

    @rule(outcome=OUTCOMES, gone=RARELY)
    def report(self, outcome: Outcome, gone: bool) -> None:  # noqa: FBT001 - hypothesis names it
        group_left = not gone
        was_ended = self.ledger.run(self.run_id).active_attempt is None
        try:
            answer = self.ledger.finish(self.claim, outcome, actor=WORKER, group_left=group_left)
        except IllegalTransition:
            # A claimed Attempt has nothing to report but its end by the barrier (R2.4).
            return
        if was_ended:
            assert isinstance(answer, LateCallback) or type(answer).__name__ == "Repeated"
        elif group_left and self.requested_at_ms >= 0:
            assert isinstance(answer, StopNotProven)
        else:
            assert isinstance(answer, Finished)
            self.reported = True

    @rule(comes=RARELY)
    def come_to_the_barrier(self, comes: bool) -> None:  # noqa: FBT001 - hypothesis names it
        if not comes:
            return
        try:
            answer: Any = self.ledger.start(self.claim, actor=WORKER)
            if type(answer).__name__ != "StartRefused" or answer.attempt_status.value == "starting":
                answer = self.ledger.running(self.claim, actor=WORKER, handle="h", pid=7)
        except IllegalTransition:
            return
        if self.requested_at_ms >= 0 and self.ended:
            self.barred = True

    @rule(verb=st.sampled_from(["rearm", "rearm", "abandon"]), confirms=RARELY, stale=RARELY)
    def an_operator_acts(self, verb: str, confirms: bool, stale: bool) -> None:  # noqa: FBT001 - hypothesis names it
        verb = "confirm" if confirms else verb
        row, before = dispatch_of(self.ledger, self.run_id), contents_of(self.ledger)
        version = (0 if row is None else row["version"]) - stale
        try:
            if verb == "rearm":
                self.ledger.rearm(self.run_id, actor=OPERATOR, because="r", version=version)
            elif verb == "abandon":
                held = self.held()
                self.ledger.abandon(self.run_id, actor=OPERATOR, because="a", version=version)
                if contents_of(self.ledger) != before:
                    assert held is None
                    self.holder = None
            else:
                version = self.ledger.run(self.run_id).version - stale
                self.ledger.confirm_stopped(self.run_id, actor=OPERATOR, because="c", version=version)
                self.attested = True
        except (Conflict, NotAllowed):
            assert contents_of(self.ledger) == before

    @rule()
    def somebody_looks_for_work(self) -> None:
        before = contents_of(self.ledger)
        due = due_runs(self.ledger)
        assert contents_of(self.ledger) == before
        # What is due for us is a Run that may be claimed: nothing else takes a place in a page (R9.2).
        if due:
            assert due == [self.run_id]
            assert self.held() is None
            assert not self.ended

    @rule()
    def everybody_restarts(self) -> None:
        """A crash of all: what is not stored is forgotten."""
        self.ledger.close()
        self.ledger = self.ledgers(dispatch_limit=4, cancel_lease_ms=30_000)

    @invariant()
    def the_count_only_grows_and_the_row_stays_bound(self) -> None:
        row = dispatch_of(self.ledger, self.run_id)
        if row is None:
            assert self.count == 0
            return
        assert row["attempt_id"] == self.claim.attempt_id
        assert row["dispatch_count"] == self.count
        assert row["tries_since_rearm"] <= 4
        assert (row["status"] == "leased") == (self.holder is not None)
        if self.holder is not None:
            assert (row["lease_owner"], row["version"]) == (self.holder[0].owner, self.holder[0].version)
        if self.ended:
            assert row["due_at_ms"] is None

    @invariant()
    def what_has_ended_stays_ended(self) -> None:
        status = self.ledger.run(self.run_id).status
        assert status is self.status or self.status not in TERMINAL_RUN
        self.status = status

    @invariant()
    def a_cancelled_run_has_evidence_or_never_had_a_process(self) -> None:
        if self.status in {RunStatus.CANCELLED, RunStatus.TIMED_OUT}:
            assert self.reported or self.attested or self.barred

    @invariant()
    def facts_have_their_own_keys_and_the_ledger_verifies(self) -> None:
        keys = [fact.dedupe_key for fact in self.ledger.history(self.run_id) if fact.dedupe_key is not None]
        assert len(keys) == len(set(keys))
        settles = [key for key in keys if key.startswith("cancel-dispatch:")]
        assert len(settles) == len(self.settled)
        assert self.ledger.verify().clean


BOUNDED = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    # Shrinking takes long and is worth it by hand only.
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
LONG = settings(BOUNDED, max_examples=200, derandomize=False)


class OnSqlite(Cancelling):
    """Every example on a file of its own."""

    database = staticmethod(sqlite_ledgers)


def test_any_order_on_sqlite() -> None:
    run_state_machine_as_test(OnSqlite, settings=BOUNDED)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_many_more_orders_on_sqlite() -> None:
    run_state_machine_as_test(OnSqlite, settings=LONG)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", ["16", "18"])
def test_any_order_on_postgresql(request: pytest.FixtureRequest, version: str) -> None:
    server: PostgresServer = request.getfixturevalue(f"postgres_{version}")
    template: str = request.getfixturevalue(f"postgres_{version}_template")

    @contextmanager
    def copied() -> Iterator[ThrowAwayLedgers]:
        url = server.create_database(template)
        with ThrowAwayLedgers(url) as ledgers:
            yield ledgers
        server.drop_database(url)

    class OnPostgresql(Cancelling):
        """Every example on a copy of the template."""

        database = staticmethod(copied)

    run_state_machine_as_test(OnPostgresql, settings=BOUNDED)

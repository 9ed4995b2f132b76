"""What happens to Runs, their hosts and commands over a real ledger while workers look, as rules of a state machine."""

# ruff: noqa: D102 - rules are named by their sentence, like tests

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from deliveries import OPERATOR
from left_behind import Body, Eyes, Machine, MortalWorker, Terms, opened
from recoveries import SCOPE, SERVED
from runfacts import (
    Claimed,
    Conflict,
    IntentKind,
    Ledger,
    NotAllowed,
    Outcome,
    Recorded,
    RetryPolicy,
    Safety,
    Started,
    StopNotProven,
)
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import DispatchClaimed
from runfacts.domain.lifecycle import AttemptStatus, RunStatus
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, EXECUTOR, WORKER, created, queued

LEASE_MS = 30_000
GRACE_MS = 10_000
DELAY_MAX_MS = 300_000
JUMP_MS = 600_000
LIMITS = {
    "failure_limit": 4,
    "stop_report_grace_ms": GRACE_MS,
    "dispatch_limit": 4,
    "stuck_created_ms": 600_000,
}
POLICIES = (
    RetryPolicy(),
    RetryPolicy(max_attempts=3, retry_on_failure=True, backoff_ms=500),
    RetryPolicy(max_attempts=3, retry_on_failure=True, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=500),
)
ENDS_BY = {
    "well": Outcome.succeeded(exit_code=0),
    "badly": Outcome.failed(exit_code=7),
    "killed": Outcome.failed(signal=9),
}

WHICH = st.integers(0, 1)
YES_OR_NO = st.booleans()
STEPS = st.sampled_from([4, 4, 4, 0, 1, 2, 3])
"""What a host does next: the start barrier, the process, its handle, the gate (R10.1)."""
BEGUN = st.tuples(st.sampled_from(POLICIES), YES_OR_NO, STEPS)
DELIVERED = st.sampled_from([None, DispatchResult.TERMINATION_REQUESTED, DispatchResult.NOT_PERMITTED])
"""How a worker settles what it delivered; None where it dies instead."""


class Happenings(RuleBasedStateMachine):
    """Two Runs, their hosts and commands, users, operators, and three workers that do nothing by themselves."""

    database: Callable[[], AbstractContextManager[ThrowAwayLedgers]]
    seen: ClassVar[Counter[str]] = Counter()
    """What all workers reported in all examples."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = ExitStack()
        self.runs: list[str] = []
        self.believed: set[str] = set()
        """Runs of which an operator said something that need not be true."""
        self.deliveries: list[DispatchClaimed] = []
        self.ended: dict[str, RunStatus] = {}
        self.ahead_ms = 0
        """How much the wall clock is ahead of the time that passed."""

    @initialize(begun=st.tuples(BEGUN, BEGUN))
    def begin(self, begun: tuple[tuple[RetryPolicy, bool, int], ...]) -> None:
        self.ledgers = self.opened.enter_context(type(self).database())
        self.clock = self.ledgers.clock
        self.ledger: Ledger = opened(self.ledgers, LIMITS)
        self.machine = Machine(self.clock, Terms(self.clock, LEASE_MS))
        self.workers = [
            MortalWorker(self.ledgers, self.machine, f"worker-{place}-{number}", LIMITS, place)
            for number, place in enumerate([SCOPE, SCOPE, "there"])
        ]
        for which, (policy, gated, steps) in enumerate(begun):
            self.runs.append(queued(self.ledger, policy=policy))
            self.a_host_claims(which, gated, steps)

    # Hosts and commands.

    @rule(which=WHICH, gated=YES_OR_NO, steps=STEPS)
    def a_host_claims(self, which: int, gated: bool, steps: int) -> None:  # noqa: FBT001 - hypothesis names it
        run_id = self.runs[which]
        claimed = self.ledger.claim(
            run_id, actor=WORKER, executor_type=EXECUTOR, scope=SCOPE, gated=gated, lease_ms=LEASE_MS, queue=True
        )
        if isinstance(claimed, Claimed):
            self.machine.bodies[claimed.claim.attempt_id] = Body(claim=claimed.claim, gated=gated)
            self.a_host_goes_on(which, steps)

    @rule(which=WHICH, steps=st.integers(1, 4))
    def a_host_goes_on(self, which: int, steps: int) -> None:
        for _ in range(steps):
            for body in self._hosted(which):
                self._host_step(body)

    def _host_step(self, body: Body) -> None:
        attempt = self._attempts(body.claim.run_id)[body.claim.attempt_id]
        if attempt is AttemptStatus.CLAIMED:
            answer = self.ledger.start(body.claim, actor=WORKER, timeout_ms=200_000, receipt_path="/r")
            body.host_lives = isinstance(answer, Started)
        elif body.state == "none":
            if attempt is AttemptStatus.STARTING:
                body.keeper_lives, body.state = body.gated, "waiting" if body.gated else "running"
            else:
                body.host_lives = False
        elif not body.handle:
            body.handle = isinstance(self.ledger.running(body.claim, actor=WORKER, handle="h", pid=7), Recorded)
            if not body.handle:
                body.gate_closes()
        elif body.state == "waiting":
            body.state = "running"

    @rule(which=WHICH)
    def a_host_renews(self, which: int) -> None:
        for body in self._hosted(which):
            self.ledger.renew(body.claim, lease_ms=LEASE_MS)

    @rule(which=WHICH)
    def a_host_reports(self, which: int) -> None:
        for body in self._hosted(which):
            # Without a keeper a host waits for its command itself, once its handle is recorded.
            if body.outcome is None or not (body.receipt if body.gated else body.handle):
                continue
            left = body.state == "left"
            answer = self.ledger.finish(body.claim, body.outcome, actor=WORKER, group_left=left)
            if isinstance(answer, StopNotProven):
                assert left
            else:
                body.receipt = body.host_lives = False

    @rule(which=WHICH)
    def a_host_dies(self, which: int) -> None:
        for body in self._hosted(which):
            body.host_dies()

    @rule(which=WHICH, how=st.sampled_from(sorted(ENDS_BY)), child_stays=YES_OR_NO, published=YES_OR_NO)
    def a_command_ends(self, which: int, how: str, child_stays: bool, published: bool) -> None:  # noqa: FBT001 - hypothesis names it
        for body in self._bodies(which):
            body.leader_ends(ENDS_BY[how], child_stays=child_stays)
            if published:
                body.keeper_ends(killed=False)

    @rule(which=WHICH, what=st.sampled_from(["child ends", "keeper publishes", "keeper is killed", "all die"]))
    def something_dies(self, which: int, what: str) -> None:
        for body in self._bodies(which):
            if what == "child ends":
                body.state = "dead" if body.state == "left" else body.state
            elif what == "all die":
                body.dies()
            else:
                body.keeper_ends(killed=what == "keeper is killed")

    # Users, deliveries and operators.

    @rule(which=WHICH, kind=st.sampled_from(IntentKind))
    def somebody_asks_it_to_stop(self, which: int, kind: IntentKind) -> None:
        self.ledger.request_cancellation(self.runs[which], actor=ANA, kind=kind)

    @rule()
    def deadlines_are_looked_at(self) -> None:
        self.ledger.request_due_deadlines(actor=WORKER)

    @rule(stubborn=YES_OR_NO, result=DELIVERED)
    def stops_are_delivered(self, stubborn: bool, result: DispatchResult | None) -> None:  # noqa: FBT001 - hypothesis names it
        page, _ = self.ledger.due_dispatches(tuple(SERVED), limit=32)
        for item in page.items:
            term = self.ledger.claim_dispatch(
                item.run_id, item.attempt_id, item.requested_at_ms, owner="d", served=SERVED, lease_ms=LEASE_MS
            )
            if not isinstance(term, DispatchClaimed):
                continue
            body = self.machine.body(item.attempt_id)
            if body.lives and not stubborn:
                body.outcome = body.outcome or ENDS_BY["killed"]
                body.state = "dead"
            self.deliveries.append(term)
            if result is not None:
                self.ledger.settle_dispatch(term, result)

    @rule(result=DELIVERED)
    def an_old_delivery_is_settled(self, result: DispatchResult | None) -> None:
        for term in self.deliveries[-2:] if result else ():
            assert result is not None
            self.ledger.settle_dispatch(term, result)

    @rule(forced=st.sampled_from([False, False, True]), verb=st.sampled_from(["release", "attest", "confirm"]))
    def an_operator_acts_on_what_waits(self, verb: str, forced: bool) -> None:  # noqa: FBT001 - hypothesis names it
        for item in self.ledger.manual().items:
            who: dict[str, Any] = {"actor": OPERATOR, "because": "I looked"}
            asks: dict[str, Any] = {"provider": Eyes(self.machine), "force": forced}
            lied = any(body.lives or body.host_lives for body in self._bodies(self.runs.index(item.run_id)))
            with suppress(Conflict, NotAllowed):
                if verb == "release":
                    self.ledger.release(item.run_id, version=item.version, **who)
                    continue
                if lied and not forced:
                    continue
                if verb == "attest":
                    self.ledger.attest_not_running(item.run_id, version=item.version, **who, **asks)
                else:
                    self.ledger.confirm_stopped(item.run_id, version=item.run_version, **who, **asks)
                if lied:
                    self.believed.add(item.run_id)

    @rule(which=WHICH, verb=st.sampled_from(["rearm", "abandon"]))
    def an_operator_acts_on_a_delivery(self, which: int, verb: str) -> None:
        asked = self.ledger.run(self.runs[which]).cancellation
        version = 0 if asked is None or asked.dispatch is None else asked.dispatch.version
        act = self.ledger.rearm if verb == "rearm" else self.ledger.abandon
        with suppress(Conflict, NotAllowed):
            act(self.runs[which], actor=OPERATOR, because="b", version=version)

    # Time, and what can be seen.

    @rule(ms=st.sampled_from([1, 1_000, GRACE_MS, LEASE_MS, LEASE_MS + DELAY_MAX_MS]))
    def time_passes(self, ms: int) -> None:
        self.clock.advance(ms)

    @rule(ahead_ms=st.sampled_from([-JUMP_MS, 0, JUMP_MS]))
    def the_wall_clock_is_set(self, ahead_ms: int) -> None:
        """Forward or back; a step back is made up for before the end."""
        self.clock.jump_wall(ahead_ms - self.ahead_ms)
        self.ahead_ms = ahead_ms

    @rule(sight=st.sampled_from(["clear", "clear", "clear", "clear", "away", "strange", "torn", "broken"]))
    def the_sight_changes(self, sight: str) -> None:
        self.machine.sight = sight

    @rule()
    def everybody_restarts(self) -> None:
        self.ledger.close()
        self.ledger = opened(self.ledgers, LIMITS)

    @rule()
    def somebody_creates_a_run_and_goes(self) -> None:
        if len(self.runs) == 2:
            self.runs.append(created(self.ledger))

    def _bodies(self, which: int) -> list[Body]:
        return [body for body in self.machine.bodies.values() if body.claim.run_id == self.runs[which]]

    def _hosted(self, which: int) -> list[Body]:
        return [body for body in self._bodies(which) if body.host_lives]

    def _attempts(self, run_id: str) -> dict[str, AttemptStatus]:
        return {attempt.attempt_id: attempt.status for attempt in self.ledger.run(run_id).attempts}

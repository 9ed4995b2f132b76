"""Whatever dies between whatever steps, nothing is lost while it lives and everything comes to an end or a queue.

Issue: no Run lost while its process lives; every cancelled or abandoned Run reaches an end or the queue in bounded
cycles (R2.8, R6.5, R11.5 to R11.8, R12.1, R12.2).
"""

# ruff: noqa: D102 - rules and invariants are named by their sentence, like tests

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from recovery_model import Model
from recovery_world import LEASE_MS, SERVED, SETTINGS, Process, Sight
from runfacts.domain import decisions
from runfacts.domain.decisions import Refusal
from runfacts.domain.history import History
from runfacts.domain.lifecycle import AttemptStatus, IntentKind, RunStatus
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import ClaimState, Purpose
from runfacts.domain.recovery.processor import RecoveryProcessor
from runfacts.domain.retry import RetryPolicy, Safety

POLICIES = (
    RetryPolicy(),
    RetryPolicy(max_attempts=3, retry_on_failure=True, backoff_ms=500),
    RetryPolicy(max_attempts=3, retry_on_failure=True, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=500),
)
STEPS = st.sampled_from([4, 4, 4, 0, 1, 2, 3])
"""What a host does next: the start barrier, the process, its handle, the gate (R10.1)."""
ENDS_BY = {
    "well": Outcome.succeeded(exit_code=0),
    "badly": Outcome.failed(exit_code=7),
    "killed": Outcome.failed(signal=9),
}
BEGUN = st.tuples(st.sampled_from(POLICIES), st.booleans(), STEPS)
"""A policy, whether the executor has a gate, and how far a host has come."""
LATER = st.sampled_from([LEASE_MS, 400_000, 0])
"""How much time has passed when a worker comes."""
YES_OR_NO = st.booleans()
AT_STEP = st.integers(0, 16)
HAPPENINGS = st.sampled_from(
    [
        "ends",
        "ends well",
        "publishes",
        "reports",
        "renews",
        "goes on",
        "is asked",
        "dies",
        "another worker",
        "time passes",
    ]
)
ROUNDS = 12
"""Cycles of each purpose within which everything must have come to its end, once all can be seen."""


class WorkerDied(BaseException):
    """The worker was killed: no handler of its own runs."""


class AnyDeath(RuleBasedStateMachine):
    """Two Runs, their hosts and commands, users, and workers that die between any two steps."""

    @initialize(begun=st.tuples(BEGUN, BEGUN))
    def begin(self, begun: tuple[tuple[RetryPolicy, bool, int], ...]) -> None:
        self.world = Model()
        self.sight = Sight(self.world)
        self.runs = [self.world.create(policy) for policy, _, _ in begun]
        for which, (_, gated, steps) in enumerate(begun):
            self.a_host_claims(which, gated, steps)

    # Hosts and commands.

    @rule(which=st.integers(0, 1), gated=st.booleans(), steps=STEPS)
    def a_host_claims(self, which: int, gated: bool, steps: int) -> None:  # noqa: FBT001 - hypothesis names it
        if self.world.claim(self.runs[which], gated=gated):
            self.a_host_goes_on(which, steps)

    @rule(which=st.integers(0, 1), steps=st.integers(1, 4))
    def a_host_goes_on(self, which: int, steps: int) -> None:
        for _ in range(steps):
            self._host_step(self.runs[which])

    def _host_step(self, run: History) -> None:
        for attempt_id, process in self._of(run):
            attempt, execution = run.attempts[attempt_id], self.world.executions[attempt_id]
            if not process.host_lives:
                continue
            if attempt.status is AttemptStatus.CLAIMED:
                self.world.record(run, decisions.start(run, attempt_id, None))
            elif process.state == "none" and attempt.status is AttemptStatus.STARTING:
                process.keeper_lives = execution.gated
                process.state = "waiting" if execution.gated else "running"
            elif execution.handle is None and process.state in {"waiting", "running"}:
                decision = self.world.record(run, decisions.confirm_running(run, attempt_id))
                if decision.refusal is None:
                    execution.handle, execution.seen_at_ms = "handle", self.world.now_ms
                elif execution.gated or decision.refusal is not Refusal.REPEATED:
                    self._the_gate_closes(process)
            elif process.state == "waiting":
                process.state = "running"

    @staticmethod
    def _the_gate_closes(process: Process) -> None:
        process.state, process.keeper_lives, process.host_lives = "dead", False, False

    @rule(which=st.integers(0, 1))
    def a_host_renews(self, which: int) -> None:
        for attempt_id, process in self._of(self.runs[which]):
            if process.host_lives:
                self.world.renew(self.runs[which], attempt_id)

    @rule(which=st.integers(0, 1))
    def a_host_reports(self, which: int) -> None:
        for attempt_id, process in self._of(self.runs[which]):
            # Without a keeper a host waits for its command itself, once its handle is recorded.
            execution = self.world.executions[attempt_id]
            sees = process.receipt or (not execution.gated and execution.handle is not None)
            if process.host_lives and sees:
                self.world.finish(self.runs[which], attempt_id)

    @rule(which=st.integers(0, 1))
    def a_host_dies(self, which: int) -> None:
        for _, process in self._of(self.runs[which]):
            process.host_lives = False
            if process.state == "waiting":
                self._the_gate_closes(process)

    @rule(which=st.integers(0, 1), how=st.sampled_from(sorted(ENDS_BY)), child_stays=st.booleans(), published=YES_OR_NO)
    def a_command_ends(self, which: int, how: str, child_stays: bool, published: bool) -> None:  # noqa: FBT001 - hypothesis names it
        for _, process in self._of(self.runs[which]):
            if process.state == "running":
                process.state = "left" if child_stays else "dead"
                process.outcome = ENDS_BY[how]
        if published:
            self.a_keeper_publishes_or_dies(which, first_dies=False)

    @rule(which=st.integers(0, 1))
    def a_child_ends(self, which: int) -> None:
        for _, process in self._of(self.runs[which]):
            if process.state == "left":
                process.state = "dead"

    @rule(which=st.integers(0, 1), first_dies=st.booleans())
    def a_keeper_publishes_or_dies(self, which: int, first_dies: bool) -> None:  # noqa: FBT001 - hypothesis names it
        for _, process in self._of(self.runs[which]):
            if process.keeper_lives and not first_dies and process.outcome is not None:
                process.receipt = True
            process.keeper_lives = process.keeper_lives and not (first_dies or process.receipt)

    # Users, deliveries, time, and what can be seen.

    @rule(which=st.integers(0, 1), kind=st.sampled_from([IntentKind.USER, IntentKind.TIMEOUT]))
    def somebody_asks_it_to_stop(self, which: int, kind: IntentKind) -> None:
        self.world.cancel(self.runs[which], kind)

    @rule(which=st.integers(0, 1), stubborn=st.booleans(), settles=st.booleans())
    def a_stop_is_delivered(self, which: int, stubborn: bool, settles: bool) -> None:  # noqa: FBT001 - hypothesis names it
        run = self.runs[which]
        dispatch = self.world.dispatches.get(run.run_id)
        if dispatch is None or run.active_attempt is None:
            return
        dispatch.leased_until_ms = self.world.now_ms + 30_000
        process = self.world.processes[run.active_attempt.id]
        if process.lives and not stubborn:
            process.outcome = process.outcome or ENDS_BY["killed"]
            process.state = "dead"
        if settles:
            dispatch.finished_at_ms = self.world.now_ms

    @rule(step_ms=st.sampled_from([1, 1_000, 10_000, LEASE_MS, 400_000]))
    def time_passes(self, step_ms: int) -> None:
        self.world.now_ms += step_ms

    @rule(mode=st.sampled_from(["clear", "clear", "clear", "away", "broken"]))
    def the_sight_changes(self, mode: str) -> None:
        self.sight.mode = mode

    # Workers.

    @rule(purpose=st.sampled_from(Purpose), later_ms=LATER)
    def a_worker_runs_a_cycle(self, purpose: Purpose, later_ms: int) -> None:
        self.world.now_ms += later_ms
        self._cycle(purpose)

    @rule(purpose=st.sampled_from(Purpose), later_ms=LATER, step=AT_STEP)
    def a_worker_dies_in_its_cycle(self, purpose: Purpose, later_ms: int, step: int) -> None:
        def dies() -> None:
            raise WorkerDied

        self.world.now_ms += later_ms
        self._at_step(step, dies)
        try:
            self._cycle(purpose)
        except WorkerDied:
            pass
        finally:
            self.world.between = _nothing

    @rule(purpose=st.sampled_from(Purpose), later_ms=LATER, step=AT_STEP, which=st.integers(0, 1), what=HAPPENINGS)
    def something_happens_in_a_workers_cycle(
        self, purpose: Purpose, later_ms: int, step: int, which: int, what: str
    ) -> None:
        self.world.now_ms += later_ms
        self._at_step(step, lambda: self._happens(what, which, purpose))
        self._cycle(purpose)
        self.world.between = _nothing

    def _happens(self, what: str, which: int, purpose: Purpose) -> None:
        if what == "another worker":
            # The holder is slow, and its term is taken over.
            self.world.now_ms += SETTINGS.recovery_lease_ms
            self._cycle(purpose)
        actions: dict[str, Callable[[], None]] = {
            "ends": lambda: self.a_command_ends(which, "badly", child_stays=True, published=False),
            "ends well": lambda: self.a_command_ends(which, "well", child_stays=False, published=True),
            "publishes": lambda: self.a_keeper_publishes_or_dies(which, first_dies=False),
            "reports": lambda: self.a_host_reports(which),
            "renews": lambda: self.a_host_renews(which),
            "goes on": lambda: self.a_host_goes_on(which, 3),
            "is asked": lambda: self.somebody_asks_it_to_stop(which, IntentKind.USER),
            "dies": lambda: self.a_host_dies(which),
            "time passes": lambda: self.time_passes(LEASE_MS),
        }
        actions.get(what, _nothing)()

    def _at_step(self, step: int, act: Callable[[], None]) -> None:
        reached = iter(range(1_000))

        def between() -> None:
            if next(reached) == step:
                self.world.between = _nothing
                act()

        self.world.between = between

    def _cycle(self, purpose: Purpose) -> None:
        processor = RecoveryProcessor(
            self.world,
            self.sight,
            purpose,
            owner=f"worker-{next(self.world.ids)}",
            served=SERVED,
            settings=SETTINGS,
            monotonic=lambda: self.world.now_ms / 1_000,
            on_error=_expected,
        )
        processor.cycle()

    def _of(self, run: History) -> list[tuple[str, Process]]:
        return [(attempt_id, self.world.processes[attempt_id]) for attempt_id in run.attempts]

    # What holds at all times.

    @invariant()
    def nothing_is_lost_or_confirmed_stopped_while_it_lives(self) -> None:
        for run in getattr(self, "runs", ()):
            for attempt_id, process in self._of(run):
                attempt = run.attempts[attempt_id]
                if attempt.status is AttemptStatus.LOST:
                    assert not process.lives
                    assert attempt.evidence in {Evidence.NOT_RUNNING, Evidence.PRE_START}
                if attempt.status in {AttemptStatus.CANCELLED, AttemptStatus.TIMED_OUT}:
                    # Only with proof that nobody of the group lives (R6.5).
                    assert not process.lives

    @invariant()
    def never_do_two_attempts_of_a_run_live_at_once(self) -> None:
        for run in getattr(self, "runs", ()):
            assert sum(process.lives for _, process in self._of(run)) <= 1
            assert sum(attempt.active for attempt in run.attempts.values()) <= 1

    @invariant()
    def a_receipt_is_never_called_a_loss(self) -> None:
        for run in getattr(self, "runs", ()):
            for attempt_id, process in self._of(run):
                assert not (process.receipt and run.attempts[attempt_id].status is AttemptStatus.LOST)

    @invariant()
    def run_and_attempt_agree(self) -> None:
        for run in getattr(self, "runs", ()):
            active = run.active_attempt is not None
            assert active == (run.run.status in {"dispatching", "running", "waiting_approval"})

    def teardown(self) -> None:
        """Once everything can be seen and nobody comes back, bounded cycles bring every Run to an end or a queue."""
        if not hasattr(self, "runs"):
            return
        self.sight.mode = "clear"
        for process in self.world.processes.values():
            process.host_lives = process.keeper_lives = False
            process.state = "none" if process.state == "none" else "dead"
        for _ in range(ROUNDS):
            self.world.now_ms += SETTINGS.recovery_delay_max_ms + SETTINGS.recovery_lease_ms
            for purpose in Purpose:
                self._cycle(purpose)
        for run in self.runs:
            asked = run.run.intent is not None
            waits_for_a_worker = run.run.status is RunStatus.QUEUED and not asked
            assert run.run.terminal or waits_for_a_worker or self._in_a_queue(run), run.run.status
            assert run.active_attempt is None or self._in_a_queue(run)
        for purpose in Purpose:
            self._cycle(purpose)
        states = {row.state for row in self.world.rows.values()}
        assert states <= {ClaimState.RESOLVED, ClaimState.MANUAL}

    def _in_a_queue(self, run: History) -> bool:
        items = {run.run_id, *run.attempts}
        return any(key.item_id in items and row.state is ClaimState.MANUAL for key, row in self.world.rows.items())


def _nothing() -> None:
    pass


def _expected(_: str | None, error: BaseException) -> None:
    # Only the broken provider may fail; everything else is a fault of ours.
    assert isinstance(error, RuntimeError)


TestAnyDeath = AnyDeath.TestCase
TestAnyDeath.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)

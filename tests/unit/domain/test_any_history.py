"""Whatever commands come in whatever order, a Run's ledger keeps its promises.

R2.3 to R2.8, R3.1, R3.2, R3.4; what recovery records among them (R11.5, R12.1, R12.2).
"""

# ruff: noqa: D102 - rules and invariants are named by their sentence, like tests

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from histories import ANA, RUN
from runfacts.domain import decisions
from runfacts.domain.canonical import GENESIS
from runfacts.domain.decisions import Decision, Refusal
from runfacts.domain.errors import IllegalTransition
from runfacts.domain.facts import Fact, decode_payload
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.lifecycle import ATTEMPT_TRANSITIONS, RUN_TRANSITIONS, IntentKind
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import AttemptClaimed, RunCreated
from runfacts.domain.recovery.lost import lost, requeue, retry_lost, stopped
from runfacts.domain.retry import RetryPolicy, Safety

ENDED = {"succeeded", "failed", "cancelled", "timed_out"}
ATTEMPT_ENDED = ENDED | {"lost"}
ACTIVE = {"claimed", "starting", "running"}

outcomes = st.sampled_from(
    [
        Outcome.succeeded(exit_code=0),
        Outcome.failed(exit_code=7, error_code="E" * 200, error_summary="password=x"),
        Outcome.cancelled(signal=15),
        Outcome.timed_out(signal=9),
    ]
)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 4),
    retry_on_failure=st.booleans(),
    retry_on_lost=st.booleans(),
    safety=st.just(Safety.IDEMPOTENT),
    backoff_ms=st.integers(0, 50),
)
Decide = Callable[[History], Decision]


class AnyCommands(RuleBasedStateMachine):
    """A Run whose commands come in any order, again and again, from clocks that step back."""

    @initialize(policy=policies, deadline_at_ms=st.none() | st.integers(0, 1_000))
    def create(self, policy: RetryPolicy, deadline_at_ms: int | None) -> None:
        self.now_ms = 500
        self.history = History(RUN, "shop")
        self.facts: list[Fact] = []
        self._record(decisions.create(RunCreated(task="t", policy=policy, deadline_at_ms=deadline_at_ms)).drafts)

    @rule(step_ms=st.integers(-40, 100))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms = max(0, self.now_ms + step_ms)

    @rule()
    def queue(self) -> None:
        self._decide(lambda before: decisions.queue(before, self.now_ms))

    @rule()
    def claim(self) -> None:
        number = decisions.next_number(self.history)
        attempt_id = f"01890000-0000-7000-8000-a{number:011}"
        had_intent = self.history.run.intent is not None
        claimed = AttemptClaimed(number=number, executor_type="local")
        decision = self._decide(lambda before: decisions.claim(before, attempt_id, claimed))
        assert not (had_intent and decision.drafts)

    @rule()
    def start(self) -> None:
        for attempt_id in tuple(self.history.attempts):
            self._decide(partial(decisions.start, attempt_id=attempt_id, deadline_at_ms=None))

    @rule()
    def confirm(self) -> None:
        for attempt_id in tuple(self.history.attempts):
            self._decide(partial(decisions.confirm_running, attempt_id=attempt_id))

    @rule(goes_on=st.booleans())
    def wait_or_go_on(self, goes_on: bool) -> None:  # noqa: FBT001 - hypothesis names it
        for attempt_id in tuple(self.history.attempts):
            if goes_on:
                self._decide(partial(decisions.go_on, attempt_id=attempt_id))
            else:
                self._decide(partial(decisions.wait_for_approval, attempt_id=attempt_id, reason=None))

    @rule(outcome=outcomes, group_left=st.booleans(), late=st.booleans())
    def finish(self, outcome: Outcome, group_left: bool, late: bool) -> None:  # noqa: FBT001 - hypothesis names it
        for attempt_id in tuple(self.history.attempts):
            finish = partial(decisions.finish, attempt_id=attempt_id, outcome=outcome, now_ms=self.now_ms)
            decision = self._decide(partial(finish, group_left=group_left))
            if late and decision.refusal is Refusal.ENDED:
                self._record((decisions.late_callback(attempt_id, 9, outcome.kind.value, outcome),))

    @rule(kind=st.sampled_from(IntentKind))
    def cancel(self, kind: IntentKind) -> None:
        status = self.history.run.status
        had_attempt = self.history.active_attempt is not None
        decision = self._decide(lambda before: decisions.request_cancellation(before, kind, "why"))
        if decision.drafts and had_attempt:
            # Nothing is marked cancelled because somebody asked (R6.2).
            assert self.history.run.status is status

    @rule(evidence=st.sampled_from(Evidence))
    def lose(self, evidence: Evidence) -> None:
        for attempt_id in tuple(self.history.attempts):
            lose = partial(lost, attempt_id=attempt_id, evidence=evidence, provider_type="local")
            had_intent = self.history.run.intent is not None
            decision = self._decide(lose)
            assert not (had_intent and decision.drafts)

    @rule(evidence=st.sampled_from(Evidence))
    def confirm_that_it_stopped(self, evidence: Evidence) -> None:
        had_intent = self.history.run.intent is not None
        decision = self._decide(partial(stopped, evidence=evidence, provider_type="local"))
        assert had_intent or not decision.drafts
        assert not decision.drafts or self.history.run.terminal

    @rule()
    def move_on_what_is_lost(self) -> None:
        self._decide(lambda before: retry_lost(before, self.now_ms))

    @rule(group_gone=st.booleans())
    def queue_a_retry(self, group_gone: bool) -> None:  # noqa: FBT001 - hypothesis names it
        decision = self._decide(lambda before: requeue(before, self.now_ms, group_gone=group_gone))
        assert group_gone or not (decision.drafts and self.history.run.group_left)

    def _decide(self, decide: Decide) -> Decision:
        try:
            decision = decide(self.history)
        except IllegalTransition:
            return Decision()
        self._record(decision.drafts)
        return decision

    def _record(self, drafts: tuple[Draft, ...]) -> None:
        before = self.history.run.status if self.facts else None
        attempts = {attempt.id: attempt.status for attempt in self.history.attempts.values()}
        recorded = self.history.record(drafts, RecordedBy(ANA, self.now_ms))
        self.facts += recorded
        after = self.history.run.status
        if before is not None and after is not before:
            assert after in RUN_TRANSITIONS[before]
            assert before not in ENDED
        for attempt_id, status in attempts.items():
            now = self.history.attempts[attempt_id].status
            assert now is status or now in ATTEMPT_TRANSITIONS[status]
            assert now is status or status not in ATTEMPT_ENDED

    @invariant()
    def at_most_one_attempt_is_active_and_only_while_its_run_has_one(self) -> None:
        if not self.facts:
            return
        active = [attempt for attempt in self.history.attempts.values() if attempt.status in ACTIVE]
        assert len(active) <= 1
        # Ending an Attempt and moving its Run are one command (R2.7).
        assert bool(active) == (self.history.run.status in {"dispatching", "running", "waiting_approval"})

    @invariant()
    def attempts_are_numbered_and_within_the_budget(self) -> None:
        if self.facts:
            numbers = [attempt.number for attempt in self.history.attempts.values()]
            assert numbers == list(range(1, len(numbers) + 1))

    @invariant()
    def the_ledger_is_dense_chained_and_in_time(self) -> None:
        previous, at_ms = GENESIS, 0
        versions: dict[str, int] = {}
        for expected, fact in enumerate(self.facts, start=1):
            versions[fact.aggregate_id] = versions.get(fact.aggregate_id, 0) + 1
            assert (fact.sequence, fact.aggregate_version) == (expected, versions[fact.aggregate_id])
            assert fact.hash == fact.computed_hash(previous)
            assert fact.recorded_at_ms >= at_ms
            previous, at_ms = fact.hash, fact.recorded_at_ms

    @invariant()
    def what_is_stored_replays_to_the_live_state(self) -> None:
        if not self.facts:
            return
        for fact in self.facts:
            assert decode_payload(fact.type, fact.schema_version, fact.payload_text) == fact.payload
        replayed = History.of(self.facts)
        assert (replayed.version, replayed.head_hash) == (self.history.version, self.history.head_hash)
        assert vars(replayed.run) == vars(self.history.run)
        assert {key: vars(one) for key, one in replayed.attempts.items()} == {
            key: vars(one) for key, one in self.history.attempts.items()
        }
        assert self.history.version == len(self.facts)


TestAnyCommands = AnyCommands.TestCase
TestAnyCommands.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)

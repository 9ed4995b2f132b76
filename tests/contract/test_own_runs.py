"""A host looks after its own Runs by the same claims as everybody (R9.5, R10.4, R10.5)."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import pytest

from deliveries import LEASE_MS, asked_to_stop, brought_to, held_by, last_fact, settled_with
from runfacts import Actor, AttemptClaim, DatabaseBusy, IntentKind, InvalidValue, Ledger, Outcome, RunStatus
from runfacts.domain.cancellation.controllers import Controllers, StopResult
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.supervisor import Diagnostic, Diagnostics
from runfacts.infrastructure.lifecycle import Bell
from runfacts.infrastructure.own_run import OwnRuns
from runfacts.infrastructure.stores.stop_states import StopState
from runfacts.infrastructure.supervision import dispatcher_of
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, WORKER, queued, types, unchanged
from stoppers import Stopper
from waiting import PATIENCE_S, until

HOST = Actor.worker("host-1")
HOUR = 3_600_000


def own_runs(
    ledger: Ledger,
    stopper: Stopper,
    tell: Callable[[Diagnostic], None] = lambda _: None,
    *,
    interval_ms: int = 1_000,
    bell: Callable[[], Bell] | None = None,
) -> OwnRuns:
    diagnostics = Diagnostics(tell)
    return OwnRuns(
        ledger,
        dispatcher_of(ledger, Controllers([stopper]), "host-1", diagnostics),
        actor=HOST,
        interval_ms=interval_ms,
        drain_ms=30_000,
        bell=bell or ledger.cancellation_bell,
        diagnostics=diagnostics,
    )


def test_what_its_host_looks_at(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running", timeout_ms=2_000)
    state = ledger.stop_state(claim.attempt_id)
    assert state is not None
    assert (state.run_id, state.attempt_id, state.now_ms) == (claim.run_id, claim.attempt_id, EPOCH_MS)
    assert (state.ended, state.intent_at_ms, state.dispatch_due_at_ms) == (False, None, None)
    assert (state.deadline_at_ms, state.deadline_passed, state.delivery_due) == (EPOCH_MS + 2_000, False, False)
    manual_clock.advance(2_000)
    state = ledger.stop_state(claim.attempt_id)
    assert state is not None
    assert state.deadline_passed
    ledger.request_cancellation(claim.run_id, actor=ANA)
    state = ledger.stop_state(claim.attempt_id)
    assert state is not None
    assert (state.deadline_passed, state.delivery_due, state.intent_at_ms) == (False, True, EPOCH_MS + 2_000)
    ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    state = ledger.stop_state(claim.attempt_id)
    assert state is not None
    assert (state.ended, state.delivery_due) == (True, False)


def test_of_an_unknown_attempt_there_is_nothing_to_look_at(ledger: Ledger) -> None:
    assert ledger.stop_state("019316d5-0000-7000-8000-00000000dead") is None


def test_a_cancellation_of_a_run_that_it_hosts_is_delivered(ledger: Ledger) -> None:
    asked, foreign = asked_to_stop(ledger), asked_to_stop(ledger)
    stopper = Stopper()
    own = own_runs(ledger, stopper)
    with own.hosting(asked.attempt_id):
        assert own.cycle() == {"seen": 1, "claimed": 1, "termination_requested": 1}
        assert own.cycle() == {"seen": 0, "claimed": 0}
    assert stopper.asked == [asked.run_id]
    assert last_fact(ledger, foreign.run_id)[0] == "run.cancel_requested"


def test_what_it_does_not_host_any_more_is_left_to_others(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    stopper = Stopper()
    own = own_runs(ledger, stopper)
    with own.hosting(asked.attempt_id):
        pass
    assert own.cycle() == {"seen": 0, "claimed": 0}
    assert stopper.asked == []


def test_what_a_supervisor_holds_is_left_to_it(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked, "supervisor")
    stopper = Stopper()
    own = own_runs(ledger, stopper)
    with own.hosting(asked.attempt_id), unchanged(ledger):
        assert own.cycle() == {"seen": 0, "claimed": 0}
    assert stopper.asked == []


def test_a_request_from_before_the_clock_stepped_back_is_delivered_at_once(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.jump_wall(-HOUR)
    manual_clock.jump_database(-HOUR)
    own = own_runs(ledger, Stopper())
    with own.hosting(asked.attempt_id):
        assert own.cycle() == {"seen": 1, "claimed": 1, "termination_requested": 1}


def test_c35_a_holder_that_dies_is_taken_over_when_its_lease_is_over_whatever_the_wall_clock_says(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    held_by(ledger, asked, "supervisor")
    manual_clock.jump_wall(-HOUR)
    own = own_runs(ledger, Stopper())
    with own.hosting(asked.attempt_id):
        manual_clock.advance(LEASE_MS - 1)
        with unchanged(ledger):
            assert own.cycle() == {"seen": 0, "claimed": 0}
        manual_clock.advance(1)
        assert own.cycle() == {"seen": 1, "claimed": 1, "taken_over": 1, "termination_requested": 1}


def test_a_wait_further_ahead_than_any_may_be_is_over_for_its_host_too(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, DispatchResult.DISPATCH_ERROR)
    own = own_runs(ledger, Stopper())
    with own.hosting(asked.attempt_id):
        manual_clock.jump_wall(-24 * HOUR)
        manual_clock.jump_database(-24 * HOUR)
        assert own.cycle()["seen"] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_ms": 5_000},
        {"deadline_at_ms": EPOCH_MS + 5_000},
        {"timeout_ms": 9_000, "deadline_at_ms": EPOCH_MS + 5_000},
        {"timeout_ms": 5_000, "deadline_at_ms": EPOCH_MS + 9_000},
    ],
    ids=str,
)
def test_a_deadline_is_requested_by_the_host_at_its_very_millisecond(
    ledger: Ledger, manual_clock: ManualClock, options: dict[str, int]
) -> None:
    # The sooner of the Attempt's and the Run's own: nobody needs a second process for either.
    claim = brought_to(ledger, "running", **options)
    stopper = Stopper()
    own = own_runs(ledger, stopper)
    with own.hosting(claim.attempt_id):
        manual_clock.advance(4_999)
        with unchanged(ledger):
            assert own.cycle() == {"seen": 0, "claimed": 0}
        manual_clock.advance(1)
        assert own.cycle() == {"seen": 1, "claimed": 1, "termination_requested": 1, "timed_out": 1}
    assert stopper.asked == [claim.run_id]
    requested = next(fact for fact in ledger.history(claim.run_id) if fact.type == "run.cancel_requested")
    assert (requested.actor, requested.payload.model_dump(exclude_none=True)) == (HOST, {"kind": IntentKind.TIMEOUT})
    ledger.finish(claim, Outcome.failed(signal=15), actor=WORKER)
    assert ledger.run(claim.run_id).status is RunStatus.TIMED_OUT


def test_what_was_asked_for_at_the_host_is_recorded_and_delivered(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")
    stopper = Stopper()
    own = own_runs(ledger, stopper)
    own.ask_to_stop(claim.run_id, actor=ANA, kind=IntentKind.USER, reason="Ctrl-C at the host")
    with own.hosting(claim.attempt_id):
        assert own.cycle() == {"seen": 1, "claimed": 1, "requested": 1, "termination_requested": 1}
        assert own.cycle() == {"seen": 0, "claimed": 0}
    cancellation = ledger.run(claim.run_id).cancellation
    assert cancellation is not None
    assert (cancellation.kind, cancellation.reason) == (IntentKind.USER, "Ctrl-C at the host")
    requested = next(fact for fact in ledger.history(claim.run_id) if fact.type == "run.cancel_requested")
    assert requested.actor == ANA


def test_before_its_attempt_the_run_ends_with_the_request(ledger: Ledger) -> None:
    run_id = queued(ledger)
    own = own_runs(ledger, Stopper())
    own.ask_to_stop(run_id, actor=ANA, kind=IntentKind.USER, reason="Ctrl-C at the host")
    own.cycle()
    assert ledger.run(run_id).status is RunStatus.CANCELLED


def test_what_was_asked_for_is_kept_until_the_database_takes_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = brought_to(ledger, "running")
    heard: list[Diagnostic] = []
    own = own_runs(ledger, Stopper(), heard.append)
    own.ask_to_stop(claim.run_id, actor=ANA, kind=IntentKind.USER, reason="Ctrl-C at the host")
    with monkeypatch.context() as patched:

        def busy(*_: object, **__: object) -> None:
            raise DatabaseBusy("locked")

        patched.setattr(ledger, "request_cancellation", busy)
        assert own.cycle()["error"] == 1
    assert [(item.error, item.run_id) for item in heard] == [("DatabaseBusy", claim.run_id)]
    assert own.cycle()["requested"] == 1
    assert types(ledger, claim.run_id)[-1] == "run.cancel_requested"


def test_what_can_never_be_recorded_is_told_and_given_up(ledger: Ledger) -> None:
    heard: list[Diagnostic] = []
    own = own_runs(ledger, Stopper(), heard.append)
    nowhere = "019316d5-0000-7000-8000-00000000dead"
    own.ask_to_stop(nowhere, actor=ANA, kind=IntentKind.USER, reason="Ctrl-C at the host")
    own.cycle()
    own.cycle()
    assert [(item.error, item.run_id) for item in heard] == [("RunNotFound", nowhere)]


def test_one_run_in_trouble_keeps_no_other_from_being_stopped(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [asked_to_stop(ledger) for _ in range(3)]
    look = ledger.stop_state

    def fail_for_one(attempt_id: str) -> object:
        if attempt_id == asked[1].attempt_id:
            raise InvalidValue("attempt", "is in trouble")
        return look(attempt_id)

    monkeypatch.setattr(ledger, "stop_state", fail_for_one)
    stopper = Stopper()
    heard: list[Diagnostic] = []
    own = own_runs(ledger, stopper, heard.append)
    with (
        own.hosting(asked[0].attempt_id),
        own.hosting(asked[1].attempt_id),
        own.hosting(asked[2].attempt_id),
    ):
        report = own.cycle()
    assert (report["error"], report["termination_requested"]) == (1, 2)
    assert sorted(stopper.asked) == sorted([asked[0].run_id, asked[2].run_id])
    assert [item.error for item in heard] == ["InvalidValue"]


def started_and_idle(ledger: Ledger, stopper: Stopper, claim: AttemptClaim) -> OwnRuns:
    """One that looks by itself only after a day."""
    own = own_runs(ledger, stopper, interval_ms=86_400_000)
    own.start()
    own.ask_to_stop(claim.run_id, actor=ANA, kind=IntentKind.USER, reason="so that a first cycle is seen")
    until(lambda: ledger.run(claim.run_id).cancellation is not None)
    return own


def test_a_committed_request_wakes_it(ledger: Ledger) -> None:
    claim, other = brought_to(ledger, "running"), brought_to(ledger, "running")
    stopper = Stopper()
    own = started_and_idle(ledger, stopper, other)
    with own.hosting(claim.attempt_id):
        ledger.request_cancellation(claim.run_id, actor=ANA)
        until(lambda: stopper.asked == [claim.run_id])
    assert own.stop()
    assert last_fact(ledger, claim.run_id)[0] == "run.cancel_dispatched"


class Looks:
    """Counts how often an Attempt is looked at."""

    def __init__(self, ledger: Ledger, attempt_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        look = ledger.stop_state

        def counted(looked_at: str) -> StopState | None:
            state = look(looked_at)
            self.count += looked_at == attempt_id
            return state

        monkeypatch.setattr(ledger, "stop_state", counted)


def test_it_looks_again_when_the_deadline_is_reached_and_not_only_at_its_interval(
    ledger: Ledger, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, other = brought_to(ledger, "running", timeout_ms=300), brought_to(ledger, "running")
    stopper = Stopper()
    own = started_and_idle(ledger, stopper, other)
    looks = Looks(ledger, claim.attempt_id, monkeypatch)
    with own.hosting(claim.attempt_id):
        # It was woken to look at what it hosts; from now on nobody wakes it.
        until(lambda: looks.count > 0)
        # The database's time is the test's; the host reckons with its own until it looks.
        manual_clock.advance(300)
        until(lambda: stopper.asked == [claim.run_id])
    assert own.stop()


def test_it_looks_again_when_a_delivery_that_failed_is_due_and_not_only_at_its_interval(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ledger_factory(backoff_base_ms=100)
    asked, other = asked_to_stop(ledger), brought_to(ledger, "running")
    stopper = Stopper(StopResult(DispatchResult.DISPATCH_ERROR))
    own = started_and_idle(ledger, stopper, other)
    looks = Looks(ledger, asked.attempt_id, monkeypatch)
    with own.hosting(asked.attempt_id):
        until(lambda: looks.count > 1)
        assert stopper.asked == [asked.run_id]
        manual_clock.advance(100)
        until(lambda: stopper.asked == [asked.run_id] * 2)
    assert own.stop()


class SlowBell:
    """Wakes its thread only when it has rung twice: the host is told to leave before its thread has woken."""

    def __init__(self) -> None:
        self.waited_at = Event()
        self._rung = 0
        self._enough = Event()

    def wait(self, timeout_s: float) -> bool:
        """See ``Bell``."""
        del timeout_s
        self.waited_at.set()
        return self._enough.wait(PATIENCE_S)

    def wake(self) -> None:
        """See ``Bell``."""
        self._rung += 1
        if self._rung > 1:
            self._enough.set()

    def close(self) -> None:
        """See ``Bell``."""


def test_a_cancellation_that_was_asked_for_is_recorded_although_the_host_is_told_to_leave_at_once(
    ledger: Ledger,
) -> None:
    claim = brought_to(ledger, "running")
    bell = SlowBell()
    own = own_runs(ledger, Stopper(), bell=lambda: bell)
    own.start()
    assert bell.waited_at.wait(PATIENCE_S)
    own.ask_to_stop(claim.run_id, actor=ANA, kind=IntentKind.USER, reason="Ctrl-C at the host")
    assert own.stop()
    assert types(ledger, claim.run_id)[-1] == "run.cancel_requested"


def test_a_host_that_leaves_without_a_database_leaves_all_the_same(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")
    told: list[Diagnostic] = []
    bell = SlowBell()
    own = own_runs(ledger, Stopper(), told.append, bell=lambda: bell)
    own.start()
    assert bell.waited_at.wait(PATIENCE_S)
    own.ask_to_stop(claim.run_id, actor=ANA, kind=IntentKind.USER, reason="Ctrl-C at the host")
    ledger.database.close_for_good()
    assert own.stop()
    assert [(failed.part, failed.error) for failed in told] == [("own_runs", "DatabaseUnreachable")]

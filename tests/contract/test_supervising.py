"""Supervising a ledger: deadlines and deliveries in cycles, by any number of workers (R9, R10.4, R7.2, R7.5)."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue

import pytest

from deliveries import OPERATOR, asked_to_stop, brought_to, dispatch_of, last_fact
from runfacts import DatabaseBusy, IntentKind, InvalidSetting, InvalidValue, Ledger, LegacyRun, Outcome, RunStatus
from runfacts.domain.cancellation.controllers import OutOfTime, StopResult, StopTarget, TimeLeft
from runfacts.domain.cancellation.supervisor import Diagnostic, SupervisorReport
from runfacts.domain.errors import AlreadyStarted
from runfacts.infrastructure.supervision import Duty, Supervision
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, created, one_writer, queued, types, unchanged
from stoppers import Stopper

DEADLINE_S = 30
NOTHING = {
    "deadlines": {"seen": 0, "claimed": 0, "requested": 0},
    "cancellation": {"seen": 0, "claimed": 0},
    "recovery": {"seen": 0, "claimed": 0, "swept": 0},
    "stop": {"seen": 0, "claimed": 0},
    "retry": {"seen": 0, "claimed": 0},
}


def supervision(ledger: Ledger, *stoppers: Stopper, **options: object) -> Supervision:
    """One that serves what the stoppers serve, and nothing of this machine; views are brought up to date elsewhere."""
    given = {"duties": [duty for duty in Duty if duty is not Duty.PROJECT], **options}
    return ledger.supervise(controllers=stoppers, local=False, **given)  # type: ignore[arg-type] # any option


def test_a_cycle_delivers_what_was_asked_for(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    stopper = Stopper()
    worker = supervision(ledger, stopper)
    report = worker.cycle()
    assert stopper.asked == [asked.run_id]
    assert report["cancellation"] == {"seen": 1, "claimed": 1, "termination_requested": 1}
    type_, payload, _ = last_fact(ledger, asked.run_id)
    assert (type_, payload["result"], payload["escalation"]) == (
        "run.cancel_dispatched",
        "termination_requested",
        "term",
    )
    assert ledger.history(asked.run_id)[-1].actor.id == worker.owner
    # Delivered is not stopped (R6.2).
    assert ledger.run(asked.run_id).status is RunStatus.RUNNING
    assert worker.cycle().counters == NOTHING
    assert stopper.asked == [asked.run_id]


def test_an_idle_cycle_writes_nothing(ledger: Ledger) -> None:
    brought_to(ledger, "running")
    worker = supervision(ledger, Stopper())
    with unchanged(ledger):
        assert worker.cycle().counters == NOTHING


def test_a_deadline_that_has_passed_is_delivered_in_the_same_cycle_and_not_a_millisecond_before(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running", timeout_ms=5_000)
    stopper = Stopper()
    worker = supervision(ledger, stopper)
    manual_clock.advance(4_999)
    assert worker.cycle().counters == NOTHING
    manual_clock.advance(1)
    report = worker.cycle()
    assert report["deadlines"] == {"seen": 1, "claimed": 0, "requested": 1}
    assert report["cancellation"]["termination_requested"] == 1
    assert stopper.asked == [claim.run_id]
    cancellation = ledger.run(claim.run_id).cancellation
    assert cancellation is not None
    assert cancellation.kind is IntentKind.TIMEOUT
    assert worker.cycle().counters == NOTHING


def test_a_run_that_waits_beyond_its_deadline_ends_without_any_signal(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    run_id = queued(ledger, deadline_at_ms=manual_clock.wall_ms() + 1_000)
    new = created(ledger, deadline_at_ms=manual_clock.wall_ms() + 1_000)
    stopper = Stopper()
    manual_clock.advance(1_000)
    assert supervision(ledger, stopper).cycle()["deadlines"]["requested"] == 2
    assert stopper.asked == []
    assert ledger.run(run_id).status is RunStatus.TIMED_OUT
    # The tables have no timed_out for a Run that was never queued (R2.5).
    assert ledger.run(new).status is RunStatus.CANCELLED


def test_one_run_that_may_not_be_stopped_keeps_no_other_running(
    ledger: Ledger, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (brought_to(ledger, "running", timeout_ms=1_000) for _ in range(2))
    manual_clock.advance(1_000)
    ask = ledger.request_cancellation

    def refuse_the_first(run_id: str, **given: object) -> object:
        if run_id == first.run_id:
            raise LegacyRun(run_id)
        return ask(run_id, **given)  # type: ignore[arg-type] # as it was given

    monkeypatch.setattr(ledger, "request_cancellation", refuse_the_first)
    stopper = Stopper()
    assert supervision(ledger, stopper).cycle()["deadlines"]["requested"] == 1
    assert stopper.asked == [second.run_id]


def test_a_controller_that_fails_is_tried_again_when_its_backoff_is_over(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(backoff_base_ms=1_000)
    asked = asked_to_stop(ledger)
    heard: list[Diagnostic] = []

    def fail(target: StopTarget) -> None:
        raise ZeroDivisionError(target.handle)

    stopper = Stopper(act=fail)
    worker = supervision(ledger, stopper, on_diagnostic=heard.append)
    assert worker.cycle()["cancellation"] == {"seen": 1, "claimed": 1, "dispatch_error": 1}
    assert heard == [Diagnostic("cancellation", "ZeroDivisionError", "", asked.run_id)]
    manual_clock.advance(999)
    assert worker.cycle()["cancellation"] == {"seen": 0, "claimed": 0}
    manual_clock.advance(1)
    stopper.act = None
    assert worker.cycle()["cancellation"] == {"seen": 1, "claimed": 1, "termination_requested": 1}
    row = dispatch_of(ledger, asked.run_id)
    assert row is not None
    assert (row["status"], row["dispatch_count"]) == ("dispatched", 2)


def test_a_part_that_fails_stops_no_other(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_to_stop(ledger)
    heard: list[Diagnostic] = []

    def busy(**_: object) -> int:
        raise DatabaseBusy("locked")

    monkeypatch.setattr(ledger, "request_due_deadlines", busy)
    stopper = Stopper()
    report = supervision(ledger, stopper, on_diagnostic=heard.append).cycle()
    assert report["deadlines"] == {"error": 1}
    assert report.failed == 1
    assert stopper.asked == [asked.run_id]
    assert [(item.part, item.error) for item in heard] == [("deadlines", "DatabaseBusy")]


def test_of_two_workers_one_delivers(ledger_factory: ThrowAwayLedgers) -> None:
    one, two = ledger_factory(), ledger_factory()
    asked = asked_to_stop(one)
    seen: list[SupervisorReport] = []
    second = Stopper()
    other = supervision(two, second)
    first = Stopper(act=lambda _: seen.append(other.cycle()))
    assert supervision(one, first).cycle()["cancellation"]["termination_requested"] == 1
    assert (first.asked, second.asked) == ([asked.run_id], [])
    assert seen[0]["cancellation"] == {"seen": 0, "claimed": 0}


def test_a_worker_takes_over_what_another_held_too_long(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory(cancel_lease_ms=10_000)
    asked = asked_to_stop(ledger)
    other = Stopper()
    taker = supervision(ledger, other)
    reports: list[SupervisorReport] = []

    def sleep_over_it(_: StopTarget) -> None:
        manual_clock.advance(9_999)
        reports.append(taker.cycle())
        manual_clock.advance(1)
        reports.append(taker.cycle())

    slow = Stopper(act=sleep_over_it)
    assert supervision(ledger, slow).cycle()["cancellation"] == {"seen": 1, "claimed": 1, "fenced": 1}
    before, after = (report["cancellation"] for report in reports)
    assert before == {"seen": 0, "claimed": 0}
    assert after == {"seen": 1, "claimed": 1, "taken_over": 1, "termination_requested": 1}
    assert types(ledger, asked.run_id)[-2:] == ["run.cancel_dispatch_taken_over", "run.cancel_dispatched"]


def test_a_machine_that_slept_beyond_the_lease_sends_nothing_more(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asked_to_stop(ledger)
    read, slept_s = time.clock_gettime, 0

    def clock_gettime(which: int) -> float:
        return read(which) + (slept_s if which == time.CLOCK_BOOTTIME else 0)

    class Sleeper(Stopper):
        """Its machine sleeps between the proof and the signal."""

        def stop(self, target: StopTarget, time_left: TimeLeft) -> StopResult:
            nonlocal slept_s
            slept_s = 30
            if not time_left.allows(1):
                raise OutOfTime
            return super().stop(target, time_left)

    stopper = Sleeper()
    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    report = supervision(ledger, stopper).cycle()
    assert report["cancellation"] == {"seen": 1, "claimed": 1, "out_of_time": 1}
    assert stopper.asked == []
    row = dispatch_of(ledger, asked.run_id)
    assert row is not None
    assert row["status"] == "leased"


def test_a_worker_is_another_one_after_each_start_and_its_name_tells_nothing(ledger: Ledger) -> None:
    owners = {supervision(ledger, Stopper()).owner for _ in range(3)}
    assert len(owners) == 3
    # All of it is random: neither host nor process, nor when it began (R3.5, R7.3).
    assert {owner[14] for owner in owners} == {"4"}


def test_c35_that_the_wall_clock_was_set_is_told_once_where_it_decides_anything(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    heard: list[Diagnostic] = []
    worker = supervision(ledger, Stopper(), on_diagnostic=heard.append)
    manual_clock.advance(60_000)
    manual_clock.jump_wall(999)  # as a time server corrects it
    worker.cycle()
    assert heard == []
    for jump_ms in (-3_600_000, 3_600_000):
        manual_clock.jump_wall(jump_ms)
        worker.cycle()
        worker.cycle()
        told = [(item.part, item.error, item.detail.partition(":")[0]) for item in heard]
        # On PostgreSQL the server's clock decides.
        assert told == ([("clock", "WallClockSet", f"by {jump_ms} ms")] if one_writer(ledger) else [])
        heard.clear()


def test_only_the_duties_that_are_wanted_are_done(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running", timeout_ms=1)
    manual_clock.advance(1)
    stopper = Stopper()
    assert list(supervision(ledger, stopper, duties=[Duty.CANCELLATION]).cycle().counters) == ["cancellation"]
    assert stopper.asked == []
    assert list(supervision(ledger, stopper, duties=[Duty.DEADLINES]).cycle().counters) == ["deadlines"]
    assert stopper.asked == []
    assert ledger.supervise(duties=[Duty.COMPLETION]).cycle().counters == {
        "completion": {"seen": 0, "claimed": 0, "recorded": 0, "repeated": 0, "late": 0, "quarantined": 0, "kept": 0}
    }


def test_a_lease_that_does_not_outlast_a_controller_is_refused(ledger_factory: ThrowAwayLedgers) -> None:
    # The controller may take 1 s, and 2 s more are needed (R8.7).
    supervision(ledger_factory(cancel_lease_ms=3_000), Stopper())
    with pytest.raises(InvalidSetting, match="cancel_lease_ms"):
        supervision(ledger_factory(cancel_lease_ms=2_999), Stopper())


@pytest.mark.parametrize("interval_ms", [0, 249, 86_400_001])
def test_an_interval_out_of_its_bounds_is_refused(ledger: Ledger, interval_ms: int) -> None:
    with pytest.raises(InvalidValue, match="interval_ms"):
        supervision(ledger, Stopper(), interval_ms=interval_ms)


def test_a_request_wakes_a_started_worker(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory(interval_ms=86_400_000)
    reports: SimpleQueue[SupervisorReport] = SimpleQueue()
    stopper = Stopper()
    with supervision(ledger, stopper, on_cycle=reports.put) as worker:
        with pytest.raises(AlreadyStarted):
            worker.cycle()
        first = reports.get(timeout=DEADLINE_S)
        assert first.counters == NOTHING
        asked = asked_to_stop(ledger)
        while not stopper.asked:
            reports.get(timeout=DEADLINE_S)
    assert stopper.asked == [asked.run_id]
    assert not worker.running
    # The owner of a worker is one incarnation, so it can be started again.
    worker.start()
    assert worker.stop()


def test_a_worker_that_stops_settles_what_it_has_begun(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory(interval_ms=86_400_000)
    first, second = (asked_to_stop(ledger) for _ in range(2))
    begun, go = threading.Event(), threading.Event()

    def hold(_: StopTarget) -> None:
        begun.set()
        assert go.wait(DEADLINE_S)

    stopper = Stopper(act=hold)
    worker = supervision(ledger, stopper)
    worker.start()
    assert begun.wait(DEADLINE_S)
    assert not worker.stop(0)
    go.set()
    assert worker.stop(DEADLINE_S * 1_000)
    assert stopper.asked == [first.run_id]
    assert last_fact(ledger, first.run_id)[0] == "run.cancel_dispatched"
    assert last_fact(ledger, second.run_id)[0] == "run.cancel_requested"


def test_closing_the_ledger_stops_its_workers(ledger_factory: ThrowAwayLedgers) -> None:
    ledger = ledger_factory()
    reports: SimpleQueue[SupervisorReport] = SimpleQueue()
    worker = supervision(ledger, Stopper(), on_cycle=reports.put)
    worker.start()
    reports.get(timeout=DEADLINE_S)
    ledger.close()
    assert not worker.running


def test_a_rearmed_dispatch_is_delivered_again(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    stopper = Stopper()
    worker = supervision(ledger, stopper)
    worker.cycle()
    row = dispatch_of(ledger, asked.run_id)
    assert row is not None
    ledger.rearm(asked.run_id, actor=OPERATOR, because="again", version=row["version"])
    assert worker.cycle()["cancellation"] == {"seen": 0, "claimed": 0}
    manual_clock.advance(1_000)
    assert worker.cycle()["cancellation"]["termination_requested"] == 1
    assert stopper.asked == [asked.run_id, asked.run_id]


def test_a_run_that_has_ended_is_not_signalled(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    ledger.finish(asked.claim, Outcome.succeeded(exit_code=0), actor=ANA)
    stopper = Stopper()
    assert supervision(ledger, stopper).cycle().counters == NOTHING
    assert stopper.asked == []

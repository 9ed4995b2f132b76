"""The dispatcher: rounds over what is due, one candidate after the other, and what it does when something fails.

R7.4, R8.1, R8.4, R8.7, R9.1, R9.2, R9.3. The store is a list in memory under the port; real stores are under the
contract tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from runfacts.domain.cancellation.controllers import Controllers, OutOfTime, StopResult, StopTarget, TimeLeft
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.dispatcher import MARGIN_MS, CycleReport, Dispatcher
from runfacts.domain.cancellation.results import SETTLED, STATUS_AFTER, DispatchResult, DispatchStatus
from runfacts.domain.cancellation.terms import (
    CandidatePage,
    Cursor,
    DispatchAlreadySettled,
    DispatchCandidate,
    DispatchClaimed,
    DispatchFenced,
    DispatchNotClaimed,
    DispatchSettled,
    PageRefusal,
)
from runfacts.domain.errors import InvalidSetting, InvalidValue
from runfacts.domain.payloads import Escalation

OWNER = "worker-1"
SERVED = (("batch", "here"),)
DONE = StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.TERM)
Settled = tuple[str, DispatchResult, Escalation]


def candidate(number: int, due_at_ms: int | None = None) -> DispatchCandidate:
    return DispatchCandidate(f"run-{number:04}", f"attempt-{number:04}", 7, number if due_at_ms is None else due_at_ms)


@dataclass
class Queue:
    """Dispatches in memory: a settle takes one off, unless it is to be tried again."""

    due: list[DispatchCandidate] = field(default_factory=list)
    now_ms: int = 1_000
    asked: list[tuple[int | None, Cursor | None, int]] = field(default_factory=list)
    claims: list[str] = field(default_factory=list)
    settles: list[Settled] = field(default_factory=list)
    not_granted: dict[str, ClaimAnswer] = field(default_factory=dict)
    settle_answers: dict[str, type[DispatchAlreadySettled | DispatchFenced]] = field(default_factory=dict)
    fails_at: set[str] = field(default_factory=set)
    without_handle: set[str] = field(default_factory=set)
    executor_type: str = "batch"

    def due_dispatches(
        self, served: tuple[tuple[str, str], ...], *, cutoff_ms: int | None, after: Cursor | None, limit: int
    ) -> tuple[CandidatePage, int]:
        """See ``CancellationDispatches``."""
        assert served == SERVED
        self.asked.append((cutoff_ms, after, limit))
        until = self.now_ms if cutoff_ms is None else cutoff_ms
        place = (-1, "") if after is None else (after.due_at_ms, after.run_id)
        rest = sorted((item.due_at_ms, item.run_id, item) for item in self.due if item.due_at_ms <= until)
        found = [item for due_at_ms, run_id, item in rest if (due_at_ms, run_id) > place]
        page = tuple(found[:limit])
        more = Cursor(page[-1].due_at_ms, page[-1].run_id) if len(found) > limit else None
        return CandidatePage(page, more), until

    def claim_dispatch(
        self,
        run_id: str,
        attempt_id: str,
        requested_at_ms: int,
        *,
        owner: str,
        served: frozenset[tuple[str, str]],
        lease_ms: int | None = None,
    ) -> DispatchClaimed | DispatchNotClaimed:
        """See ``CancellationDispatches``."""
        assert (owner, served, lease_ms, requested_at_ms) == (OWNER, frozenset(SERVED), 30_000, 7)
        self.claims.append(run_id)
        if run_id in self.fails_at:
            raise ConnectionError("gone")
        if run_id in self.not_granted:
            return DispatchNotClaimed(run_id, self.not_granted[run_id])
        handle = None if run_id in self.without_handle else "handle"
        target = StopTarget(run_id, attempt_id, self.executor_type, "here", handle, 5)
        return DispatchClaimed(target, owner, 1, 1, self.now_ms + 30_000, "rft_token", taken_over=False)

    def settle_dispatch(
        self, claim: DispatchClaimed, result: DispatchResult, *, escalation: Escalation = Escalation.NONE
    ) -> DispatchSettled | DispatchAlreadySettled | DispatchFenced:
        """See ``CancellationDispatches``."""
        run_id = claim.target.run_id
        self.settles.append((run_id, result, escalation))
        if run_id in self.settle_answers:
            return self.settle_answers[run_id](run_id)
        if STATUS_AFTER[result] is not DispatchStatus.RETRY_WAIT:
            self.due = [item for item in self.due if item.run_id != run_id]
        return DispatchSettled(run_id, STATUS_AFTER[result], 2, None)


@dataclass
class Controller:
    """Does what the test says and remembers whom it was asked to stop."""

    act: Callable[[StopTarget, TimeLeft], StopResult] = lambda _target, _time_left: DONE
    executor_type: str = "batch"
    scopes: frozenset[str] = frozenset({"here"})
    worst_case_ms: int = 6_000
    targets: list[StopTarget] = field(default_factory=list)

    def stop(self, target: StopTarget, time_left: TimeLeft) -> StopResult:
        """See ``ExecutionController``."""
        self.targets.append(target)
        return self.act(target, time_left)


class Bench:
    """A dispatcher over a queue in memory, on a clock that stands still."""

    def __init__(
        self, queue: Queue, *controllers: Controller, page: int = 3, pages: int = 2, lease_ms: int = 30_000
    ) -> None:
        self.queue = queue
        self.now_s = 0.0
        self.errors: list[tuple[str, BaseException]] = []
        self.dispatcher = Dispatcher(
            queue,
            Controllers(controllers or (Controller(),)),
            owner=OWNER,
            lease_ms=lease_ms,
            page=page,
            pages=pages,
            monotonic=lambda: self.now_s,
            on_error=lambda run_id, error: self.errors.append((run_id, error)),
        )

    def cycle(self) -> CycleReport:
        """Run a cycle."""
        return self.dispatcher.cycle()


def raising(error: BaseException) -> Callable[[StopTarget, TimeLeft], StopResult]:
    def act(_target: StopTarget, _time_left: TimeLeft) -> StopResult:
        raise error

    return act


def names(*numbers: int) -> list[str]:
    return [f"run-{number:04}" for number in numbers]


def test_a_candidate_is_claimed_stopped_and_settled() -> None:
    controller = Controller()
    bench = Bench(Queue([candidate(1)]), controller)
    report = bench.cycle()
    assert report.as_dict() == {"seen": 1, "claimed": 1, "termination_requested": 1}
    assert controller.targets == [StopTarget("run-0001", "attempt-0001", "batch", "here", "handle", 5)]
    assert bench.queue.settles == [("run-0001", DispatchResult.TERMINATION_REQUESTED, Escalation.TERM)]
    assert (report.round_ended, report.refused, bench.errors) == (True, None, [])


@pytest.mark.parametrize("answer", list(ClaimAnswer))
def test_without_a_claim_nobody_is_stopped(answer: ClaimAnswer) -> None:
    controller = Controller()
    bench = Bench(Queue([candidate(1)], not_granted={"run-0001": answer}), controller)
    assert bench.cycle().as_dict() == {"seen": 1, "claimed": 0, answer.value: 1}
    assert (controller.targets, bench.queue.settles) == ([], [])


@pytest.mark.parametrize("result", sorted(SETTLED))
def test_what_the_controller_says_is_what_is_settled(result: DispatchResult) -> None:
    controller = Controller(lambda _target, _time_left: StopResult(result, Escalation.NONE))
    bench = Bench(Queue([candidate(1)]), controller)
    assert bench.cycle().counts == {result.value: 1}
    assert bench.queue.settles == [("run-0001", result, Escalation.NONE)]


@pytest.mark.parametrize("result", [DispatchResult.LIMIT, DispatchResult.ABANDONED])
def test_a_controller_cannot_answer_what_only_claims_and_operators_write(result: DispatchResult) -> None:
    bench = Bench(Queue([candidate(1)]), Controller(lambda _target, _time_left: StopResult(result)))
    assert bench.cycle().counts == {"dispatch_error": 1}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "termination_requested",
        DispatchResult.TERMINATION_REQUESTED,
        StopResult("no such result"),  # type: ignore[arg-type]  # what no type checker has seen
        StopResult([], Escalation.TERM),  # type: ignore[arg-type]  # the same
        StopResult(DispatchResult.TERMINATION_REQUESTED, "loud"),  # type: ignore[arg-type]  # the same
        StopResult(DispatchResult.TERMINATION_REQUESTED, None),  # type: ignore[arg-type]  # the same
    ],
    ids=repr,
)
def test_an_answer_that_is_none_is_a_controllers_failure_too(answer: StopResult) -> None:
    """Else its term would end without a settle, and the next one send the same signals, and the next."""
    bench = Bench(Queue([candidate(1)]), Controller(lambda _target, _time_left: answer))
    assert bench.cycle().as_dict() == {"seen": 1, "claimed": 1, "dispatch_error": 1}
    assert bench.queue.settles == [("run-0001", DispatchResult.DISPATCH_ERROR, Escalation.NONE)]
    assert [run_id for run_id, _ in bench.errors] == ["run-0001"]


def test_an_answer_in_plain_words_is_settled_as_what_it_means() -> None:
    plain = StopResult("termination_requested", "term")  # type: ignore[arg-type]  # as from JSON
    bench = Bench(Queue([candidate(1)]), Controller(lambda _target, _time_left: plain))
    assert bench.cycle().as_dict() == {"seen": 1, "claimed": 1, "termination_requested": 1}
    [(_, result, escalation)] = bench.queue.settles
    assert (result is DispatchResult.TERMINATION_REQUESTED, escalation is Escalation.TERM) == (True, True)


def test_a_controller_that_fails_is_a_result_and_is_told() -> None:
    error = RuntimeError("no such host")

    bench = Bench(Queue([candidate(1), candidate(2)]), Controller(raising(error)))
    assert bench.cycle().as_dict() == {"seen": 2, "claimed": 2, "dispatch_error": 2}
    assert bench.queue.settles == [
        ("run-0001", DispatchResult.DISPATCH_ERROR, Escalation.NONE),
        ("run-0002", DispatchResult.DISPATCH_ERROR, Escalation.NONE),
    ]
    assert bench.errors == [("run-0001", error), ("run-0002", error)]


def test_out_of_time_settles_nothing() -> None:
    bench = Bench(Queue([candidate(1)]), Controller(raising(OutOfTime())))
    assert bench.cycle().as_dict() == {"seen": 1, "claimed": 1, "out_of_time": 1}
    assert (bench.queue.settles, bench.errors) == ([], [])


def test_the_controllers_time_is_counted_from_before_the_claim() -> None:
    class SlowQueue(Queue):
        """Its claims take ten seconds."""

        def claim_dispatch(self, *arguments: str, **options: str) -> DispatchClaimed | DispatchNotClaimed:  # type: ignore[override]  # passes everything on
            bench.now_s += 10
            return super().claim_dispatch(*arguments, **options)  # type: ignore[arg-type]  # the same

    seen: list[bool] = []

    def act(_target: StopTarget, time_left: TimeLeft) -> StopResult:
        # 30 s of lease less 2 s of margin, and 10 s are gone.
        seen.extend([time_left.allows(17_999), time_left.allows(18_000)])
        return DONE

    bench = Bench(SlowQueue([candidate(1)]), Controller(act))
    bench.cycle()
    assert seen == [True, False]


def test_an_attempt_without_a_handle_is_tried_again_later() -> None:
    controller = Controller()
    bench = Bench(Queue([candidate(1)], without_handle={"run-0001"}), controller)
    assert bench.cycle().counts == {"handle_missing": 1}
    assert controller.targets == []


def test_an_executor_type_without_a_controller_is_tried_again_later() -> None:
    controller = Controller()
    bench = Bench(Queue([candidate(1)], executor_type="batch2"), controller)
    assert bench.cycle().counts == {"controller_missing": 1}
    assert controller.targets == []


@pytest.mark.parametrize(
    ("answer", "counted"), [(DispatchFenced, "fenced"), (DispatchAlreadySettled, "termination_requested")]
)
def test_a_late_settle_is_counted_as_fenced_and_a_repeated_one_as_done(
    answer: type[DispatchFenced | DispatchAlreadySettled], counted: str
) -> None:
    bench = Bench(Queue([candidate(1)], settle_answers={"run-0001": answer}))
    assert bench.cycle().counts == {counted: 1}
    assert bench.errors == []


def test_one_candidate_that_fails_does_not_stop_the_others() -> None:
    bench = Bench(Queue([candidate(1), candidate(2), candidate(3)], fails_at={"run-0002"}))
    assert bench.cycle().as_dict() == {"seen": 3, "claimed": 2, "error": 1, "termination_requested": 2}
    assert [(run_id, str(error)) for run_id, error in bench.errors] == [("run-0002", "gone")]
    assert bench.queue.claims == names(1, 2, 3)


def test_an_interruption_is_no_error_of_a_candidate() -> None:
    bench = Bench(Queue([candidate(1)]), Controller(raising(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        bench.cycle()
    assert bench.queue.settles == []


def test_a_cycle_takes_its_pages_and_the_next_one_goes_on_there() -> None:
    bench = Bench(Queue([candidate(number) for number in range(1, 12)]), page=3, pages=2)
    bench.queue.not_granted = dict.fromkeys(names(*range(1, 12)), ClaimAnswer.LEASED)
    reports = [bench.cycle() for _ in range(2)]
    assert [(report.seen, report.round_ended) for report in reports] == [(6, False), (5, True)]
    assert bench.queue.claims == names(*range(1, 12))
    assert bench.queue.asked == [
        (None, None, 3),
        (1_000, Cursor(3, "run-0003"), 3),
        (1_000, Cursor(6, "run-0006"), 3),
        (1_000, Cursor(9, "run-0009"), 3),
    ]
    bench.cycle()
    assert bench.queue.asked[4] == (None, None, 3)  # a new round, at the oldest


def test_the_oldest_due_come_first_and_ids_decide_among_equals() -> None:
    bench = Bench(Queue([candidate(1, 30), candidate(2, 10), candidate(4, 20), candidate(3, 20)]), page=4)
    bench.cycle()
    assert bench.queue.claims == names(2, 3, 4, 1)


def test_everything_that_was_due_is_tried_within_its_round_whatever_flows_in() -> None:
    queue = Queue([candidate(number, 1_000) for number in range(100, 120)])
    queue.not_granted = dict.fromkeys(names(*range(100, 120)), ClaimAnswer.LEASED)
    bench = Bench(queue, page=3, pages=2)
    for cycle in range(4):  # 20 rows, 6 in a cycle: 4 cycles
        bench.cycle()
        # What flows in is due later than the round's cut-off.
        queue.now_ms += 1
        queue.due += [candidate(200 + 10 * cycle + number, queue.now_ms) for number in range(10)]
    assert queue.claims == names(*range(100, 120))
    bench.cycle()
    assert queue.claims[20:] == names(*range(100, 106))
    assert queue.asked[-2] == (None, None, 3)


def test_a_hundred_that_always_fail_do_not_starve_one() -> None:
    def act(target: StopTarget, _time_left: TimeLeft) -> StopResult:
        if target.run_id != "run-0999":
            raise RuntimeError
        return DONE

    queue = Queue([candidate(number) for number in range(1, 101)] + [candidate(999)])
    controller = Controller(act)
    bench = Bench(queue, controller, page=4, pages=4)
    reports = [bench.cycle() for _ in range(7)]  # 101 rows, 16 in a cycle: within 7 cycles
    assert ("run-0999", DispatchResult.TERMINATION_REQUESTED, Escalation.TERM) in queue.settles
    assert sum(report.seen for report in reports) == 101
    assert [report.round_ended for report in reports] == [False] * 6 + [True]


@pytest.mark.parametrize("repeated", [Cursor(3, "run-0003"), Cursor(2, "run-0009"), Cursor(3, "run-0001")])
def test_a_cursor_that_does_not_advance_ends_the_cycle_before_anybody_is_claimed(repeated: Cursor) -> None:
    class Stuck(Queue):
        """Gives the same page for ever."""

        def due_dispatches(
            self, served: tuple[tuple[str, str], ...], *, cutoff_ms: int | None, after: Cursor | None, limit: int
        ) -> tuple[CandidatePage, int]:
            page, until = super().due_dispatches(served, cutoff_ms=cutoff_ms, after=after, limit=limit)
            return (page, until) if after is None else (CandidatePage(page.items, repeated), until)

    queue = Stuck([candidate(number) for number in range(1, 20)])
    queue.not_granted = dict.fromkeys(names(*range(1, 20)), ClaimAnswer.LEASED)
    bench = Bench(queue, page=3, pages=4)
    report = bench.cycle()
    assert (report.refused, report.seen, report.round_ended) == (PageRefusal.CURSOR_NOT_ADVANCING, 3, False)
    # Where people look it is said, too.
    assert report.as_dict() == {"seen": 3, "claimed": 0, "leased": 3, "cursor_not_advancing": 1}
    assert queue.claims == names(1, 2, 3)
    # The next cycle begins a new round.
    bench.cycle()
    assert queue.asked[2] == (None, None, 3)


def test_a_page_with_more_than_was_asked_for_ends_the_cycle_before_anybody_is_claimed() -> None:
    class Flooding(Queue):
        """Gives one more than it should."""

        def due_dispatches(
            self, served: tuple[tuple[str, str], ...], *, cutoff_ms: int | None, after: Cursor | None, limit: int
        ) -> tuple[CandidatePage, int]:
            return super().due_dispatches(served, cutoff_ms=cutoff_ms, after=after, limit=limit + 1)

    bench = Bench(Flooding([candidate(number) for number in range(1, 20)]), page=3, pages=4)
    report = bench.cycle()
    assert (report.refused, report.round_ended, bench.queue.claims) == (PageRefusal.PAGE_OVERFLOW, False, [])
    assert report.as_dict() == {"seen": 0, "claimed": 0, "page_overflow": 1}


def test_a_worker_that_serves_nothing_asks_for_nothing() -> None:
    bench = Bench(Queue([candidate(1)]), Controller(scopes=frozenset()))
    assert bench.cycle().as_dict() == {"seen": 0, "claimed": 0}
    assert bench.queue.asked == []


def test_nothing_due_is_one_question() -> None:
    bench = Bench(Queue())
    report = bench.cycle()
    assert (report.as_dict(), report.round_ended) == ({"seen": 0, "claimed": 0}, True)
    assert bench.queue.asked == [(None, None, 3)]


def test_stopping_ends_a_cycle_between_two_candidates_and_none_is_lost() -> None:
    queue = Queue([candidate(number) for number in range(1, 6)])
    bench = Bench(queue, page=5)
    answers = iter([False, False, True])
    report = bench.dispatcher.cycle(lambda: next(answers))
    assert (report.seen, queue.claims) == (2, names(1, 2))
    bench.cycle()
    assert queue.claims == names(1, 2, 3, 4, 5)


def test_one_candidate_is_delivered_outside_of_the_rounds() -> None:
    bench = Bench(Queue([candidate(1), candidate(2)]))
    report = CycleReport()
    bench.dispatcher.deliver(candidate(2), report)
    assert (bench.queue.claims, report.counts) == (names(2), {"termination_requested": 1})
    bench.dispatcher.deliver(candidate(1))
    assert bench.queue.asked == []


@pytest.mark.parametrize(("lease_ms", "refused"), [(7_999, True), (8_000, False), (30_000, False), (1_000, True)])
def test_a_lease_must_outlast_the_longest_controller_and_a_margin(lease_ms: int, refused: bool) -> None:  # noqa: FBT001
    # Twice the longest wait for a lock, which is 1 s (R4.4).
    assert MARGIN_MS == 2_000
    quick = Controller(executor_type="quick", worst_case_ms=10)
    if refused:
        with pytest.raises(InvalidSetting, match="cancel_lease_ms"):
            Bench(Queue(), quick, Controller(), lease_ms=lease_ms)
    else:
        Bench(Queue(), quick, Controller(), lease_ms=lease_ms)


def test_two_controllers_of_one_executor_type_are_refused() -> None:
    with pytest.raises(InvalidValue, match="two for executor type 'batch'"):
        Controllers([Controller(), Controller(scopes=frozenset({"there"}))])


def test_controllers_are_found_by_exact_type_and_copied_when_registered() -> None:
    one, two = Controller(executor_type="b", worst_case_ms=9), Controller(scopes=frozenset({"x", "a"}))
    registered = [one, two]
    controllers = Controllers(registered)
    registered.clear()
    assert (controllers.find("b"), controllers.find("batch")) == (one, two)
    assert [controllers.find(name) for name in ("B", "", "bat", "batch ")] == [None] * 4
    assert controllers.served == (("b", "here"), ("batch", "a"), ("batch", "x"))
    assert (controllers.worst_case_ms, Controllers().worst_case_ms) == (6_000, 0)

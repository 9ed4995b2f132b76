"""R9.3: the parts of a cycle, in order, each on its own; diagnostics that are bounded and tell no secret."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runfacts.domain.cancellation.supervisor import Counters, Diagnostic, Diagnostics, Part, Stopping, Supervisor
from runfacts.domain.errors import DatabaseBusy, RunNotFound
from runfacts.domain.texts import REASON_MAX


class Told:
    """Keeps what it is told; may fail at it."""

    def __init__(self, *, fails: bool = False) -> None:
        self.heard: list[Diagnostic] = []
        self._fails = fails

    def __call__(self, diagnostic: Diagnostic) -> None:
        """Be told."""
        self.heard.append(diagnostic)
        if self._fails:
            raise ZeroDivisionError


def counting(counters: Mapping[str, int], order: list[str], name: str) -> Callable[[Stopping], Counters]:
    def run(stopping: Stopping) -> Counters:
        del stopping
        order.append(name)
        return counters

    return run


def failing(error: Exception) -> Callable[[Stopping], Counters]:
    def run(stopping: Stopping) -> Counters:
        del stopping
        raise error

    return run


def test_the_parts_run_in_order_and_each_has_its_counters() -> None:
    order: list[str] = []
    parts = [Part(name, counting({"seen": at}, order, name)) for at, name in enumerate(("one", "two", "three"))]
    report = Supervisor(parts, Diagnostics(Told())).cycle()
    assert order == ["one", "two", "three"]
    assert report.counters == {"one": {"seen": 0}, "two": {"seen": 1}, "three": {"seen": 2}}
    assert report["three"] == {"seen": 2}
    assert report.failed == 0


def test_a_part_that_fails_is_counted_and_told_and_the_others_run() -> None:
    told = Told()
    parts = [Part("one", failing(ZeroDivisionError("secret"))), Part("two", counting({"seen": 4}, [], "two"))]
    report = Supervisor(parts, Diagnostics(told)).cycle()
    assert report.counters == {"one": {"error": 1}, "two": {"seen": 4}}
    assert report.failed == 1
    assert told.heard == [Diagnostic("one", "ZeroDivisionError", "", None)]


def test_who_fails_at_being_told_stops_nothing() -> None:
    diagnostics = Diagnostics(Told(fails=True))
    parts = [Part("one", failing(ValueError())), Part("two", counting({}, [], "two"))]
    assert Supervisor(parts, diagnostics).cycle().counters == {"one": {"error": 1}, "two": {}}
    assert diagnostics.untold == 1


def test_a_worker_that_is_to_stop_begins_no_further_part() -> None:
    order: list[str] = []
    parts = [Part(name, counting({}, order, name)) for name in ("one", "two", "three")]
    report = Supervisor(parts, Diagnostics(Told())).cycle(lambda: len(order) >= 2)
    assert order == ["one", "two"]
    assert list(report.counters) == ["one", "two"]


def test_the_parts_are_told_whether_to_stop() -> None:
    heard: list[bool] = []

    def run(stopping: Stopping) -> Counters:
        heard.append(stopping())
        return {}

    answers = iter([False, True])
    Supervisor([Part("one", run)], Diagnostics(Told())).cycle(lambda: next(answers))
    assert heard == [True]


def test_our_own_errors_are_told_in_their_words_and_others_by_their_name_alone() -> None:
    told = Told()
    diagnostics = Diagnostics(told)
    run_id = "019316d5-0000-7000-8000-000000000001"
    diagnostics.report("cancellation", RunNotFound(run_id), run_id)
    diagnostics.report("cancellation", RuntimeError("postgresql://ana:secret@host/db"))
    assert told.heard[0].error == "RunNotFound"
    assert run_id in told.heard[0].detail
    assert told.heard[0].run_id == run_id
    assert told.heard[1] == Diagnostic("cancellation", "RuntimeError", "", None)


def test_what_is_told_is_bounded() -> None:
    told = Told()
    Diagnostics(told).report("completion", DatabaseBusy("x" * 5_000))
    assert len(told.heard[0].detail) <= REASON_MAX

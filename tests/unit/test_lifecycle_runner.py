"""R9.3: explicit start and stop, one cycle after the other, nothing armed by a cycle from an old life."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from runfacts.domain.cancellation.supervisor import Diagnostic, Diagnostics, Stopping
from runfacts.domain.errors import AlreadyStarted
from runfacts.infrastructure import lifecycle
from runfacts.infrastructure.lifecycle import EventBell, LifecycleRunner

DEADLINE_S = 30
A_DAY_MS = 86_400_000


class Cycles:
    """Cycles that begin when the runner wants and end when the test wants."""

    def __init__(self) -> None:
        self.begun: SimpleQueue[Stopping] = SimpleQueue()
        self._ends: SimpleQueue[Exception | None] = SimpleQueue()
        self.now = 0
        self.most = 0

    def __call__(self, stopping: Stopping) -> None:
        """Be one cycle."""
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.put(stopping)
        try:
            error = self._ends.get(timeout=DEADLINE_S)
            if error is not None:
                raise error
        finally:
            self.now -= 1

    def next(self) -> Stopping:
        """Wait for the next one to begin."""
        return self.begun.get(timeout=DEADLINE_S)

    def end(self, error: Exception | None = None) -> None:
        """Let the one under way end, or the next one."""
        self._ends.put(error)


class SlowBell:
    """Says for how long it is waited at, and rings when the test wants."""

    def __init__(self) -> None:
        self.waits: SimpleQueue[float] = SimpleQueue()
        self._rings: SimpleQueue[None] = SimpleQueue()
        self.closed = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        """See Bell."""
        self.waits.put(timeout_s)
        self._rings.get(timeout=DEADLINE_S)
        return True

    def wake(self) -> None:
        """See Bell."""
        self._rings.put(None)

    def close(self) -> None:
        """See Bell."""
        self.closed.set()


@pytest.fixture
def cycles() -> Cycles:
    return Cycles()


@pytest.fixture
def bell() -> SlowBell:
    return SlowBell()


@pytest.fixture
def heard() -> list[Diagnostic]:
    return []


@pytest.fixture
def runner(cycles: Cycles, bell: SlowBell, heard: list[Diagnostic]) -> Iterator[LifecycleRunner]:
    """A runner whose pauses last until the test ends them."""
    made = LifecycleRunner(
        cycles, pause_ms=lambda: 750, drain_ms=30_000, diagnostics=Diagnostics(heard.append), bell=lambda: bell
    )
    yield made
    cycles.end()
    cycles.end()
    assert made.stop()


def with_event_bell(cycles: Cycles, pause_ms: int = A_DAY_MS) -> LifecycleRunner:
    return LifecycleRunner(
        cycles, pause_ms=lambda: pause_ms, drain_ms=30_000, diagnostics=Diagnostics(lambda _: None), bell=EventBell
    )


def test_nothing_runs_before_it_is_started(runner: LifecycleRunner, cycles: Cycles) -> None:
    runner.wake()
    assert (runner.running, runner.idle) == (False, True)
    assert cycles.begun.empty()
    runner.start()
    cycles.next()
    assert (runner.running, runner.idle) == (True, False)


def test_the_next_cycle_is_armed_only_when_the_last_has_ended(
    runner: LifecycleRunner, cycles: Cycles, bell: SlowBell
) -> None:
    runner.start()
    cycles.next()
    assert bell.waits.empty()
    cycles.end()
    assert bell.waits.get(timeout=DEADLINE_S) == 0.75
    assert cycles.begun.empty()
    bell.wake()
    cycles.next()
    assert bell.waits.empty()
    assert cycles.most == 1


def test_a_wake_ends_the_pause(cycles: Cycles) -> None:
    runner = with_event_bell(cycles)
    runner.start()
    cycles.next()
    cycles.end()
    runner.wake()
    cycles.next()
    cycles.end()
    assert runner.stop()


def test_a_wake_during_a_cycle_lets_the_next_one_follow_at_once(cycles: Cycles) -> None:
    runner = with_event_bell(cycles)
    runner.start()
    cycles.next()
    runner.wake()
    runner.wake()
    cycles.end()
    cycles.next()
    # However often it was woken, that is one more cycle, and then a pause.
    cycles.end()
    assert runner.stop()
    assert cycles.begun.empty()


def test_without_a_wake_the_pause_ends_by_itself(cycles: Cycles) -> None:
    runner = with_event_bell(cycles, pause_ms=1)
    runner.start()
    for _ in range(3):
        cycles.next()
        cycles.end()
    cycles.end()
    assert runner.stop()


def test_stop_cancels_the_pause(cycles: Cycles) -> None:
    runner = with_event_bell(cycles)
    runner.start()
    cycles.next()
    cycles.end()
    assert runner.stop()
    assert runner.idle
    assert cycles.begun.empty()


def test_stop_waits_for_the_cycle_under_way_and_tells_it(runner: LifecycleRunner, cycles: Cycles) -> None:
    runner.start()
    stopping = cycles.next()
    assert not stopping()
    waiting = threading.Thread(target=runner.stop)
    waiting.start()
    while not stopping():
        pass
    assert waiting.is_alive()
    cycles.end()
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()
    assert runner.idle


def test_after_a_time_out_the_old_cycle_arms_nothing_and_nothing_new_starts_until_it_has_ended(
    runner: LifecycleRunner, cycles: Cycles, bell: SlowBell
) -> None:
    runner.start()
    cycles.next()
    assert not runner.stop(0)
    assert (runner.running, runner.idle) == (False, False)
    with pytest.raises(AlreadyStarted):
        runner.start()
    assert not runner.stop(0)
    cycles.end()
    assert runner.stop()
    assert bell.waits.empty()
    assert cycles.begun.empty()
    runner.start()
    cycles.next()


def test_what_is_started_is_not_started_twice(runner: LifecycleRunner, cycles: Cycles) -> None:
    runner.start()
    cycles.next()
    with pytest.raises(AlreadyStarted):
        runner.start()
    assert cycles.begun.empty()


def test_stopping_what_is_not_started_does_nothing(runner: LifecycleRunner) -> None:
    assert runner.stop()
    assert runner.stop()


def test_each_life_has_a_bell_of_its_own_and_gives_it_back(cycles: Cycles) -> None:
    bells = [SlowBell(), SlowBell()]
    remaining = iter(bells)
    runner = LifecycleRunner(
        cycles,
        pause_ms=lambda: 1,
        drain_ms=30_000,
        diagnostics=Diagnostics(lambda _: None),
        bell=lambda: next(remaining),
    )
    for bell in bells:
        assert not bell.closed.is_set()
        runner.start()
        cycles.next()
        cycles.end()
        assert runner.stop()
        assert bell.closed.is_set()


def test_an_error_is_told_and_the_next_cycle_comes(
    runner: LifecycleRunner, cycles: Cycles, bell: SlowBell, heard: list[Diagnostic]
) -> None:
    runner.start()
    cycles.next()
    cycles.end(ZeroDivisionError("secret"))
    bell.waits.get(timeout=DEADLINE_S)
    assert heard == [Diagnostic("cycle", "ZeroDivisionError", "", None)]
    bell.wake()
    cycles.next()


def test_diagnostics_that_fail_stop_nothing(cycles: Cycles) -> None:
    def fail(_: Diagnostic) -> None:
        raise ZeroDivisionError

    diagnostics = Diagnostics(fail)
    runner = LifecycleRunner(cycles, pause_ms=lambda: 1, drain_ms=30_000, diagnostics=diagnostics)
    runner.start()
    cycles.next()
    cycles.end(ValueError())
    cycles.next()
    assert diagnostics.untold == 1
    cycles.end()
    cycles.end()
    assert runner.stop()


def test_a_bell_that_is_broken_is_told_and_the_cycles_go_on(
    cycles: Cycles, heard: list[Diagnostic], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(SlowBell):
        def wait(self, timeout_s: float) -> bool:
            raise OSError(timeout_s)

    monkeypatch.setattr(lifecycle, "_BROKEN_PAUSE_S", 0.001)
    runner = LifecycleRunner(
        cycles, pause_ms=lambda: 1, drain_ms=30_000, diagnostics=Diagnostics(heard.append), bell=Broken
    )
    runner.start()
    cycles.next()
    cycles.end()
    cycles.next()
    assert heard == [Diagnostic("cycle", "OSError", "", None)]
    cycles.end()
    cycles.end()
    assert runner.stop()


def test_its_thread_keeps_no_process_alive(runner: LifecycleRunner, cycles: Cycles) -> None:
    runner.start()
    cycles.next()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "runfacts-cycles"]
    assert thread.daemon

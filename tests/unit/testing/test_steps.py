"""Crashes and pauses at named steps (R14.3)."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from runfacts.infrastructure.steps import Steps
from runfacts.testing.steps import AllSteps, CallAt, FailAt, PauseAt, RecordedSteps


def reach(steps: Steps, *names: str) -> None:
    for name in names:
        steps.reached(name)


def test_recorded_steps_keep_their_order() -> None:
    steps = RecordedSteps()
    assert not steps.names
    reach(steps, "a", "b", "a")
    assert steps.names == ("a", "b", "a")


def test_a_failure_comes_at_its_step_and_once() -> None:
    error = OSError("disk")
    steps = FailAt("b", error)
    reach(steps, "a", "bb")
    with pytest.raises(OSError, match="disk") as caught:
        reach(steps, "b")
    assert caught.value is error
    reach(steps, "b")
    assert steps.count == 2


def test_a_failure_can_wait_for_the_second_time() -> None:
    steps = FailAt("b", KeyError, nth=2)
    reach(steps, "b")
    with pytest.raises(KeyError):
        reach(steps, "b")


def test_a_call_can_come_every_time() -> None:
    calls: list[int] = []
    reach(CallAt("b", lambda: calls.append(1), nth=0), "b", "a", "b")
    assert calls == [1, 1]


def test_a_kill_cannot_be_caught() -> None:
    program = (
        "from runfacts.testing.steps import KillAt\n"
        "steps = KillAt('b')\n"
        "steps.reached('a')\n"
        "print('alive', flush=True)\n"
        "try:\n"
        "    steps.reached('b')\n"
        "finally:\n"
        "    print('caught', flush=True)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-9, "alive\n")


def test_a_pause_holds_the_thread_until_it_is_resumed() -> None:
    steps = PauseAt("b")
    after: list[str] = []

    def work() -> None:
        reach(steps, "a", "b")
        after.append("b")

    thread = threading.Thread(target=work)
    thread.start()
    steps.wait()
    assert after == []
    steps.resume()
    thread.join()
    assert after == ["b"]


def test_a_pause_that_nobody_reaches_says_so() -> None:
    with pytest.raises(TimeoutError, match="no thread reached b"):
        PauseAt("b").wait(timeout_s=0)


def test_several_listeners_hear_in_order() -> None:
    recorded = RecordedSteps()
    with pytest.raises(KeyError):
        reach(AllSteps(recorded, FailAt("b", KeyError)), "a", "b")
    assert recorded.names == ("a", "b")

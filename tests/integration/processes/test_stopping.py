"""R8.5, R8.6; C07, C11: TERM, the grace, KILL, and what comes of them. With real processes."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from process_watch import kill, state_of, wait_until
from runfacts.domain.cancellation.controllers import OutOfTime, StopResult
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payloads import Escalation
from runfacts.infrastructure.processes.local_controller import AFTER_KILL_MS, SIGNAL_MS, LocalController
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.testing.steps import CallAt, RecordedSteps
from stop_scene import RecordingPidfds, StopScene, TimeIs

TERMINATED = StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.TERM)
KILLED = StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.KILL)
EXITED = StopResult(DispatchResult.ALREADY_EXITED)
LONG_MS = 60_000
"""A grace that no test waits for."""

FIRST_THREAD_ENDS = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
open(sys.argv[1], "w").close()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_that_ends_on_term_gets_nothing_else(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start_logging("log")
    steps = RecordedSteps()
    controller = LocalController(
        scene.machine, grace_ms=LONG_MS, pidfds=pidfds, group_signals=by_group, steps=steps, poll_ms=5
    )
    assert controller.stop(scene.target(scene.handle(leader)), TimeIs()) == TERMINATED
    assert pidfds.sent == [(signal.SIGTERM, by_group)]
    assert scene.log("log") == ["ready", "SIGTERM"]
    assert leader.wait() == 0
    assert steps.names == ("stop:after:proof", "stop:before:term", "stop:after:term")


def test_what_ignores_term_gets_kill_after_the_grace(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start_logging("log", "stays")
    steps = RecordedSteps()
    controller = LocalController(scene.machine, grace_ms=300, pidfds=pidfds, group_signals=by_group, steps=steps)
    before = time.monotonic()
    assert controller.stop(scene.target(scene.handle(leader)), TimeIs()) == KILLED
    assert time.monotonic() - before >= 0.3
    assert pidfds.sent == [(signal.SIGTERM, by_group), (signal.SIGKILL, by_group)]
    assert scene.log("log") == ["ready", "SIGTERM"]
    assert leader.wait() == -signal.SIGKILL
    assert steps.names[3:] == ("stop:after:proof", "stop:before:kill", "stop:after:kill")


def test_a_tree_whose_child_ignores_term_ends_when_the_child_does(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start_tree(
        f"{scene.shell_logging('child', 'stays')} &",
        f"exec {scene.shell_logging('leader', 'ends')}",
        logs=("child", "leader"),
    )
    handle = scene.handle(leader)
    still_there: list[int] = []
    at_kill = CallAt("stop:before:kill", lambda: still_there.append(len(ProcFs().living_members(handle.group))))
    controller = LocalController(
        scene.machine, grace_ms=300, pidfds=pidfds, group_signals=by_group, steps=at_kill, poll_ms=10
    )
    assert controller.stop(scene.target(handle), TimeIs()) == KILLED
    assert still_there == [1]
    assert ProcFs().living_members(handle.group) == ()
    assert scene.log("leader") == ["ready", "SIGTERM"]
    assert scene.log("child") == ["ready", "SIGTERM"]


def test_a_zombie_alone_has_exited_and_nothing_is_sent_or_waited_for(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    """C07."""
    leader = scene.start("sleep", "600")
    handle = scene.handle(leader)
    kill(leader.pid)
    wait_until(lambda: state_of(leader.pid) == "Z", "the leader is a zombie")
    steps = RecordedSteps()
    controller = LocalController(scene.machine, grace_ms=LONG_MS, pidfds=pidfds, group_signals=by_group, steps=steps)
    time_left = TimeIs()
    assert controller.stop(scene.target(handle), time_left) == EXITED
    # No signal, and no time asked for: it never got as far as waiting.
    assert (pidfds.sent, time_left.wanted, steps.names) == ([], [], ())


def test_a_reaped_leader_without_members_has_exited(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start("sleep", "600")
    handle = scene.handle(leader)
    leader.kill()
    leader.wait()
    controller = LocalController(scene.machine, pidfds=pidfds, group_signals=by_group)
    assert controller.stop(scene.target(handle), TimeIs()) == EXITED
    assert pidfds.sent == []


def test_a_stopped_process_is_not_continued_and_ends_by_kill(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    """C11."""
    leader = scene.start_logging("log")
    handle = scene.handle(leader)
    kill(leader.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(leader.pid) == "T", "it is stopped")
    states: list[str | None] = []
    steps = CallAt("stop:before:kill", lambda: states.append(state_of(leader.pid)))
    controller = LocalController(scene.machine, grace_ms=1_000, pidfds=pidfds, group_signals=by_group, steps=steps)
    assert controller.stop(scene.target(handle), TimeIs()) == KILLED
    assert states == ["T"]
    assert pidfds.sent == [(signal.SIGTERM, by_group), (signal.SIGKILL, by_group)]
    assert scene.log("log") == ["ready"]
    assert leader.wait() == -signal.SIGKILL


def test_a_process_whose_first_thread_has_ended_lives(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start(sys.executable, "-c", FIRST_THREAD_ENDS, str(scene.root / "started"))
    wait_until(lambda: (scene.root / "started").exists() and state_of(leader.pid) == "Z", "its first thread has ended")
    handle = scene.handle(leader)
    assert [member.pid for member in ProcFs().living_members(handle.group)] == [leader.pid]
    controller = LocalController(scene.machine, grace_ms=LONG_MS, pidfds=pidfds, group_signals=by_group)
    assert controller.stop(scene.target(handle), TimeIs()) == TERMINATED
    assert leader.wait() == -signal.SIGTERM


def test_without_the_group_flag_what_is_forked_meanwhile_is_reached_too(
    scene: StopScene, pidfds: RecordingPidfds
) -> None:
    # A shell that starts one more process when it gets TERM, and goes on.
    leader = scene.start_tree(
        "trap 'sleep 600 &' TERM",
        "sleep 600 &",
        f"echo ready > {scene.root}/shell",
        "while :; do wait; done",
        logs=("shell",),
    )
    handle = scene.handle(leader)
    controller = LocalController(scene.machine, grace_ms=500, pidfds=pidfds, group_signals=False, poll_ms=10)
    assert controller.stop(scene.target(handle), TimeIs()) == KILLED
    assert ProcFs().living_members(handle.group) == ()
    assert all(not group for _, group in pidfds.sent)


def test_no_signal_is_sent_without_time_for_the_grace_and_kill(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start_logging("log")
    controller = LocalController(scene.machine, grace_ms=300, pidfds=pidfds, group_signals=by_group)
    with pytest.raises(OutOfTime):
        controller.stop(scene.target(scene.handle(leader)), TimeIs(300 + SIGNAL_MS - 1))
    assert pidfds.sent == []
    assert scene.log("log") == ["ready"]


def test_a_holder_that_runs_out_of_time_in_the_grace_does_not_kill(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start_logging("log", "stays")
    time_left = TimeIs()
    steps = CallAt("stop:before:kill", lambda: setattr(time_left, "left_ms", SIGNAL_MS - 1))
    controller = LocalController(scene.machine, grace_ms=50, pidfds=pidfds, group_signals=by_group, steps=steps)
    with pytest.raises(OutOfTime):
        controller.stop(scene.target(scene.handle(leader)), time_left)
    assert pidfds.sent == [(signal.SIGTERM, by_group)]
    assert leader.poll() is None


def test_what_a_process_does_after_term_is_looked_at_once_more_before_kill(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start_logging("log", "stays")
    handle = scene.handle(leader)

    def end() -> None:
        leader.kill()
        leader.wait()

    steps = CallAt("stop:before:kill", end)
    controller = LocalController(scene.machine, grace_ms=50, pidfds=pidfds, group_signals=by_group, steps=steps)
    assert controller.stop(scene.target(handle), TimeIs()) == TERMINATED
    assert pidfds.sent == [(signal.SIGTERM, by_group), (signal.SIGKILL, by_group)]


def test_no_descriptor_is_left_open(scene: StopScene, *, by_group: bool) -> None:
    leader = scene.start_tree(
        f"{scene.shell_logging('child', 'stays')} &",
        f"exec {scene.shell_logging('leader', 'ends')}",
        logs=("child", "leader"),
    )
    target = scene.target(scene.handle(leader))
    controller = LocalController(scene.machine, grace_ms=50, group_signals=by_group)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names are all that is needed
    controller.stop(target, TimeIs())
    controller.stop(target, TimeIs())
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 - the same


def test_the_worst_case_covers_both_waits_and_the_scope_is_its_own() -> None:
    machine = MachineIdentity.of_this_process()
    controller = LocalController(machine, grace_ms=2_000)
    assert controller.worst_case_ms == 2_000 + AFTER_KILL_MS + 2 * SIGNAL_MS == 2_500
    assert controller.scopes == {machine.scope}
    assert controller.executor_type == "local"

"""R8.5, R8.6: groups that never hold still, while they are stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from process_bench import Bench
from process_watch import wait_until
from runfacts.domain.cancellation.controllers import StopResult
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payloads import Escalation
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.pidfds import Pidfds, Sent
from runfacts.infrastructure.processes.procfs import ProcFs
from stop_scene import StopScene, TimeIs

GOES_ON = """
import os, select, signal, sys, time
test = select.poll()
test.register(os.pidfd_open(int(sys.argv[2])), select.POLLIN)
def goes_on():
    return os.path.exists(sys.argv[3]) and not test.poll(0)
"""
"""Nobody can be sure to find a group that hands itself over; so it ends by itself, with its file and with the tests."""

FORKS_FOR_EVER = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
open(sys.argv[1], "w").write("ready\\n")
while goes_on():
    if os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)
    time.sleep(0.005)
"""

HANDS_OVER = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write("ready\\n")
while goes_on():
    if os.fork():
        os._exit(0)
    time.sleep(0.002)
"""


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Path]:
    """The file with which every storm of the test ends. To be asked for last, so that it ends first."""
    going_on = tmp_path / "goes on"
    going_on.touch()
    yield going_on
    going_on.unlink()


def program(text: str, storm: Path) -> tuple[str, ...]:
    """Give the command of a storm."""
    arguments = (str(storm.with_name("storm")), str(os.getpid()), str(storm))
    return ("python3", "-I", "-S", "-c", GOES_ON + text, *arguments)


def test_a_storm_that_nobody_finds_ends_with_its_file(scene: StopScene, storm: Path) -> None:
    leader = scene.start(*program(HANDS_OVER, storm))
    scene.wait_until_ready("storm")
    group = os.pidfd_open(leader.pid)
    try:
        leader.wait()
        assert Pidfds().ask(group, group=True) is Sent.ACCEPTED
        storm.rename(storm.with_name("gone on"))
        wait_until(lambda: Pidfds().ask(group, group=True) is Sent.GONE, "the storm is over")
    finally:
        storm.touch()
        os.close(group)


@pytest.mark.long
@pytest.mark.parametrize("turn", range(3))
def test_a_leader_that_forks_all_the_time_ends_with_all_of_its_children(
    scene: StopScene, storm: Path, turn: int, *, by_group: bool
) -> None:
    del turn
    leader = scene.start(*program(FORKS_FOR_EVER, storm))
    handle = scene.handle(leader)
    scene.wait_until_ready("storm")
    controller = LocalController(scene.machine, grace_ms=100, group_signals=by_group)
    assert controller.stop(scene.target(handle), TimeIs()) == StopResult(
        DispatchResult.TERMINATION_REQUESTED, Escalation.KILL
    )
    wait_until(lambda: ProcFs().living_members(leader.pid) == (), "the whole group is gone")


@pytest.mark.long
@pytest.mark.parametrize("turn", range(3))
def test_a_group_that_hands_itself_over_from_child_to_child_is_never_said_to_have_exited(
    scene: StopScene, storm: Path, turn: int, *, by_group: bool
) -> None:
    """A scan of /proc can miss a process that is born behind it; what is said must be true all the same."""
    del turn
    leader = scene.start(*program(HANDS_OVER, storm))
    handle = scene.handle(leader)
    scene.wait_until_ready("storm")
    controller = LocalController(scene.machine, grace_ms=50, group_signals=by_group)
    leaders = os.pidfd_open(leader.pid)
    try:
        for _ in range(3):
            if controller.stop(scene.target(handle), TimeIs()).result is DispatchResult.ALREADY_EXITED:
                # Then only zombies are left, and they go.
                leader.wait()
                wait_until(lambda: Pidfds().ask(leaders, group=True) is Sent.GONE, "all zombies are reaped")
                break
    finally:
        Pidfds().send(leaders, signal.SIGKILL, group=True)
        os.close(leaders)


@pytest.mark.long
@pytest.mark.parametrize("turn", range(5))
def test_a_keeper_notices_a_group_that_hands_itself_over(bench: Bench, storm: Path, turn: int) -> None:
    """R6.5: what its receipt says of the group decides whether a cancelled run may end."""
    del turn
    spec = bench.spec(*program(HANDS_OVER, storm))
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        try:
            assert process.wait(60)
            assert bench.receipt(spec.files, spec).group_left
        finally:
            Pidfds().send(process.leader_pidfd, signal.SIGKILL, group=True)

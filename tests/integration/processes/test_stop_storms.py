"""R8.5, R8.6: groups that never hold still, while they are stopped."""

from __future__ import annotations

import os
import signal

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

FORKS_FOR_EVER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
open(sys.argv[1], "w").write("ready\\n")
while True:
    if os.fork() == 0:
        time.sleep(0.2)
        os._exit(0)
    time.sleep(0.005)
"""

HANDS_OVER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write("ready\\n")
while True:
    if os.fork():
        os._exit(0)
    time.sleep(0.002)
"""


def storm(scene: StopScene, program: str) -> int:
    """Start one and give its group."""
    leader = scene.start("python3", "-I", "-S", "-c", program, str(scene.root / "storm"))
    scene.wait_until_ready("storm")
    return leader.pid


@pytest.mark.long
@pytest.mark.parametrize("turn", range(3))
def test_a_leader_that_forks_all_the_time_ends_with_all_of_its_children(
    scene: StopScene, turn: int, *, by_group: bool
) -> None:
    del turn
    group = storm(scene, FORKS_FOR_EVER)
    handle = scene.handle(scene.children[0])
    controller = LocalController(scene.machine, grace_ms=100, group_signals=by_group)
    assert controller.stop(scene.target(handle), TimeIs()) == StopResult(
        DispatchResult.TERMINATION_REQUESTED, Escalation.KILL
    )
    wait_until(lambda: ProcFs().living_members(group) == (), "the whole group is gone")


@pytest.mark.long
@pytest.mark.parametrize("turn", range(3))
def test_a_group_that_hands_itself_over_from_child_to_child_is_never_said_to_have_exited(
    scene: StopScene, turn: int, *, by_group: bool
) -> None:
    """A scan of /proc can miss a process that is born behind it; what is said must be true all the same."""
    del turn
    leader = scene.start("python3", "-I", "-S", "-c", HANDS_OVER, str(scene.root / "storm"))
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
def test_a_keeper_notices_a_group_that_hands_itself_over(bench: Bench, turn: int) -> None:
    """R6.5: what its receipt says of the group decides whether a cancelled run may end."""
    del turn
    spec = bench.spec("python3", "-I", "-S", "-c", HANDS_OVER, str(bench.root / "storm"))
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        try:
            assert process.wait(60)
            assert bench.receipt(spec.files, spec).group_left
        finally:
            Pidfds().send(process.leader_pidfd, signal.SIGKILL, group=True)

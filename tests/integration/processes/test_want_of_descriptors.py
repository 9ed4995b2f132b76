"""R8.4 to R8.6, R6.5: a worker that has too few descriptors left blocks nothing, proves nothing and loses none."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from process_watch import kill, wait_until
from runfacts.domain.cancellation.controllers import StopResult
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payloads import Escalation
from runfacts.infrastructure.processes import members
from runfacts.infrastructure.processes.group import group_is_gone
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.held import HeldPidfds
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.procfs import ProcFs
from stop_scene import RecordingPidfds, StopScene, TimeIs

KILLED = StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.KILL)
MEMBERS = 5
ENOUGH = 3 * MEMBERS + 10

MANY = """
import os, signal, sys, time
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
        os._exit(0)
open(sys.argv[1], "w").write("ready\\n")
time.sleep(600)
"""


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Leave this process so many descriptors within the block; those that it takes must be back at its end."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    taken: list[int] = []
    try:
        # Whatever is free below the limit is taken, so that the limit is near.
        resource.setrlimit(resource.RLIMIT_NOFILE, (64 + highest, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(count):
            os.close(taken.pop())
        yield
        taken += [os.dup(taken[0]) for _ in range(count)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)


def group_of(scene: StopScene, count: int, held: HeldPidfds | None = None, *, leader: bool = False) -> ProcessHandle:
    """Give the handle of a group of so many that ignore TERM, with or without its leader."""
    process = scene.start("python3", "-I", "-S", "-c", MANY, str(scene.root / "many"), str(count))
    handle = scene.handle(process)
    scene.wait_until_ready("many")
    wait_until(lambda: len(ProcFs().living_members(handle.group)) == count + 1, "all are there")
    if held is not None:
        pidfd = os.pidfd_open(process.pid)
        held.hold(scene.attempt_id, pidfd, handle)
        os.close(pidfd)
    if not leader:
        kill(process.pid)
        process.wait()
    return handle


@pytest.mark.parametrize("leader", [True, False], ids=["its leader lives", "its leader is gone"])
def test_whoever_cannot_look_fails_and_neither_blocks_nor_says_that_all_is_over(
    scene: StopScene, *, leader: bool, by_group: bool
) -> None:
    handle = group_of(scene, MEMBERS, leader=leader)
    controller = LocalController(scene.machine, grace_ms=10, group_signals=by_group)
    failed = 0
    for count in range(ENOUGH):
        with descriptors_left(count):
            try:
                result = controller.stop(scene.target(handle), TimeIs())
            except OSError:
                failed += 1
                continue
        assert result == KILLED
        break
    assert failed
    wait_until(lambda: ProcFs().living_members(handle.group) == (), "the whole group is gone")


def test_a_group_is_not_said_to_be_gone_by_whoever_cannot_look(scene: StopScene) -> None:
    handle = group_of(scene, 1)
    for count in range(ENOUGH):
        with descriptors_left(count):
            gone = group_is_gone(handle.encode(), scene.machine, ProcFs())
        assert not gone


@pytest.mark.parametrize("keeps", [True, False], ids=["held", "not held"])
def test_a_group_of_more_members_than_can_be_held_is_ended(
    scene: StopScene, monkeypatch: pytest.MonkeyPatch, *, keeps: bool, by_group: bool
) -> None:
    monkeypatch.setattr(members, "HELD_MAX", 4)
    held = HeldPidfds()
    handle = group_of(scene, 20, held if keeps else None)
    controller = LocalController(scene.machine, grace_ms=10, group_signals=by_group, held=held)
    target = scene.target(handle)
    with descriptors_left(16):
        results = [controller.stop(target, TimeIs())]
        while ProcFs().living_members(handle.group):
            results.append(controller.stop(target, TimeIs()))
    # Where each is signalled by itself, one try may not come to all of them; it never says that it did.
    assert set(results[:-1]) <= {StopResult(DispatchResult.DISPATCH_ERROR, Escalation.KILL)}
    assert results[-1] == KILLED
    held.close()


def test_one_unproven_member_among_those_that_cannot_be_held_saves_all(
    scene: StopScene, pidfds: RecordingPidfds, monkeypatch: pytest.MonkeyPatch, *, by_group: bool
) -> None:
    monkeypatch.setattr(members, "HELD_MAX", 1)
    leader = scene.start_tree(
        f"{scene.shell_logging('ours', 'ends')} &",
        f"env -i {scene.shell_logging('unknown', 'ends')} &",
        "exec sleep 600",
        logs=("ours", "unknown"),
    )
    handle = scene.handle(leader)
    kill(leader.pid)
    leader.wait()
    try:
        controller = LocalController(scene.machine, pidfds=pidfds, group_signals=by_group)
        assert controller.stop(scene.target(handle), TimeIs()).result is DispatchResult.GROUP_SURVIVORS
        assert pidfds.sent == []
    finally:
        for member in ProcFs().living_members(handle.group):
            kill(member.pid, signal.SIGKILL)

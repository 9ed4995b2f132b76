"""R8.4; C01, C05: a missing proof means zero signals. With a recording double and a process that logs what it gets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from process_watch import DEADLINE_S, kill
from runfacts.domain.cancellation.controllers import StopResult, StopTarget
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.held import HeldPidfds
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.testing.steps import CallAt
from stop_scene import RecordingPidfds, StopScene, TimeIs

NAMESPACE_PROGRAM = str(Path(__file__).with_name("namespace_program.py"))
PERMISSION_PROGRAM = str(Path(__file__).with_name("permission_program.py"))
ROOT = Path(__file__).parents[3]

Forge = Callable[[StopScene, ProcessHandle], StopTarget]


def _changed(**changes: object) -> Forge:
    """Give a target whose handle differs from the truth."""
    return lambda scene, handle: scene.target(replace(handle, **changes), pid=handle.pid)  # type: ignore[arg-type] # by name


FORGED: dict[str, tuple[DispatchResult, Forge]] = {
    "no handle": (
        DispatchResult.HANDLE_MISSING,
        lambda scene, handle: replace(scene.target(handle), handle=None),
    ),
    "no JSON": (DispatchResult.INVALID, lambda scene, handle: scene.target("{", pid=handle.pid)),
    "a field too many": (
        DispatchResult.INVALID,
        lambda scene, handle: scene.target(handle.encode().replace("{", '{"x":1,', 1), pid=handle.pid),
    ),
    "another format": (
        DispatchResult.UNSUPPORTED,
        lambda scene, handle: scene.target(handle.encode().replace('"v":1', '"v":2'), pid=handle.pid),
    ),
    "another platform": (
        DispatchResult.UNSUPPORTED,
        lambda scene, handle: scene.target(handle.encode().replace('"linux"', '"plan9"'), pid=handle.pid),
    ),
    "another number": (
        DispatchResult.PID_MISMATCH,
        lambda scene, handle: scene.target(handle, pid=handle.pid + 1),
    ),
    "no number": (DispatchResult.PID_MISMATCH, lambda scene, handle: replace(scene.target(handle), pid=None)),
    "another machine": (DispatchResult.SCOPE_MISMATCH, _changed(machine_id="another")),
    "another PID namespace": (DispatchResult.SCOPE_MISMATCH, _changed(pid_namespace=4026532999)),
    "another time namespace": (DispatchResult.SCOPE_MISMATCH, _changed(time_namespace=4026532999)),
    "a scope that is not the handle's": (
        DispatchResult.SCOPE_MISMATCH,
        lambda scene, handle: scene.target(handle, scope="elsewhere/1/2"),
    ),
    "another boot": (
        DispatchResult.IDENTITY_MISMATCH,
        _changed(boot_id="00000000-0000-4000-8000-000000000000"),
    ),
    "other start ticks": (
        DispatchResult.IDENTITY_MISMATCH,
        lambda scene, handle: scene.target(replace(handle, start_ticks=handle.start_ticks - 1)),
    ),
    "another inode and the same start ticks": (
        DispatchResult.IDENTITY_MISMATCH,
        lambda scene, handle: scene.target(replace(handle, pidfd_inode=(handle.pidfd_inode or 0) + 1)),
    ),
    "another group": (
        DispatchResult.IDENTITY_MISMATCH,
        lambda scene, handle: scene.target(replace(handle, group=handle.group + 1)),
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_missing_proof_means_zero_signals(
    scene: StopScene, pidfds: RecordingPidfds, what: str, *, by_group: bool
) -> None:
    expected, forge = FORGED[what]
    leader = scene.start_logging("log")
    target = forge(scene, scene.handle(leader))
    controller = LocalController(scene.machine, pidfds=pidfds, group_signals=by_group)
    time_left = TimeIs()
    assert controller.stop(target, time_left) == StopResult(expected)
    assert (pidfds.sent, time_left.wanted) == ([], [])
    assert leader.poll() is None
    assert scene.log("log") == ["ready"]


@pytest.mark.parametrize("what", FORGED)
def test_a_held_descriptor_is_only_used_for_the_record_that_it_was_held_for(
    scene: StopScene, pidfds: RecordingPidfds, what: str
) -> None:
    expected, forge = FORGED[what]
    leader = scene.start_logging("log")
    handle = scene.handle(leader)
    held = HeldPidfds()
    held.hold(scene.attempt_id, pidfd := os.pidfd_open(leader.pid), handle)
    os.close(pidfd)
    try:
        controller = LocalController(scene.machine, pidfds=pidfds, held=held)
        assert controller.stop(forge(scene, handle), TimeIs()) == StopResult(expected)
    finally:
        held.close()
    assert pidfds.sent == []
    assert scene.log("log") == ["ready"]


def test_a_process_that_leads_no_group_is_not_the_recorded_one(scene: StopScene, pidfds: RecordingPidfds) -> None:
    leader = scene.start_tree(
        f"{scene.shell_logging('child', 'ends')} &",
        f"exec {scene.shell_logging('leader', 'ends')}",
        logs=("child", "leader"),
    )
    [child] = [item for item in ProcFs().living_members(leader.pid) if item.pid != leader.pid]
    handle = ProcessHandle.of(child.pid, scene.machine)
    controller = LocalController(scene.machine, pidfds=pidfds)
    assert controller.stop(scene.target(handle), TimeIs()).result is DispatchResult.IDENTITY_MISMATCH
    assert pidfds.sent == []
    assert (scene.log("leader"), scene.log("child")) == (["ready"], ["ready"])


def test_what_is_not_procfs_proves_nothing(scene: StopScene, pidfds: RecordingPidfds) -> None:
    leader = scene.start_logging("log")
    target = scene.target(scene.handle(leader))
    controller = LocalController(scene.machine, pidfds=pidfds, procfs=ProcFs(scene.root))
    assert controller.stop(target, TimeIs()).result is DispatchResult.UNSUPPORTED
    assert pidfds.sent == []
    assert scene.log("log") == ["ready"]


def in_a_pid_namespace(root: Path, what: str, *, own_proc: bool = True) -> dict[str, object]:
    """Run the program in a PID namespace of its own, and give what it says."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    unshare = ("unshare", *user, "--pid", "--fork", "--kill-child", *(("--mount-proc",) if own_proc else ()))
    found = subprocess.run(
        [*unshare, sys.executable, NAMESPACE_PROGRAM, what, str(root)],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests/doubles'}"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=DEADLINE_S,
    )
    said: dict[str, object] = json.loads(found.stdout)
    return said


@pytest.mark.parametrize("how", ["group", "members"])
def test_the_next_owner_of_a_number_gets_nothing(tmp_path: Path, how: str) -> None:
    """C01."""
    assert in_a_pid_namespace(tmp_path, f"reused-before/{how}") == {
        "same_number": True,
        "result": "identity_mismatch",
        "escalation": "none",
        "sent": [],
        "impostor_log": ["ready"],
        "impostor_alive": True,
        "evidence": ["not_running", None],
    }


@pytest.mark.parametrize("how", ["group", "members"])
def test_a_number_that_changes_hands_between_proof_and_signal_is_missed(tmp_path: Path, how: str) -> None:
    """C05."""
    assert in_a_pid_namespace(tmp_path, f"reused-between/{how}") == {
        "same_number": True,
        "result": "already_exited",
        "escalation": "none",
        # One was sent, through a descriptor of the process that had ended: nobody got it.
        "sent": ["SIGTERM"],
        "impostor_log": ["ready"],
        "impostor_alive": True,
        "evidence": ["not_running", None],
    }


@pytest.mark.parametrize("how", ["group", "members"])
def test_a_number_used_twice_within_one_tick_is_told_apart_by_its_inode(tmp_path: Path, how: str) -> None:
    assert in_a_pid_namespace(tmp_path, f"same-tick/{how}") == {
        "same_number": True,
        "result": "identity_mismatch",
        "escalation": "none",
        "sent": [],
        "impostor_log": ["ready"],
        "impostor_alive": True,
        "evidence": ["not_running", None],
    }


def test_a_proc_of_another_namespace_proves_nothing(tmp_path: Path) -> None:
    said = in_a_pid_namespace(tmp_path, "foreign-proc/group", own_proc=False)
    assert said["result"] == "unsupported"
    assert said["sent"] == []
    assert said["impostor_log"] == ["ready"]
    assert said["evidence"] == ["unknown", "identity_unverifiable"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start what another user may not signal")
def test_a_member_that_may_not_be_signalled_is_reported(tmp_path: Path) -> None:
    """As another user, who may signal the leader and not the member that runs as root; and then nobody at all."""
    found = subprocess.run(
        [sys.executable, PERMISSION_PROGRAM, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests/doubles'}"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=DEADLINE_S,
    )
    said = json.loads(found.stdout)
    for how in ("group", "members"):
        # What may be signalled is; the rest is an operator's.
        assert said[f"mixed/{how}"] == {
            "result": "not_permitted",
            "escalation": "kill",
            "leader_ended_by": signal.SIGKILL,
            "leader_log": ["ready", "SIGTERM"],
            "member_log": ["ready"],
        }
        assert said[f"foreign/{how}"] == {
            "result": "not_permitted",
            "escalation": "none",
            "leader_ended_by": None,
            "leader_log": ["ready"],
            "member_log": ["ready"],
        }


def test_a_process_that_ends_before_its_signal_has_exited(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start_logging("log")
    handle = scene.handle(leader)

    def end() -> None:
        kill(leader.pid)
        leader.wait()

    controller = LocalController(
        scene.machine, pidfds=pidfds, group_signals=by_group, steps=CallAt("stop:after:proof", end)
    )
    assert controller.stop(scene.target(handle), TimeIs()) == StopResult(DispatchResult.ALREADY_EXITED)

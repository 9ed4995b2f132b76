"""
Stopping as another user: started by root, it plays each scene's processes as root and stops them as nobody.

Usage: ``python permission_program.py ROOT``; the output is one JSON object.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import uuid
from pathlib import Path

from process_watch import DEADLINE_S, kill, wait_until
from runfacts.domain.cancellation.controllers import StopResult, StopTarget
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.procfs import ProcFs
from stop_scene import TimeIs

NOBODY = 65_534


def log_signals(path: Path, user: int) -> None:
    """Write down every signal, as this user, for ever or for as long as a test may last."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    signal.signal(signal.SIGTERM, lambda number, _: os.write(log, f"{signal.Signals(number).name}\n".encode()))
    os.setresuid(user, user, user)
    os.write(log, b"ready\n")
    signal.alarm(int(DEADLINE_S))
    while True:
        signal.pause()


def forked(work: object, *arguments: object) -> int:
    """Run a function in a process of its own, which never returns here."""
    child = os.fork()
    if child == 0:
        try:
            work(*arguments)  # type: ignore[operator] # a function
        finally:
            os._exit(0)
    return child


def lead(root: Path, leaders_user: int) -> None:
    """Be the leader of a group with one more member, which is root's."""
    os.setsid()
    forked(log_signals, root / "member", 0)
    log_signals(root / "leader", leaders_user)


def stop_as_nobody(target: StopTarget, machine: MachineIdentity, *, by_group: bool) -> StopResult:
    """Stop as a user who may do little."""
    read, write = os.pipe()

    def stop() -> None:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        controller = LocalController(machine, grace_ms=200, group_signals=by_group)
        os.write(write, pickle.dumps(controller.stop(target, TimeIs())))

    child = forked(stop)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        result = pickle.loads(said.read())  # noqa: S301 - our own child wrote it
    os.waitpid(child, 0)
    assert isinstance(result, StopResult)
    return result


def play(root: Path, machine: MachineIdentity, leaders_user: int, *, by_group: bool) -> dict[str, object]:
    """Play one scene."""
    root.mkdir(parents=True)
    leader = forked(lead, root, leaders_user)
    logs = {name: root / name for name in ("leader", "member")}
    wait_until(lambda: all(path.exists() and path.read_text() for path in logs.values()), "both log")
    handle = ProcessHandle.of(leader, machine)
    attempt_id = str(uuid.uuid4())
    target = StopTarget("run", attempt_id, "local", machine.scope, handle.encode(), handle.pid)
    result = stop_as_nobody(target, machine, by_group=by_group)
    ended = os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    said: dict[str, object] = {
        "result": result.result,
        "escalation": result.escalation,
        "leader_ended_by": None if ended is None else ended.si_status,
        "leader_log": logs["leader"].read_text().split(),
        "member_log": logs["member"].read_text().split(),
    }
    for member in ProcFs().living_members(handle.group):
        kill(member.pid)
    os.waitpid(leader, 0)
    return said


def main() -> None:
    """Play all scenes."""
    machine = MachineIdentity.of_this_process()
    root = Path(sys.argv[1])
    said: dict[str, object] = {
        f"{name}/{how}": play(root / name / how, machine, user, by_group=how == "group")
        for name, user in (("mixed", NOBODY), ("foreign", 0))
        for how in ("group", "members")
    }
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()

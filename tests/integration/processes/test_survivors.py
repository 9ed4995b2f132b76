"""R8.5, R8.6; C09: a dead leader with living members, and the descriptor that the host holds since before the gate."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from journal_ledger import JournalLedger
from process_bench import Bench
from process_watch import DEADLINE_S, kill, state_of, wait_until
from runfacts.domain.actors import Actor
from runfacts.domain.answers import Finished
from runfacts.domain.cancellation.controllers import StopResult
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.payloads import Escalation
from runfacts.domain.recovery.evidence import Evidence, Unknown
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.held import HeldPidfds
from runfacts.infrastructure.processes.host import LocalHost
from runfacts.infrastructure.processes.hosted import Command, Ended
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.testing.steps import CallAt
from stop_scene import RecordingPidfds, StopScene, TimeIs

RUN = "019316d5-0000-7000-8000-000000000001"
UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
SURVIVORS = StopResult(DispatchResult.GROUP_SURVIVORS)
TERMINATED = StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.TERM)


class BornBehindTheScan(ProcFs):
    """A procfs whose listing misses one process, as it misses one that is born while it is read."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self.pid = pid
        self.asked = 0
        self.listed = 0

    def pids(self) -> Iterator[int]:
        """See ProcFs. Every third listing is complete."""
        self.listed += 1
        return (pid for pid in super().pids() if pid != self.pid or self.listed % 3 == 0)

    def last_number(self) -> int | None:
        """See ProcFs. The process gets its number after the first time that is asked for."""
        self.asked += 1
        return self.pid - 1 if self.asked == 1 else self.pid


class NeverStill(BornBehindTheScan):
    """A procfs whose listing always misses it, and whose namespace begins its numbers anew between any two looks."""

    def pids(self) -> Iterator[int]:
        """See ProcFs."""
        return (pid for pid in ProcFs().pids() if pid != self.pid)

    def last_number(self) -> int | None:
        """See ProcFs."""
        self.asked += 1
        return 1_000_000 - self.asked


def look(scene: StopScene, handle: ProcessHandle, procfs: ProcFs | None = None) -> Evidence:
    """Give what recovery's probe would say."""
    provider = LocalEvidence(scene.machine, procfs=procfs)
    return provider.inspect(scene.asked(handle), timeout_ms=5_000, cancelled=threading.Event())


def is_let_go_of(held: HeldPidfds, scene: StopScene, handle: ProcessHandle) -> bool:
    """Let go of what has ended, and tell whether that is among it."""
    held.release_ended()
    with held.borrow(scene.attempt_id, handle) as pidfd:
        return pidfd is None


def leave_a_member(
    scene: StopScene, how: str = "ends", *, cookie: bool, reaped: bool = True, held: HeldPidfds | None = None
) -> ProcessHandle:
    """Give the handle of a leader that has ended, in whose group a logging process lives."""
    prefix = "" if cookie else "env -u RUNFACTS_ATTEMPT_ID "
    leader = scene.start_tree(f"{prefix}{scene.shell_logging('member', how)} &", "exec sleep 600", logs=("member",))
    handle = scene.handle(leader)
    if held is not None:
        pidfd = os.pidfd_open(leader.pid)
        held.hold(scene.attempt_id, pidfd, handle)
        os.close(pidfd)
    kill(leader.pid)
    if reaped:
        leader.wait()
    else:
        wait_until(lambda: state_of(leader.pid) == "Z", "the leader is a zombie")
    return handle


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_members_without_the_cookie_get_nothing(
    scene: StopScene, pidfds: RecordingPidfds, *, reaped: bool, by_group: bool
) -> None:
    """C09."""
    handle = leave_a_member(scene, cookie=False, reaped=reaped)
    controller = LocalController(scene.machine, pidfds=pidfds, group_signals=by_group)
    assert controller.stop(scene.target(handle), TimeIs()) == SURVIVORS
    assert pidfds.sent == []
    assert scene.log("member") == ["ready"]
    assert len(ProcFs().living_members(handle.group)) == 1
    assert look(scene, handle) == UNVERIFIABLE


@pytest.mark.parametrize("reaped", [True, False], ids=["reaped", "zombie"])
def test_members_that_are_all_proven_ours_are_ended(
    scene: StopScene, pidfds: RecordingPidfds, *, reaped: bool, by_group: bool
) -> None:
    handle = leave_a_member(scene, cookie=True, reaped=reaped)
    assert look(scene, handle) == Evidence.running()
    controller = LocalController(scene.machine, grace_ms=60_000, poll_ms=5, pidfds=pidfds, group_signals=by_group)
    assert controller.stop(scene.target(handle), TimeIs()) == TERMINATED
    # A zombie's descriptor still reaches its group.
    assert pidfds.sent == [(signal.SIGTERM, by_group and not reaped)]
    assert scene.log("member") == ["ready", "SIGTERM"]
    assert look(scene, handle) == Evidence.not_running()


def test_proven_members_that_ignore_term_get_kill(scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool) -> None:
    handle = leave_a_member(scene, "stays", cookie=True)
    controller = LocalController(scene.machine, grace_ms=100, pidfds=pidfds, group_signals=by_group)
    assert controller.stop(scene.target(handle), TimeIs()) == StopResult(
        DispatchResult.TERMINATION_REQUESTED, Escalation.KILL
    )
    assert pidfds.sent == [(signal.SIGTERM, False), (signal.SIGKILL, False)]
    assert ProcFs().living_members(handle.group) == ()


def test_a_member_that_is_born_behind_the_scan_is_found_by_its_number(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    handle = leave_a_member(scene, cookie=True)
    [member] = ProcFs().living_members(handle.group)
    assert look(scene, handle, BornBehindTheScan(member.pid)) == Evidence.running()
    procfs = BornBehindTheScan(member.pid)
    controller = LocalController(
        scene.machine, grace_ms=60_000, poll_ms=5, pidfds=pidfds, group_signals=by_group, procfs=procfs
    )
    assert controller.stop(scene.target(handle), TimeIs()) == TERMINATED
    assert scene.log("member") == ["ready", "SIGTERM"]


def test_nobody_is_said_to_live_only_when_that_is_proven(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    handle = leave_a_member(scene, cookie=True)
    [member] = ProcFs().living_members(handle.group)
    assert look(scene, handle, NeverStill(member.pid)) == UNVERIFIABLE
    controller = LocalController(scene.machine, pidfds=pidfds, group_signals=by_group, procfs=NeverStill(member.pid))
    assert controller.stop(scene.target(handle), TimeIs()) == SURVIVORS
    assert pidfds.sent == []


def test_one_member_that_cannot_be_proven_saves_all(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
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
        assert controller.stop(scene.target(handle), TimeIs()) == SURVIVORS
        assert pidfds.sent == []
        assert (scene.log("ours"), scene.log("unknown")) == (["ready"], ["ready"])
        # One that is proven ours is enough to say that something of it runs.
        assert look(scene, handle) == Evidence.running()
    finally:
        for member in ProcFs().living_members(handle.group):
            kill(member.pid)


def test_another_attempts_cookie_proves_nothing(scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool) -> None:
    handle = leave_a_member(scene, cookie=True)
    scene.attempt_id = scene.attempt_id[:-1] + ("0" if scene.attempt_id[-1] != "0" else "1")
    controller = LocalController(scene.machine, pidfds=pidfds, group_signals=by_group)
    assert controller.stop(scene.target(handle), TimeIs()) == SURVIVORS
    assert pidfds.sent == []


def test_a_member_without_the_cookie_is_not_killed_once_its_leader_has_ended_on_term(
    scene: StopScene, pidfds: RecordingPidfds, *, by_group: bool
) -> None:
    leader = scene.start_tree(
        f"env -u RUNFACTS_ATTEMPT_ID {scene.shell_logging('member', 'stays')} &",
        f"exec {scene.shell_logging('leader', 'ends')}",
        logs=("member", "leader"),
    )
    controller = LocalController(scene.machine, grace_ms=100, pidfds=pidfds, group_signals=by_group)
    result = controller.stop(scene.target(scene.handle(leader)), TimeIs())
    assert result == StopResult(DispatchResult.GROUP_SURVIVORS, Escalation.TERM)
    assert {number for number, _ in pidfds.sent} == {signal.SIGTERM}
    assert scene.log("member") == ["ready", "SIGTERM"]
    assert len(ProcFs().living_members(leader.pid)) == 1


@pytest.mark.parametrize("how", ["ends", "stays"])
def test_a_held_descriptor_reaches_a_group_whose_leader_was_reaped(
    scene: StopScene, pidfds: RecordingPidfds, how: str
) -> None:
    """C09: by the descriptor that is held since spawn."""
    held = HeldPidfds()
    handle = leave_a_member(scene, how, cookie=False, held=held)
    controller = LocalController(scene.machine, grace_ms=200, poll_ms=5, held=held, pidfds=pidfds, group_signals=True)
    escalation = Escalation.TERM if how == "ends" else Escalation.KILL
    assert controller.stop(scene.target(handle), TimeIs()) == StopResult(
        DispatchResult.TERMINATION_REQUESTED, escalation
    )
    assert pidfds.sent[0] == (signal.SIGTERM, True)
    assert scene.log("member") == ["ready", "SIGTERM"]
    assert ProcFs().living_members(handle.group) == ()
    assert controller.stop(scene.target(handle), TimeIs()) == StopResult(DispatchResult.ALREADY_EXITED)
    # A zombie is a member until somebody reaps it.
    wait_until(lambda: is_let_go_of(held, scene, handle), "the group is gone and its descriptor closed")


def test_a_held_descriptor_is_kept_as_long_as_its_group_lives(scene: StopScene) -> None:
    held = HeldPidfds()
    handle = leave_a_member(scene, cookie=False, held=held)
    assert not is_let_go_of(held, scene, handle)
    held.release(scene.attempt_id)
    held.release(scene.attempt_id)
    assert is_let_go_of(held, scene, handle)


def test_a_launched_command_is_stopped_whole_and_its_keeper_tells_the_end(
    bench: Bench, pidfds: RecordingPidfds
) -> None:
    """R10.2: the keeper is outside of the group and outlives its KILL."""
    spec = bench.spec("sh", "-c", "trap '' TERM; sleep 600 & touch ready; while :; do sleep 600; done")
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        wait_until((bench.root / "ready").exists, "the trap is set")
        scene = StopScene(bench.root, bench.launcher.machine, attempt_id=spec.attempt_id)
        controller = LocalController(bench.launcher.machine, grace_ms=100, pidfds=pidfds)
        result = controller.stop(scene.target(process.handle), TimeIs())
        assert result == StopResult(DispatchResult.TERMINATION_REQUESTED, Escalation.KILL)
        assert process.wait(60)
    receipt = bench.receipt(spec.files, spec)
    assert (receipt.signal, receipt.exit_code) == (signal.SIGKILL, None)


def test_a_host_holds_its_command_until_the_group_is_gone(bench: Bench, pidfds: RecordingPidfds) -> None:
    """C09: the member has no cookie, and only the host's descriptor reaches it."""
    ledger = JournalLedger(bench.root / "journal")
    held = HeldPidfds()
    steps = CallAt("launch:after:gate", lambda: ledger.cancel(RUN))
    host = LocalHost(ledger, bench.launcher, bench.places, held=held, steps=steps, poll_ms=10)
    # It bears no mark: where the tests are killed, only this ends it.
    command = Command(("sh", "-c", f"env -i tail --pid={os.getpid()} -f /dev/null & exit 7"))
    with ThreadPoolExecutor(1) as pool:
        hosted = pool.submit(host.run, RUN, command, actor=Actor.executor("local"))
        wait_until(lambda: any("pid" in attempt for attempt in ledger.attempts().values()), "its process is recorded")
        [(attempt_id, attempt)] = ledger.attempts().items()
        wait_until(lambda: state_of(attempt["pid"]) is None, "the leader is reaped")
        scene = StopScene(bench.root, bench.launcher.machine, attempt_id)
        handle = ProcessHandle.decode(attempt["handle"])
        # Another process of this machine has no such descriptor, and must not touch what it cannot prove.
        assert LocalController(scene.machine, pidfds=pidfds).stop(scene.target(handle), TimeIs()) == SURVIVORS
        assert pidfds.sent == []
        controller = LocalController(scene.machine, held=held, pidfds=pidfds, poll_ms=5, grace_ms=60_000)
        assert controller.stop(scene.target(handle), TimeIs()) == TERMINATED
        outcome = hosted.result(DEADLINE_S)
    assert isinstance(outcome, Ended)
    assert isinstance(outcome.answer, Finished)
    assert ledger.attempts()[attempt_id]["status"] == "cancelled"
    with held.borrow(attempt_id, handle) as pidfd:
        assert pidfd is None

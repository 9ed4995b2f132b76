"""R11.3, R12.3; C03: what can be proven about a local process, and what cannot."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace

import pytest

from namespace_guests import guest_in
from process_watch import kill, state_of, wait_until
from runfacts.domain.cancellation.controllers import StopResult
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Unknown
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.machine import MachineIdentity, MachineIdSource
from runfacts.infrastructure.processes.procfs import INITIAL_PID_NAMESPACE, ProcFs
from stop_scene import RecordingPidfds, StopScene, TimeIs

UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
CONFLICTING = Evidence.unknown(Unknown.CONFLICTING_EVIDENCE)
OTHER_BOOT = "00000000-0000-4000-8000-000000000000"


class Hiding(ProcFs):
    """A procfs that shows no other user's process."""

    def hides_processes(self) -> bool:
        """See ProcFs."""
        return True


def look(provider: LocalEvidence, target: EvidenceTarget) -> Evidence:
    """Ask without being in a hurry."""
    return provider.inspect(target, timeout_ms=5_000, cancelled=threading.Event())


@pytest.fixture
def provider(scene: StopScene) -> LocalEvidence:
    """The provider of this machine."""
    return LocalEvidence(scene.machine)


def ended(scene: StopScene) -> ProcessHandle:
    """Give the handle of a process that has ended and was reaped."""
    leader = scene.start("sleep", "600")
    handle = scene.handle(leader)
    leader.kill()
    leader.wait()
    return handle


def test_a_process_that_lives_is_running(scene: StopScene, provider: LocalEvidence) -> None:
    handle = scene.handle(scene.start("sleep", "600"))
    assert look(provider, scene.asked(handle)) == Evidence.running()


def test_a_process_that_was_reaped_is_not_running(scene: StopScene, provider: LocalEvidence) -> None:
    assert look(provider, scene.asked(ended(scene))) == Evidence.not_running()


def test_a_zombie_is_not_running(scene: StopScene, provider: LocalEvidence) -> None:
    leader = scene.start("sleep", "600")
    handle = scene.handle(leader)
    kill(leader.pid)
    wait_until(lambda: state_of(leader.pid) == "Z", "it is a zombie")
    assert look(provider, scene.asked(handle)) == Evidence.not_running()


def test_other_start_ticks_or_another_inode_prove_that_it_is_gone(scene: StopScene, provider: LocalEvidence) -> None:
    handle = scene.handle(scene.start("sleep", "600"))
    earlier = replace(handle, start_ticks=handle.start_ticks - 1)
    other = replace(handle, pidfd_inode=(handle.pidfd_inode or 0) + 1)
    assert look(provider, scene.asked(earlier)) == Evidence.not_running()
    assert look(provider, scene.asked(other)) == Evidence.not_running()


def test_a_threads_number_proves_nothing(scene: StopScene, provider: LocalEvidence) -> None:
    handle = ended(scene)
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        assert thread.native_id is not None
        numbered = replace(handle, pid=thread.native_id, group=thread.native_id)
        assert look(provider, scene.asked(numbered)) == UNVERIFIABLE
    finally:
        is_over.set()
        thread.join()


def test_what_was_recorded_must_agree(scene: StopScene, provider: LocalEvidence) -> None:
    target = scene.asked(scene.handle(scene.start("sleep", "600")))
    assert target.pid is not None
    assert look(provider, replace(target, pid=target.pid + 1)) == CONFLICTING
    assert look(provider, replace(target, scope="elsewhere/1/2")) == CONFLICTING
    moved = scene.asked(replace(scene.handle(scene.children[0]), group=target.pid + 1))
    assert look(provider, moved) == CONFLICTING


def test_without_what_it_requires_nothing_is_verifiable(scene: StopScene, provider: LocalEvidence) -> None:
    target = scene.asked(ended(scene))
    assert provider.required == {"handle", "pid"}
    assert provider.executor_type == "local"
    assert look(provider, replace(target, handle=None)) == UNVERIFIABLE
    assert look(provider, replace(target, pid=None)) == UNVERIFIABLE
    assert look(provider, replace(target, handle="{}")) == UNVERIFIABLE


def test_nobody_waits_so_nothing_is_looked_at(scene: StopScene, provider: LocalEvidence) -> None:
    cancelled = threading.Event()
    cancelled.set()
    found = provider.inspect(scene.asked(ended(scene)), timeout_ms=5_000, cancelled=cancelled)
    assert found == Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)


def test_absence_proves_nothing_where_processes_are_hidden(scene: StopScene) -> None:
    assert look(LocalEvidence(scene.machine, procfs=Hiding()), scene.asked(ended(scene))) == UNVERIFIABLE


def test_what_is_not_procfs_proves_nothing(scene: StopScene) -> None:
    provider = LocalEvidence(scene.machine, procfs=ProcFs(scene.root))
    assert look(provider, scene.asked(ended(scene))) == UNVERIFIABLE


def test_another_machine_is_out_of_sight(scene: StopScene, provider: LocalEvidence) -> None:
    handle = ended(scene)
    assert look(provider, scene.asked(replace(handle, machine_id="another"))) == UNVERIFIABLE
    assert look(provider, scene.asked(replace(handle, machine_id="another", boot_id=OTHER_BOOT))) == UNVERIFIABLE
    assert look(provider, scene.asked(replace(handle, time_namespace=1))) == UNVERIFIABLE


@pytest.fixture
def began_at_ms() -> int:
    """When this machine started, to the second."""
    return (time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000


@pytest.fixture
def named(scene: StopScene) -> MachineIdentity:
    """The machine, under an id that it keeps over a reboot."""
    return replace(scene.machine, machine_id="rack-7", source=MachineIdSource.CONFIGURED)


@pytest.fixture
def before(scene: StopScene, named: MachineIdentity) -> ProcessHandle:
    """A handle of an earlier boot, made in other namespaces, whose number is in use now."""
    own = ProcessHandle.of(os.getpid(), scene.machine)
    return replace(own, machine_id=named.machine_id, boot_id=OTHER_BOOT, pid_namespace=4026532999)


def test_a_reboot_proves_absence(
    scene: StopScene, named: MachineIdentity, before: ProcessHandle, began_at_ms: int
) -> None:
    target = scene.asked(before, last_seen_at_ms=began_at_ms - 2_000)
    assert look(LocalEvidence(named), target) == Evidence.not_running()


def test_a_reboot_proves_nothing_when_the_process_was_heard_of_since(
    scene: StopScene, named: MachineIdentity, before: ProcessHandle, began_at_ms: int
) -> None:
    target = scene.asked(before, last_seen_at_ms=began_at_ms + 2_000)
    assert look(LocalEvidence(named), target) == UNVERIFIABLE


def test_a_reboot_counts_on_the_ledgers_clock(
    scene: StopScene, named: MachineIdentity, before: ProcessHandle, began_at_ms: int
) -> None:
    # The ledger's clock is an hour behind this machine's: this boot began an hour earlier for it.
    behind = LocalEvidence(named, now_ms=lambda: time.time_ns() // 1_000_000 - 3_600_000)
    assert look(behind, scene.asked(before, last_seen_at_ms=began_at_ms - 2_000)) == UNVERIFIABLE
    assert look(behind, scene.asked(before, last_seen_at_ms=began_at_ms - 3_602_000)) == Evidence.not_running()


def test_a_reboot_falls_back_to_the_end_of_the_lease(
    scene: StopScene, named: MachineIdentity, before: ProcessHandle, began_at_ms: int
) -> None:
    target = scene.asked(before)
    assert look(LocalEvidence(named), replace(target, lease_expires_at_ms=began_at_ms - 2_000)) == (
        Evidence.not_running()
    )
    assert look(LocalEvidence(named), replace(target, lease_expires_at_ms=began_at_ms + 2_000)) == UNVERIFIABLE


def test_a_reboot_proves_nothing_when_the_id_names_two_machines(
    scene: StopScene, named: MachineIdentity, before: ProcessHandle, began_at_ms: int
) -> None:
    provider = LocalEvidence(named, machine_is_ambiguous=lambda _: True)
    assert look(provider, scene.asked(before, last_seen_at_ms=began_at_ms - 2_000)) == UNVERIFIABLE


def test_a_reboot_proves_nothing_where_the_boot_id_stands_in(
    scene: StopScene, named: MachineIdentity, before: ProcessHandle, began_at_ms: int
) -> None:
    provider = LocalEvidence(replace(named, source=MachineIdSource.BOOT_ID))
    assert look(provider, scene.asked(before, last_seen_at_ms=began_at_ms - 2_000)) == UNVERIFIABLE


def test_a_process_in_another_namespace_is_neither_gone_nor_stopped(scene: StopScene, pidfds: RecordingPidfds) -> None:
    """C03, in both directions."""
    here = MachineIdentity.of_this_process("rack-7")
    ours = scene.start_logging("ours")
    with guest_in(scene.root) as guest:
        said = guest.said()
        handle = ProcessHandle.decode(said["handle"])
        scene.attempt_id = said["attempt_id"]
        assert (handle.machine_id, handle.boot_id) == (here.machine_id, here.boot_id)
        assert handle.scope != here.scope
        controller = LocalController(here, pidfds=pidfds)
        target = scene.target(handle, scope=handle.scope)
        assert controller.stop(target, TimeIs()) == StopResult(DispatchResult.SCOPE_MISMATCH)
        assert look(LocalEvidence(here), scene.asked(handle)) == UNVERIFIABLE
        # The other way round: our process, seen from there.
        answer = guest.asked(ProcessHandle.of(ours.pid, here).encode())
        assert answer == {"result": "scope_mismatch", "evidence": "unknown", "reason": "identity_unverifiable"}
        assert scene.log("guest") == ["ready"]
        assert scene.log("ours") == ["ready"]
        assert pidfds.sent == []
        guest.end()
        # Only from the initial namespace every process is seen, and with them that nobody is in that one any more.
        in_the_initial_one = here.pid_namespace == INITIAL_PID_NAMESPACE
        expected = Evidence.not_running() if in_the_initial_one else UNVERIFIABLE
        assert look(LocalEvidence(here), scene.asked(handle)) == expected
        # Where the boot id stands in for a machine id it names this kernel all the same; another machine's id does not.
        stand_in = scene.asked(replace(handle, machine_id=handle.boot_id))
        assert look(LocalEvidence(here), stand_in) == expected
        elsewhere = scene.asked(replace(handle, machine_id="another"))
        assert look(LocalEvidence(here), elsewhere) == UNVERIFIABLE

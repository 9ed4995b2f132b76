"""R12.3, R8.2; C03: time namespaces and containers that have ended, with real namespaces; what may be called gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from another_boot import OTHER_BOOT
from namespace_guests import ROOT, Guest, guest_in
from namespaces import USER
from process_watch import DEADLINE_S
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Unknown
from runfacts.infrastructure.evidence import EvidenceRegistry
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.procfs import INITIAL_PID_NAMESPACE, ProcFs
from runfacts.infrastructure.processes.proofs import proofs
from stop_scene import StopScene

GONE = Evidence.not_running()
UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
TIME_PROGRAM = str(Path(__file__).with_name("time_namespace_program.py"))
NOTHING_SEEN = ["unknown", "identity_unverifiable"]


def seen_from_a_time_namespace(*handles: ProcessHandle, offset_s: int) -> dict[str, Any]:
    """Run a worker in a time namespace with this offset of the boot clock, and give what it says."""
    found = subprocess.run(
        ["unshare", *USER, "--time", "--boottime", str(offset_s), "--fork", sys.executable, TIME_PROGRAM]
        + [handle.encode() for handle in handles],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        check=True,
        timeout=DEADLINE_S,
    )
    said: dict[str, Any] = json.loads(found.stdout)
    return said


def test_from_another_time_namespace_nothing_of_this_boot_is_proven(scene: StopScene) -> None:
    """Start ticks are counted from the boot as the namespace tells it: an equal number may be another's."""
    here = MachineIdentity.of_this_process("rack-7")
    living = ProcessHandle.of(scene.start("sleep", "600").pid, here)
    gone = scene.start("sleep", "600")
    ended = ProcessHandle.of(gone.pid, here)
    gone.kill()
    gone.wait()
    said = seen_from_a_time_namespace(living, ended, offset_s=1_000)
    assert said["pid_namespace"] == here.pid_namespace
    assert said["time_namespace"] != here.time_namespace
    assert said["seen"] == [NOTHING_SEEN, NOTHING_SEEN]


def test_a_shifted_boot_clock_proves_no_reboot(scene: StopScene) -> None:
    """Shifted, a boot seems to have begun at another time than it did."""
    here = MachineIdentity.of_this_process("rack-7")
    before = replace(ProcessHandle.of(scene.start("sleep", "600").pid, here), boot_id=OTHER_BOOT)
    shifted = seen_from_a_time_namespace(before, offset_s=-1)
    assert (shifted["shifted"], shifted["seen"]) == (True, [NOTHING_SEEN])
    assert shifted["after_a_reboot"].startswith("nothing is proven from here")
    # A time namespace without an offset tells the time as it is.
    plain = seen_from_a_time_namespace(before, offset_s=0)
    assert (plain["shifted"], plain["seen"]) == (False, [["not_running", None]])
    assert plain["after_a_reboot"] == "what ran before it is proven gone"


def in_a_container(scene: StopScene, guest: Guest) -> EvidenceTarget:
    """Give what would be recorded of the guest's process."""
    said = guest.said()
    scene.attempt_id = said["attempt_id"]
    return scene.asked(ProcessHandle.decode(said["handle"]))


def test_a_restarted_container_proves_the_end_of_what_ran_in_the_one_before(scene: StopScene) -> None:
    """The same image and machine id, started twice: another PID namespace each time."""
    here = MachineIdentity.of_this_process("rack-7")
    registry = EvidenceRegistry([LocalEvidence(here)])
    # Only root in the initial namespace sees the namespaces of all processes.
    sees_all = os.geteuid() == 0 and here.pid_namespace == INITIAL_PID_NAMESPACE
    expected = GONE if sees_all else UNVERIFIABLE
    with guest_in(scene.root) as first:
        target = in_a_container(scene, first)
        assert registry.inspect(target) == UNVERIFIABLE
    (scene.root / "guest").unlink()
    with guest_in(scene.root) as second:
        again = in_a_container(scene, second)
        assert registry.inspect(again) == UNVERIFIABLE
        assert again.scope != target.scope
        assert registry.inspect(target) == expected
        # Seen from within the new container nothing is proven of the old one.
        inside = second.asked(target.handle or "")
        assert (inside["evidence"], inside["reason"]) == ("unknown", "identity_unverifiable")
    assert registry.inspect(again) == expected


class Secretive(ProcFs):
    """A procfs with a process whose namespaces may not be looked at, as there are many for whoever is not root."""

    def pids(self) -> Any:  # noqa: ANN401 - an iterator of numbers, and one that cannot be looked at
        """See ProcFs."""
        yield from super().pids()
        yield "sys/kernel/random/boot_id"  # below it there is no directory: neither seen nor gone


def test_where_one_process_cannot_be_looked_at_no_namespace_is_proven_to_have_ended(
    scene: StopScene,
) -> None:
    """The refusal is faked: root may look at every process."""
    machine = replace(MachineIdentity.of_this_process("rack-7"), pid_namespace=INITIAL_PID_NAMESPACE)
    handle = replace(ProcessHandle.of(scene.start("sleep", "600").pid, machine), pid_namespace=4_026_999_999)
    registry = EvidenceRegistry([LocalEvidence(machine, procfs=Secretive())])
    assert registry.inspect(scene.asked(handle)) == UNVERIFIABLE
    said = {proof.name: proof.detail for proof in proofs("rack-7", Secretive())}
    assert said["ended containers"].startswith("nothing is proven")

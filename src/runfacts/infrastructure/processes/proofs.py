"""What this machine can prove about processes, for ``doctor`` (R8.2, R8.3, R8.5)."""

from __future__ import annotations

from dataclasses import dataclass

from runfacts.domain.errors import DatabaseUnreachable, InvalidValue, UnsupportedPlatform
from runfacts.infrastructure.database.clocks import refuse_time_offset
from runfacts.infrastructure.processes.handle import has_pidfd_inodes
from runfacts.infrastructure.processes.machine import MachineIdentity, MachineIdSource
from runfacts.infrastructure.processes.pidfds import has_group_signals
from runfacts.infrastructure.processes.procfs import INITIAL_PID_NAMESPACE, ProcFs, require_linux
from runfacts.infrastructure.processes.sight import can_see_all_namespaces


@dataclass(frozen=True, slots=True)
class Proof:
    """One thing that this machine can, or cannot, prove; ``detail`` says in words what follows."""

    name: str
    ok: bool
    detail: str


def proofs(configured_machine_id: str | None = None, procfs: ProcFs | None = None) -> tuple[Proof, ...]:
    """Look at what this machine offers. Where the first one is not ok, no process can be run under a ledger here."""
    procfs = procfs or ProcFs()
    try:
        require_linux("running a process under a ledger")
    except UnsupportedPlatform as error:
        return (Proof("pidfd", ok=False, detail=str(error)),)
    return (
        Proof("pidfd", ok=True, detail="processes are held by descriptors, never by numbers"),
        _pidfd_inodes(),
        _group_signals(),
        _real_procfs(procfs),
        *_identity(configured_machine_id, procfs),
    )


def _pidfd_inodes() -> Proof:
    if has_pidfd_inodes():
        return Proof("pidfd inode", ok=True, detail="every process has an inode of its own until reboot")
    return Proof("pidfd inode", ok=True, detail="not before Linux 6.9: a process is known by its start ticks only")


def _group_signals() -> Proof:
    if has_group_signals():
        return Proof("group signals", ok=True, detail="a pidfd reaches the whole process group")
    return Proof("group signals", ok=True, detail="not before Linux 6.9: members are signalled one by one")


def _real_procfs(procfs: ProcFs) -> Proof:
    if not procfs.is_real():
        return Proof("procfs", ok=False, detail=f"{procfs.root} is not procfs: nothing about processes can be proven")
    if procfs.hides_processes():
        return Proof("procfs", ok=False, detail="hides other users' processes: that a process is gone cannot be proven")
    return Proof("procfs", ok=True, detail=f"{procfs.root} is procfs and shows all processes")


def _identity(configured: str | None, procfs: ProcFs) -> tuple[Proof, ...]:
    try:
        machine = MachineIdentity.of_this_process(configured, procfs=procfs)
    except (UnsupportedPlatform, InvalidValue) as error:
        return (Proof("machine id", ok=False, detail=str(error)),)
    where = "the initial" if machine.pid_namespace == INITIAL_PID_NAMESPACE else "a"
    namespaces = f"{where} PID namespace ({machine.pid_namespace}), time namespace {machine.time_namespace}"
    sources = {
        MachineIdSource.CONFIGURED: "configured",
        MachineIdSource.MACHINE_ID_FILE: "from /etc/machine-id",
        MachineIdSource.BOOT_ID: "the boot id stands in: after a reboot what is open is an operator's item",
    }
    return (
        Proof("namespaces", ok=True, detail=namespaces),
        Proof("machine id", ok=True, detail=sources[machine.source]),
        Proof("scope", ok=True, detail=machine.scope),
        Proof("after a reboot", ok=True, detail=_after_a_reboot(machine, procfs)),
        Proof("ended containers", ok=True, detail=_ended_containers(machine, procfs)),
    )


def _after_a_reboot(machine: MachineIdentity, procfs: ProcFs) -> str:
    if machine.source is MachineIdSource.BOOT_ID:
        return "nothing is proven: this machine has no id that lasts"
    try:
        refuse_time_offset(procfs)
    except DatabaseUnreachable:
        return "nothing is proven from here: this time namespace shifts the boot clock"
    return "what ran before it is proven gone"


def _ended_containers(machine: MachineIdentity, procfs: ProcFs) -> str:
    if machine.pid_namespace != INITIAL_PID_NAMESPACE:
        return "nothing is proven from here: only the initial PID namespace shows all processes"
    if not can_see_all_namespaces(procfs):
        return "nothing is proven by this user, who may not see the namespaces of all processes"
    return "what ran in a PID namespace that has ended is proven gone"

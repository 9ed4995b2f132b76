"""
Which machine this is, and the scope from which a process can be proven (R8.2, R8.3).

A machine id comes from the first of three places: what was configured; ``/etc/machine-id``, but only in the initial
PID namespace, because images ship one and two containers then share it; else the boot id stands in, with which proofs
work within this boot only.

The **scope** is the machine id with the inodes of the PID and time namespaces, without the boot: a number names a
process only there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from runfacts.domain.errors import InvalidValue, UnsupportedPlatform
from runfacts.infrastructure.processes.procfs import INITIAL_PID_NAMESPACE, ProcFs, require_linux

MACHINE_ID_MAX: Final = 128
"""Longest machine id, in characters."""

_CONFIGURED = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_FROM_FILE = re.compile(r"[0-9a-f]{32}")


class MachineIdSource(StrEnum):
    """Where a machine id comes from."""

    CONFIGURED = "configured"
    MACHINE_ID_FILE = "machine-id-file"
    BOOT_ID = "boot-id"


@dataclass(frozen=True, slots=True)
class MachineIdentity:
    """One machine, its boot and the namespaces of one process."""

    machine_id: str
    source: MachineIdSource
    boot_id: str
    pid_namespace: int
    time_namespace: int
    """0 on a kernel without time namespaces."""

    @property
    def scope(self) -> str:
        """The place from which a process of ours can be proven, as text: without the boot (R8.2)."""
        return f"{self.machine_id}/{self.pid_namespace}/{self.time_namespace}"

    @classmethod
    def of_this_process(
        cls,
        configured: str | None = None,
        *,
        procfs: ProcFs | None = None,
        machine_id_file: Path = Path("/etc/machine-id"),
    ) -> MachineIdentity:
        """Find out where this process runs (``UnsupportedPlatform``; ``InvalidValue``: the configured id)."""
        require_linux("running a process under a ledger")
        procfs = procfs or ProcFs()
        boot_id = procfs.boot_id()
        pid_namespace = procfs.namespace("pid")
        if pid_namespace is None:
            raise UnsupportedPlatform("reading namespaces from procfs")
        machine_id, source = _machine_id(configured, pid_namespace, machine_id_file, boot_id)
        return cls(machine_id, source, boot_id, pid_namespace, procfs.namespace("time") or 0)


def lasting_machine_id(configured: str | None = None) -> str | None:
    """Give the id by which this machine is known after a reboot, too; ``None`` where it has none (R5.2, R8.3)."""
    try:
        machine = MachineIdentity.of_this_process(configured)
    except UnsupportedPlatform:
        return None
    return None if machine.source is MachineIdSource.BOOT_ID else machine.machine_id


def _machine_id(
    configured: str | None, pid_namespace: int, machine_id_file: Path, boot_id: str
) -> tuple[str, MachineIdSource]:
    if configured is not None:
        if not _CONFIGURED.fullmatch(configured):
            raise InvalidValue("machine id", f"is not a text of 1 to {MACHINE_ID_MAX} letters, digits and . _ : -")
        return configured, MachineIdSource.CONFIGURED
    if pid_namespace == INITIAL_PID_NAMESPACE:
        try:
            text = machine_id_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            text = ""
        # "uninitialized", nothing or only zeros is what images that are no machine yet have.
        if _FROM_FILE.fullmatch(text) and text.strip("0"):
            return text, MachineIdSource.MACHINE_ID_FILE
    return boot_id, MachineIdSource.BOOT_ID

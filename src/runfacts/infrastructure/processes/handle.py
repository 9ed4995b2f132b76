"""
The durable handle of a local process: what proves later that a process is the one that was started (R8.2).

A PID alone names nobody, because numbers are used again. With the boot, the namespaces, the start ticks and, where
the kernel has one, the inode of its pidfd, it names one process for ever. A handle says who the process is and never
what it does: no command line, no environment, no directory. It is a small JSON text, closed and versioned, and
everything else is refused.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import chain
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runfacts.domain.errors import RunfactsError
from runfacts.domain.limits import HANDLE_MAX
from runfacts.infrastructure.processes.machine import MACHINE_ID_MAX, MachineIdentity
from runfacts.infrastructure.processes.procfs import ProcFs

HANDLE_VERSION: Final = 1
"""The format that this release writes and reads."""
PLATFORM: Final = "linux"
"""The platform whose processes these handles name."""


class InvalidHandle(RunfactsError):
    """A recorded handle cannot be used: it is malformed, or of a format or platform that this release does not know."""

    def __init__(self, reason: str, *, supported: bool = True) -> None:
        """Say why; ``supported`` is false for another format version or platform."""
        self.reason = reason
        self.supported = supported
        super().__init__(f"the handle of the process cannot be used: {reason}")


class NoSuchProcess(RunfactsError):
    """A process ended before its handle could be made."""

    def __init__(self, pid: int) -> None:
        """Name its number."""
        self.pid = pid
        super().__init__(f"process {pid} is gone")


class _Text(BaseModel):
    """The stored form. Field names are stored: rename none."""

    model_config = ConfigDict(extra="forbid", strict=True)

    v: int = Field(ge=1)
    platform: str = Field(max_length=16)
    machine: str = Field(min_length=1, max_length=MACHINE_ID_MAX)
    boot: str = Field(min_length=1, max_length=64)
    pid_ns: int = Field(ge=0)
    time_ns: int = Field(ge=0)
    pid: int = Field(ge=1)
    start: int = Field(ge=0)
    pidfd: int | None = Field(default=None, ge=1)
    group: int = Field(ge=1)


@dataclass(frozen=True, slots=True)
class ProcessHandle:
    """Who a process is."""

    machine_id: str
    boot_id: str
    pid_namespace: int
    time_namespace: int
    pid: int
    start_ticks: int
    pidfd_inode: int | None
    """Unique until reboot; ``None`` where the kernel has no inode per process (before 6.9)."""
    group: int

    @property
    def scope(self) -> str:
        """The place from which the process can be proven: without the boot (R8.2)."""
        return f"{self.machine_id}/{self.pid_namespace}/{self.time_namespace}"

    @classmethod
    def of(
        cls, pid: int, machine: MachineIdentity, *, pidfd: int | None = None, procfs: ProcFs | None = None
    ) -> ProcessHandle:
        """Make the handle of a process of our own namespaces; ``pidfd`` is an open descriptor of it, if there is one.

        ``NoSuchProcess`` when it is gone. The caller must know that ``pid`` still is the process it means.
        """
        procfs = procfs or ProcFs()
        try:
            opened = os.pidfd_open(pid) if pidfd is None else pidfd
        except ProcessLookupError:
            raise NoSuchProcess(pid) from None
        try:
            stat = procfs.stat(pid)
            if stat is None:
                raise NoSuchProcess(pid)
            inode = os.fstat(opened).st_ino if has_pidfd_inodes() else None
        finally:
            if pidfd is None:
                os.close(opened)
        return cls(
            machine_id=machine.machine_id,
            boot_id=machine.boot_id,
            pid_namespace=machine.pid_namespace,
            time_namespace=machine.time_namespace,
            pid=pid,
            start_ticks=stat.start_ticks,
            pidfd_inode=inode,
            group=stat.group,
        )

    def encode(self) -> str:
        """Give the text that is stored: at most 512 bytes of JSON."""
        text = _Text(
            v=HANDLE_VERSION,
            platform=PLATFORM,
            machine=self.machine_id,
            boot=self.boot_id,
            pid_ns=self.pid_namespace,
            time_ns=self.time_namespace,
            pid=self.pid,
            start=self.start_ticks,
            pidfd=self.pidfd_inode,
            group=self.group,
        ).model_dump_json(exclude_none=True)
        if len(text.encode()) > HANDLE_MAX:
            raise InvalidHandle(f"it has more than {HANDLE_MAX} bytes")
        return text

    @classmethod
    def decode(cls, text: str) -> ProcessHandle:
        """Read a stored handle (``InvalidHandle``)."""
        if len(text.encode(errors="replace")) > HANDLE_MAX:
            raise InvalidHandle(f"it has more than {HANDLE_MAX} bytes")
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidHandle("it is not JSON") from None
        # Format and platform first: a later format may have other fields.
        if not isinstance(raw, dict):
            raise InvalidHandle("it is not a JSON object")
        if raw.get("v") != HANDLE_VERSION or isinstance(raw["v"], bool):
            raise InvalidHandle("its format is of another release", supported=False)
        if raw.get("platform") != PLATFORM:
            raise InvalidHandle("it is of another platform", supported=False)
        try:
            fields = _Text.model_validate(raw)
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors(include_url=False, include_input=False)[0]["loc"])
            raise InvalidHandle(f"its field {where[:32]!r} is missing or wrong") from None
        return cls(
            machine_id=fields.machine,
            boot_id=fields.boot,
            pid_namespace=fields.pid_ns,
            time_namespace=fields.time_ns,
            pid=fields.pid,
            start_ticks=fields.start,
            pidfd_inode=fields.pidfd,
            group=fields.group,
        )


def has_pidfd_inodes() -> bool:
    """Tell whether the kernel gives every process's pidfd an inode of its own (6.9 and later).

    Before that all pidfds share one anonymous inode, so two different processes are compared: this one and any other.
    """
    own = os.getpid()
    for other in chain((os.getppid(),), ProcFs().pids()):
        # The parent of the first process of a namespace has the number 0 there.
        if other not in {0, own} and (inode := _pidfd_inode(other)) is not None:
            return inode != _pidfd_inode(own)
    return False


def _pidfd_inode(pid: int) -> int | None:
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_ino
    finally:
        os.close(descriptor)

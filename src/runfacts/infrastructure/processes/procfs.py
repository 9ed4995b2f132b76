"""
Reading ``/proc``: who a process is, and which kernel and namespaces it lives in.

What is read here decides whether a process is ours, so two things are taken seriously. The file system must really be
procfs: in a container anything can be mounted over ``/proc`` or over a single file in it, such as the boot id (R5.2).
And ``stat`` is cut after the *last* closing parenthesis, in bytes, because a process chooses its own name and may put
parentheses, blanks and newlines into it (R8.2).

"Not there" is an answer here (``None``), never a proof: with ``hidepid`` other users' processes are invisible. That no
descriptor or memory is left to look with is no answer at all, and goes up as ``OSError``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runfacts.domain.errors import UnsupportedPlatform

PROC_SUPER_MAGIC: Final = 0x9FA0
"""What ``statfs`` says of procfs."""
INITIAL_PID_NAMESPACE: Final = 4026531836
"""The inode of the initial PID namespace on every Linux kernel."""
DEAD_STATES: Final = frozenset("ZXx")
"""States of a process that has ended: a zombie waits for its parent only."""

_WANT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STATFS_BYTES: Final = 512  # the structure has 120 bytes on 64-bit Linux; room for every other layout


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of ``/proc/<pid>/stat`` that say who a process is."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    threads: int = 1

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended; a zombie has. One whose first thread has ended before the others has not."""
        return self.state not in DEAD_STATES or self.threads > 1


def parse_stat(text: bytes) -> ProcessStat:
    """Read one ``stat`` line (``ValueError`` when it is none)."""
    head, found, tail = text.rpartition(b")")
    pid, opened, _ = head.partition(b" (")
    fields = tail.split()
    # Field 3 (state) is the first after the name; the start ticks are field 22.
    if not found or not opened or len(fields) < 20:  # noqa: PLR2004
        raise ValueError("not a line of /proc/<pid>/stat")
    return ProcessStat(
        pid=int(pid),
        state=fields[0].decode("ascii"),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        threads=int(fields[17]),
    )


def require_linux(what: str) -> None:
    """Refuse ``what`` on any other system, and on a Linux without pidfds (``UnsupportedPlatform``)."""
    if sys.platform != "linux":
        raise UnsupportedPlatform(what)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        raise_want(error)
        raise UnsupportedPlatform(f"{what} with pidfds (kernel 5.4 or later)") from None


def raise_want(error: OSError) -> None:
    """Raise the error again where it says that this process cannot look just now, and nothing about what is there."""
    if error.errno in _WANT:
        raise error


def file_system_magic(descriptor: int) -> int:
    """Give the ``f_type`` that ``fstatfs`` reports for an open file (``OSError``)."""
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fstatfs(ctypes.c_int(descriptor), buffer) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    # f_type comes first; it is a machine word everywhere but on s390x, where it has 32 bits.
    width = 4 if os.uname().machine == "s390x" else ctypes.sizeof(ctypes.c_long)
    return int.from_bytes(buffer.raw[:width], sys.byteorder)


class ProcFs:
    """The process file system below ``root``."""

    __slots__ = ("root",)

    def __init__(self, root: Path = Path("/proc")) -> None:
        self.root = root

    def is_real(self) -> bool:
        """Tell whether ``root`` is procfs itself and not a file system made to look like it."""
        return self._is_procfs(self.root, os.O_DIRECTORY)

    def boot_id(self) -> str:
        """Give the id of this boot of the kernel, from procfs itself (R5.2).

        ``UnsupportedPlatform`` when something else is mounted over ``/proc`` or over the file.
        """
        path = self.root / "sys/kernel/random/boot_id"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise_want(error)
            raise UnsupportedPlatform("reading the boot id from procfs") from None
        try:
            if file_system_magic(descriptor) != PROC_SUPER_MAGIC:
                raise UnsupportedPlatform("reading the boot id from procfs, which something is mounted over,")
            content, again = (os.pread(descriptor, 64, 0) for _ in range(2))
        finally:
            os.close(descriptor)
        text = content.decode("ascii", errors="replace").strip()
        # Another file of procfs may be mounted over this one; its neighbour ``uuid`` looks alike and differs each time.
        if content != again or not _BOOT_ID.fullmatch(text):
            raise UnsupportedPlatform("reading the boot id from procfs")
        return text

    def namespace(self, kind: str, pid: int | None = None) -> int | None:
        """Give the inode of a process's namespace (``pid``, ``time``), of our own without ``pid``.

        ``None`` when the kernel has no such namespaces, the process is gone or may not be looked at.
        """
        owner = "self" if pid is None else str(pid)
        try:
            return os.stat(self.root / owner / "ns" / kind).st_ino
        except OSError:
            return None

    def stat(self, pid: int) -> ProcessStat | None:
        """Give a process's ``stat``, or ``None`` when there is none to be seen."""
        try:
            text = (self.root / str(pid) / "stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        # A process that goes away while it is read gives an empty file.
        return parse_stat(text) if text else None

    def environment(self, pid: int) -> frozenset[bytes]:
        """Give the environment that a process was started with, as ``NAME=value``; nothing where it cannot be read."""
        content = self._environ(self.root / str(pid))
        if not content:
            # The first thread of a living process may have ended; any other shows the same.
            tasks = self.root / str(pid) / "task"
            try:
                names = os.listdir(tasks)
            except OSError as error:
                raise_want(error)
                names = []
            content = next(filter(None, (self._environ(tasks / name) for name in names)), b"")
        return frozenset(content.split(b"\0"))

    def pids(self) -> Iterator[int]:
        """Give the numbers of all processes that can be seen."""
        for name in os.listdir(self.root):
            if name.isascii() and name.isdigit():
                yield int(name)

    def last_number(self) -> int | None:
        """Give the number that this PID namespace gave out last, to a process or thread; ``None`` where it is hidden.

        Numbers are given out upwards and begin anew at the highest one.
        """
        try:
            descriptor = os.open(self.root / "loadavg", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise_want(error)
            return None
        try:
            # Containers like to mount a file of their own over this one.
            if file_system_magic(descriptor) != PROC_SUPER_MAGIC:
                return None
            return int(os.read(descriptor, 256).split()[4])
        finally:
            os.close(descriptor)

    def living_members(self, group: int) -> tuple[ProcessStat, ...]:
        """Give the processes of a group that have not ended, as far as they can be seen."""
        found = (self.stat(pid) for pid in self.pids())
        return tuple(stat for stat in found if stat is not None and stat.group == group and stat.is_alive)

    def hides_processes(self) -> bool:
        """Tell whether other users' processes are invisible (``hidepid``): absence then proves nothing (R12.3)."""
        return self.stat(1) is None

    def _environ(self, directory: Path) -> bytes:
        try:
            return (directory / "environ").read_bytes()
        except OSError as error:  # gone, a zombie, or another user's
            raise_want(error)
            return b""

    def _is_procfs(self, path: Path, flags: int) -> bool:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        except OSError as error:
            raise_want(error)
            return False
        try:
            return file_system_magic(descriptor) == PROC_SUPER_MAGIC
        finally:
            os.close(descriptor)

"""
Pidfds: processes held by descriptors (R8.5).

A descriptor names one process for as long as it is open, whatever becomes of the number. Signals are sent through
descriptors only; there is no function here that takes a number and sends something. With the group flag (Linux 6.9 and
later) a leader's descriptor reaches its whole group, also when the leader has been reaped: the descriptor was opened
while it was there. ``/proc/<pid>`` and a descriptor are tied together by the kernel's own word: the number that
``fdinfo`` shows is the process's number *in that procfs*, and -1 once it has been reaped.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterable
from enum import Enum
from typing import Final

from runfacts.infrastructure.processes.procfs import ProcFs, raise_want

GROUP_SIGNAL: Final = 1 << 2
"""The flag of ``pidfd_send_signal`` that reaches the process's whole group (Linux 6.9 and later)."""
REAPED: Final = -1
"""The number that a descriptor's process has once its parent has taken note of its end."""

_ASK: Final = 0
# Linux says ESRCH for a free number. A number that is only left as a group's answers EINVAL on older kernels, and the
# number of a thread that leads no process EINVAL or ENOENT.
_NO_PROCESS: Final = frozenset({errno.ESRCH, errno.EINVAL, errno.ENOENT})


class Sent(Enum):
    """What the kernel said to a signal."""

    ACCEPTED = "accepted"
    """By one process at least."""
    GONE = "gone"
    """There is nobody left to take it; no stranger was reached."""
    NOT_PERMITTED = "not_permitted"
    """Everybody who is there belongs to somebody else."""


class Pidfds:
    """The kernel's pidfds. Tests put a recording double in its place."""

    __slots__ = ()

    def open(self, pid: int) -> int | None:
        """Open a descriptor of the process that has this number now; ``None``: no process has it (``OSError``)."""
        try:
            return os.pidfd_open(pid)
        except OSError as error:
            if error.errno in _NO_PROCESS:
                return None
            raise

    def send(self, pidfd: int, number: signal.Signals, *, group: bool = False) -> Sent:
        """Send a signal to the process, or to its whole group."""
        return self._send(pidfd, number, GROUP_SIGNAL if group else 0)

    def ask(self, pidfd: int, *, group: bool = False) -> Sent:
        """Say what would come of a signal, and send none. A zombie still accepts."""
        return self._send(pidfd, _ASK, GROUP_SIGNAL if group else 0)

    def has_ended(self, pidfd: int) -> bool:
        """Tell whether the process has ended with all of its threads, reaped or not."""
        return bool(_poll((pidfd,), 0))

    def wait_for_an_end(self, pidfds: Iterable[int], timeout_ms: float) -> None:
        """Wait until one of the processes has ended, at most ``timeout_ms``."""
        _poll(pidfds, max(0.0, timeout_ms))

    def inode(self, pidfd: int) -> int:
        """Give the descriptor's inode: the process's own until reboot, where the kernel has such (R8.2)."""
        return os.fstat(pidfd).st_ino

    def _send(self, pidfd: int, number: int, flags: int) -> Sent:
        try:
            signal.pidfd_send_signal(pidfd, number, None, flags)
        except ProcessLookupError:
            return Sent.GONE
        except PermissionError:
            return Sent.NOT_PERMITTED
        return Sent.ACCEPTED


def has_group_signals() -> bool:
    """Tell whether a pidfd reaches its process's whole group."""
    own = os.pidfd_open(os.getpid())
    try:
        # A process that leads no group answers "no such process", an older kernel "invalid".
        signal.pidfd_send_signal(own, _ASK, None, GROUP_SIGNAL)
    except OSError as error:
        return error.errno != errno.EINVAL
    finally:
        os.close(own)
    return True


def number_in(procfs: ProcFs, pidfd: int) -> int | None:
    """Give the number under which a descriptor's process stands in ``procfs``: ``REAPED``, or 0 where it is not seen.

    ``None`` when the kernel does not say. Asked *after* something was read below ``/proc/<pid>``, the same number
    proves that it was read of this process.
    """
    try:
        text = (procfs.root / "self/fdinfo" / str(pidfd)).read_bytes()
    except OSError as error:
        raise_want(error)
        return None
    for line in text.splitlines():
        name, _, value = line.partition(b":")
        if name == b"Pid":
            return int(value)
    return None


def shows_our_namespace(procfs: ProcFs) -> bool:
    """Tell whether ``procfs`` is procfs itself, and numbers processes as the system calls of this process do.

    A new PID namespace without a new mount still sees the old one's ``/proc``: the same number, another process.
    """
    if not procfs.is_real():
        return False
    own = os.pidfd_open(os.getpid())
    try:
        return number_in(procfs, own) == os.getpid()
    finally:
        os.close(own)


def _poll(pidfds: Iterable[int], timeout_ms: float) -> list[tuple[int, int]]:
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    return poll.poll(timeout_ms)

"""
A process between its creation and its gate, and after (R10.1, R8.5).

The host's end of the gate is here and nowhere else. The command's process is held by a pidfd from before the gate on,
so what is looked at, waited for or ended is that process and no other that got its number. Before the gate, closing
ends it; after the gate nothing here can.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from runfacts.domain.errors import RunfactsError
from runfacts.infrastructure.processes import keeper
from runfacts.infrastructure.processes.handle import NoSuchProcess, ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.procfs import ProcFs

_ABANDON_FOR_S: Final = 5.0


class LaunchFailed(RunfactsError):
    """The command's process could not be created; nothing ran and nothing is left."""

    def __init__(self, reason: str) -> None:
        """Say why in one line."""
        self.reason = reason
        super().__init__(f"the process could not be created: {reason}")


class PreparedProcess:
    """A command's process, waiting at its gate or past it. A context manager: leaving it closes a gate still shut."""

    def __init__(self, keeper_pid: int, keeper_pidfd: int, line: socket.socket) -> None:
        self.keeper_pid = keeper_pid
        self._keeper_pidfd = keeper_pidfd
        self._line: socket.socket | None = line
        self._leader_pidfd = -1
        self._handle: ProcessHandle | None = None
        self._keeper_code: int | None = None
        self._keeper_ended = False
        self._opened = False

    @property
    def handle(self) -> ProcessHandle:
        """Who the process is; to be recorded before the gate is opened."""
        if self._handle is None:
            raise LaunchFailed("it is not prepared")
        return self._handle

    @property
    def pid(self) -> int:
        """The number of the command's process."""
        return self.handle.pid

    @property
    def leader_pidfd(self) -> int:
        """The descriptor of the command's process, held since before the gate (R8.5)."""
        return self._leader_pidfd

    @property
    def keeper_code(self) -> int | None:
        """The exit code of a keeper that has ended: negative for a signal, ``None`` when it cannot be known."""
        return self._keeper_code

    def meet(self, machine: MachineIdentity, procfs: ProcFs, timeout_s: float) -> None:
        """Wait for the process to say its number, hold it by a pidfd and make its handle (``LaunchFailed``)."""
        pid = self._reported_pid(timeout_s)
        try:
            self._leader_pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise LaunchFailed("the process ended early") from None
        # Its parent proves that the number still is that process: the keeper is our child and has one child only.
        stat = procfs.stat(pid)
        if stat is None or stat.parent != self.keeper_pid or stat.group != pid or stat.session != pid:
            os.close(self._leader_pidfd)
            self._leader_pidfd = -1
            raise LaunchFailed("the process ended early")
        try:
            self._handle = ProcessHandle.of(pid, machine, pidfd=self._leader_pidfd, procfs=procfs)
        except NoSuchProcess:
            raise LaunchFailed("the process ended early") from None

    def open_gate(self) -> bool:
        """Let the command run, once. False: its process is gone already, and the command never ran.

        After true the keeper has the last word: a process that is ended at this very moment runs no command either.
        """
        line, self._line = self._line, None
        if line is None:
            raise LaunchFailed("its gate was opened or closed before")
        with line:
            if self.wait(0):
                return False  # without its keeper the process is about to end; the byte could still reach it
            # From here on nothing may end the process, even if this thread is interrupted before it knows the result.
            self._opened = True
            try:
                # Without the flag a gone reader would be SIGPIPE, which an application may have left deadly.
                line.send(keeper.GATE_OPENS, socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                self._opened = False
        return self._opened

    def abandon(self, timeout_s: float = _ABANDON_FOR_S) -> None:
        """Close the gate and wait until keeper and process are gone. The command never runs."""
        if self._opened:
            raise LaunchFailed("its gate is open")
        if self._line is not None:
            self._line.shutdown(socket.SHUT_WR)
        if not self.wait(timeout_s):
            # Stopped, or starved: its child watches it and ends with it.
            self._kill(self._keeper_pidfd)
            self.wait(None)
        if self._leader_pidfd >= 0 and not _wait_readable(self._leader_pidfd, timeout_s):
            self._kill(self._leader_pidfd)
            _wait_readable(self._leader_pidfd, None)
        # A child that has not said its number yet is known by its end of the line.
        while self._line is not None and _wait_readable(self._line.fileno(), timeout_s):
            try:
                if not self._line.recv(4_096):
                    break
            except ConnectionResetError:
                break
        self._close_line()

    def has_ended(self) -> bool:
        """Look at the command's process: whether it has ended."""
        return _wait_readable(self._leader_pidfd, 0)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait at most ``timeout_s`` seconds for the keeper's end; tell whether it came."""
        if not self._keeper_ended and _wait_readable(self._keeper_pidfd, timeout_s):
            self._reap()
        return self._keeper_ended

    def wait_for_a_change(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds for the next end: that of the command's process or of the keeper."""
        poll = select.poll()
        if not self._keeper_ended:
            poll.register(self._keeper_pidfd, select.POLLIN)
        if not self.has_ended():
            poll.register(self._leader_pidfd, select.POLLIN)
        poll.poll(timeout_s * 1000)

    def close(self) -> None:
        """Let go of all descriptors. A gate still shut is closed; a command that runs goes on."""
        self._close_line()
        for descriptor in (self._keeper_pidfd, self._leader_pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._keeper_pidfd = self._leader_pidfd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._opened and self._keeper_pidfd >= 0:
                self.abandon()
        finally:
            self.close()

    def _close_line(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None

    def _kill(self, pidfd: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _reap(self) -> None:
        self._keeper_ended = True
        try:
            found = os.waitid(os.P_PID, self.keeper_pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return  # an application that reaps everything was faster
        if found is not None:
            self._keeper_code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _reported_pid(self, timeout_s: float) -> int:
        line = self._line
        if line is None:
            raise LaunchFailed("its gate is closed")
        deadline = time.monotonic() + timeout_s
        text = b""
        while not text.endswith(b"\n"):
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not _wait_readable(line.fileno(), left_s):
                raise LaunchFailed("the keeper did not answer in time")
            try:
                part = line.recv(4_096)
            except ConnectionResetError:
                part = b""
            if not part:
                raise LaunchFailed("the keeper ended early")
            text += part
        report = json.loads(text)
        if "refused" in report:
            code = getattr(errno, report["error"], None)
            why = os.strerror(code) if code is not None else report["error"]
            raise LaunchFailed(f"its {report['refused']} cannot be had: {why}")
        return int(report["pid"])


def _wait_readable(descriptor: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))

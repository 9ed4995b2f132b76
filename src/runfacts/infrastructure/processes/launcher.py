"""
The launcher: a process that waits at a gate until its handle is recorded (R10.1).

``prepare`` creates the keeper and, under it, the command's process, which waits. The caller records ``handle`` and ``pid`` and then calls
``open_gate``, or ``abandon``. Whatever happens to this process in between, the command runs only after that one byte.

The host's end of the gate is in no other process: it is close-on-exec, and the keeper is started by ``posix_spawn``, never by a fork that
other threads' descriptors leak into. The command's process is known by a pidfd from before the gate on, so what is signalled or waited for
later is that process and no other that got its number.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from runfacts.domain.errors import InvalidValue, RunfactsError
from runfacts.infrastructure.processes import keeper
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import AttemptFiles
from runfacts.infrastructure.processes.procfs import ProcFs, require_linux
from runfacts.infrastructure.steps import NO_STEPS, Steps

COOKIE_RUN: Final = "RUNFACTS_RUN_ID"
"""The variable in a command's environment that names its Run."""
COOKIE_ATTEMPT: Final = "RUNFACTS_ATTEMPT_ID"
"""The variable that names its Attempt: the cookie by which a group's members are known (R8.6)."""

_ABANDON_FOR_S: Final = 5.0
_FIRST_FREE: Final = 10  # above every number that the keeper's descriptors are put at


class LaunchFailed(RunfactsError):
    """The command's process could not be created; nothing ran and nothing is left."""

    def __init__(self, reason: str) -> None:
        """Say why in one line."""
        self.reason = reason
        super().__init__(f"the process could not be created: {reason}")


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to launch, and where its traces go."""

    run_id: str
    attempt_id: str
    argv: tuple[str, ...]
    directory: str
    files: AttemptFiles
    callback_sequence: int
    callback_token: str = field(repr=False)
    environment: Mapping[str, str] | None = field(default=None, repr=False)
    """``None``: that of this process. The cookies are added to either."""
    stdin: bool = False
    """Whether the command gets this process's standard input; else ``/dev/null``."""

    def __post_init__(self) -> None:
        """Refuse what no system call takes (``InvalidValue``)."""
        if not self.argv or not self.argv[0]:
            raise InvalidValue("command", "is empty")
        if any("\0" in text for text in (*self.argv, self.directory)):
            raise InvalidValue("command", "contains a NUL character")
        if not os.path.isabs(self.directory):
            raise InvalidValue("directory", "is not absolute")
        for name, value in (self.environment or {}).items():
            if not name or "=" in name or "\0" in name + value:
                raise InvalidValue("environment", "has a name or value that no process can have")


@dataclass(frozen=True, slots=True)
class KeeperSteps:
    """Test hook: named steps at which the keeper or its child stops itself; ``keeper`` says how. Never in production."""

    directory: Path
    stop_at: frozenset[str]


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

    def open_gate(self) -> bool:
        """Let the command run, once. False: its process is gone already, and the command never ran.

        After true the keeper has the last word: a process that is ended at this very moment does not run the command either.
        """
        line, self._line = self._line, None
        if line is None:
            raise LaunchFailed("its gate was opened or closed before")
        with line:
            try:
                # Without the flag a gone reader would be SIGPIPE, which an application may have left deadly.
                line.send(keeper.GATE_OPENS, socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                return False
        self._opened = True
        return True

    def abandon(self, timeout_s: float = _ABANDON_FOR_S) -> None:
        """Close the gate and wait until keeper and process are gone. The command never runs."""
        if self._opened:
            raise LaunchFailed("its gate is open")
        self._close_line()
        if not self.wait(timeout_s):
            # Stopped, or starved: its child watches it and ends with it.
            self._kill(self._keeper_pidfd)
            _wait_readable(self._keeper_pidfd, None)
            self._reap()
        if self._leader_pidfd >= 0 and not _wait_readable(self._leader_pidfd, timeout_s):
            self._kill(self._leader_pidfd)
            _wait_readable(self._leader_pidfd, None)

    def has_ended(self) -> bool:
        """Look at the command's process: whether it has ended."""
        return _wait_readable(self._leader_pidfd, 0)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait at most ``timeout_s`` seconds for the end of the keeper, with which everything is over; tell whether it came."""
        if not self._keeper_ended and _wait_readable(self._keeper_pidfd, timeout_s):
            self._reap()
        return self._keeper_ended

    def wait_for_a_change(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds for the end of the command's process or of the keeper, whichever is next."""
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def _reap(self) -> None:
        self._keeper_ended = True
        try:
            found = os.waitid(os.P_PID, self.keeper_pid, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return  # an application that reaps everything was faster
        if found is not None:
            self._keeper_code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


class Launcher:
    """Creates gated processes on this machine. Thread-safe."""

    def __init__(
        self,
        machine: MachineIdentity,
        *,
        gate_timeout_ms: int = 30_000,
        steps: Steps = NO_STEPS,
        procfs: ProcFs | None = None,
        interpreter: str | None = None,
        keeper_steps: KeeperSteps | None = None,
    ) -> None:
        """``interpreter`` is the Python that runs the keeper; this process's own when left out."""
        self.machine = machine
        self.gate_timeout_ms = gate_timeout_ms
        self._steps = steps
        self._procfs = procfs or ProcFs()
        self._interpreter = interpreter or sys.executable
        self._keeper_steps = keeper_steps
        self._left: list[int] = []
        self._left_lock = threading.Lock()

    def prepare(self, spec: LaunchSpec) -> PreparedProcess:
        """Create the keeper and the process behind its gate (``LaunchFailed``, ``UnsupportedPlatform``)."""
        require_linux("running a process under a ledger")
        self._reap_what_was_left()
        self._steps.reached("launch:before:keeper")
        prepared = self._spawn(spec)
        try:
            self._steps.reached("launch:after:keeper")
            pid = self._wait_for_report(prepared)
            prepared._leader_pidfd = self._open_leader(pid, prepared.keeper_pid)
            prepared._handle = ProcessHandle.of(pid, self.machine, pidfd=prepared._leader_pidfd, procfs=self._procfs)
        except BaseException:
            with prepared:
                pass
            raise
        return prepared

    def leave(self, prepared: PreparedProcess) -> None:
        """Let a running command go on without this host; its keeper is reaped at some later launch."""
        prepared.close()
        with self._left_lock:
            self._left.append(prepared.keeper_pid)

    def _reap_what_was_left(self) -> None:
        with self._left_lock:
            self._left = [pid for pid in self._left if not _is_reaped(pid)]

    def _spawn(self, spec: LaunchSpec) -> PreparedProcess:
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                ours = _moved_up(ours)
                launch = _memory_file(json.dumps(self._launch(spec)).encode("ascii"))
                try:
                    pid = self._spawn_keeper(theirs.fileno(), launch, stdin=spec.stdin)
                finally:
                    os.close(launch)
        except OSError as error:
            raise LaunchFailed(f"the keeper cannot be started: {error.strerror}") from error
        return PreparedProcess(pid, os.pidfd_open(pid), ours)

    def _spawn_keeper(self, line: int, launch: int, *, stdin: bool) -> int:
        script = keeper.__file__
        # Numbers above what they are put at: a duplicate onto itself would stay close-on-exec.
        high_line, high_launch = (fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for number in (line, launch))
        try:
            nothing = os.devnull
            actions: list[tuple[Any, ...]] = [
                (os.POSIX_SPAWN_OPEN, 1, nothing, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, nothing, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, high_line, keeper.LINE),
                (os.POSIX_SPAWN_DUP2, high_launch, keeper.LAUNCH),
            ]
            if not stdin:
                actions.insert(0, (os.POSIX_SPAWN_OPEN, 0, nothing, os.O_RDONLY, 0))
            return os.posix_spawn(
                self._interpreter,
                [self._interpreter, "-I", "-S", script],
                os.environ,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
            )
        finally:
            os.close(high_line)
            os.close(high_launch)

    def _launch(self, spec: LaunchSpec) -> dict[str, Any]:
        environment = dict(os.environ if spec.environment is None else spec.environment)
        environment[COOKIE_RUN] = spec.run_id
        environment[COOKIE_ATTEMPT] = spec.attempt_id
        launch: dict[str, Any] = {
            "run_id": spec.run_id,
            "attempt_id": spec.attempt_id,
            "sequence": spec.callback_sequence,
            "token": spec.callback_token,
            "argv": list(spec.argv),
            "environment": environment,
            "directory": spec.directory,
            "stdout": spec.files.stdout,
            "stderr": spec.files.stderr,
            "receipt": spec.files.receipt,
            "lock": spec.files.lock,
            "gate_timeout_ms": self.gate_timeout_ms,
        }
        if self._keeper_steps is not None:
            launch["steps"] = {
                "directory": str(self._keeper_steps.directory),
                "stop_at": sorted(self._keeper_steps.stop_at),
            }
        return launch

    def _wait_for_report(self, prepared: PreparedProcess) -> int:
        line = prepared._line
        if line is None:
            raise LaunchFailed("its gate is closed")
        deadline = time.monotonic() + self.gate_timeout_ms / 1000
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

    def _open_leader(self, pid: int, keeper_pid: int) -> int:
        """Open the process that reported ``pid``; its parent proves that it still is that one."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise LaunchFailed("the process ended early") from None
        stat = self._procfs.stat(pid)
        if stat is None or stat.parent != keeper_pid or stat.group != pid or stat.session != pid:
            os.close(pidfd)
            raise LaunchFailed("the process ended early")
        return pidfd


def _moved_up(line: socket.socket) -> socket.socket:
    """Give the same socket under a number that no standard stream or spawn action uses."""
    with line:
        number = fcntl.fcntl(line.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    return socket.socket(fileno=number)


def _memory_file(content: bytes) -> int:
    """Give a file in memory: the launch has a token in it, which neither argv nor the disk may show."""
    descriptor = os.memfd_create("runfacts-launch", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _wait_readable(descriptor: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000)))


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return True

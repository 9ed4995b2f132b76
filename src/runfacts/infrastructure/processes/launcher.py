"""
The launcher: a process that waits at a gate until its handle is recorded (R10.1).

``prepare`` creates the keeper and, under it, the command's process, which waits. The caller records ``handle`` and
``pid`` and then calls ``open_gate``, or ``abandon``. Whatever happens to this process in between, the command runs
only after that one byte.

The host's end of the gate is in no other process: it is close-on-exec, and the keeper is started by ``posix_spawn``,
never by a fork that other threads' descriptors leak into. The command's process is known by a pidfd from before the
gate on, so what is signalled or waited for later is that process and no other that got its number.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runfacts.domain.errors import InvalidValue
from runfacts.infrastructure.processes import keeper
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import AttemptFiles
from runfacts.infrastructure.processes.prepared import LaunchFailed, PreparedProcess
from runfacts.infrastructure.processes.procfs import ProcFs, require_linux
from runfacts.infrastructure.steps import NO_STEPS, Steps

COOKIE_RUN: Final = "RUNFACTS_RUN_ID"
"""The variable in a command's environment that names its Run."""
COOKIE_ATTEMPT: Final = "RUNFACTS_ATTEMPT_ID"
"""The variable that names its Attempt: the cookie by which a group's members are known (R8.6)."""

_FIRST_FREE: Final = 10  # above every number that the keeper's descriptors are put at


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What to launch, and where its traces go."""

    run_id: str
    attempt_id: str
    argv: tuple[str, ...] = field(repr=False)
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
        require_usable(self.argv, self.directory, self.environment)


@dataclass(frozen=True, slots=True)
class KeeperSteps:
    """Test hook: steps at which the keeper or its child stops itself; ``keeper`` says how. Never in production."""

    directory: Path
    stop_at: frozenset[str]


def require_usable(argv: tuple[str, ...], directory: str, environment: Mapping[str, str] | None) -> None:
    """Refuse what no process can be made of (``InvalidValue``)."""
    if not argv or not argv[0]:
        raise InvalidValue("command", "is empty")
    if any("\0" in text for text in (*argv, directory)):
        raise InvalidValue("command", "contains a NUL character")
    if not os.path.isabs(directory):
        raise InvalidValue("directory", "is not absolute")
    for name, value in (environment or {}).items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidValue("environment", "has a name or value that no process can have")


class Launcher:
    """Creates gated processes on this machine. Thread-safe."""

    def __init__(
        self,
        machine: MachineIdentity,
        *,
        gate_timeout_ms: int = 30_000,
        answer_timeout_ms: int = 30_000,
        steps: Steps = NO_STEPS,
        procfs: ProcFs | None = None,
        interpreter: str | None = None,
        keeper_steps: KeeperSteps | None = None,
    ) -> None:
        """``gate_timeout_ms`` is how long a process waits at its gate.

        ``answer_timeout_ms`` is how long it may take to get there, which can be much on a busy machine.
        ``interpreter`` is the Python that runs the keeper; this process's own when left out.
        """
        self.machine = machine
        self.gate_timeout_ms = gate_timeout_ms
        self._answer_timeout_s = answer_timeout_ms / 1000
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
            prepared.meet(self.machine, self._procfs, self._answer_timeout_s)
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
            with theirs, ExitStack() as undo:
                ours = undo.enter_context(_moved_up(ours))
                launch = _memory_file(json.dumps(self._launch(spec)).encode("ascii"))
                try:
                    pid = self._spawn_keeper(theirs.fileno(), launch, stdin=spec.stdin)
                finally:
                    os.close(launch)
                prepared = PreparedProcess(pid, os.pidfd_open(pid), ours)
                undo.pop_all()
                return prepared
        except OSError as error:
            raise LaunchFailed(f"the keeper cannot be started: {error.strerror}") from error

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
                # Ignored in the host, it would make the kernel reap the command before the keeper can ask how it ended.
                setsigdef=(signal.SIGCHLD,),
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


def _is_reaped(pid: int) -> bool:
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return True

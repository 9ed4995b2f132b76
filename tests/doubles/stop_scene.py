"""Processes to be stopped, and a recording double of what sends the signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from process_watch import wait_until
from runfacts.domain.cancellation.controllers import StopTarget
from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.recovery.evidence import EvidenceTarget
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.launcher import COOKIE_ATTEMPT
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.pidfds import Pidfds, Sent

SIGNAL_LOG = str(Path(__file__).with_name("signal_log.py"))


class RecordingPidfds(Pidfds):
    """Sends as the kernel does, and remembers what was sent: signal and whether to the whole group."""

    def __init__(self) -> None:
        self.sent: list[tuple[signal.Signals, bool]] = []

    def send(self, pidfd: int, number: signal.Signals, *, group: bool = False) -> Sent:
        """See ``Pidfds``."""
        self.sent.append((number, group))
        return super().send(pidfd, number, group=group)


@dataclass
class TimeIs:
    """How much time is left; ``wanted`` remembers what was asked for."""

    left_ms: int = 1 << 40
    wanted: list[int] = field(default_factory=list)

    def allows(self, wanted_ms: int) -> bool:
        """See ``TimeLeft``."""
        self.wanted.append(wanted_ms)
        return wanted_ms <= self.left_ms


@dataclass
class StopScene:
    """Commands of one attempt, each the leader of its own group, children of this process that nobody reaps."""

    root: Path
    machine: MachineIdentity
    attempt_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *argv: str, cookie: bool = True) -> subprocess.Popen[bytes]:
        """Start a leader, with or without the attempt's cookie."""
        environment = dict(os.environ)
        environment.pop(COOKIE_ATTEMPT, None)
        if cookie:
            environment[COOKIE_ATTEMPT] = self.attempt_id
        child = subprocess.Popen(argv, start_new_session=True, env=environment)
        self.children.append(child)
        return child

    def start_logging(self, name: str, how: str = "ends", *, cookie: bool = True) -> subprocess.Popen[bytes]:
        """Start a leader that logs its signals, and wait until it does."""
        child = self.start(*self.logging(name, how), cookie=cookie)
        self.wait_until_ready(name)
        return child

    def start_tree(self, *shell: str, logs: Sequence[str] = (), cookie: bool = True) -> subprocess.Popen[bytes]:
        """Start a shell as the leader, and wait until all of its logging processes log."""
        child = self.start("sh", "-c", "\n".join(shell), cookie=cookie)
        for name in logs:
            self.wait_until_ready(name)
        return child

    def logging(self, name: str, how: str) -> tuple[str, ...]:
        """Give the command of a logging process."""
        return (sys.executable, "-I", "-S", SIGNAL_LOG, str(self.root / name), how, str(os.getpid()))

    def shell_logging(self, name: str, how: str) -> str:
        """Give the same for a shell."""
        return " ".join(self.logging(name, how))

    def wait_until_ready(self, name: str) -> None:
        """Wait until a logging process logs."""
        wait_until(lambda: self.log(name)[:1] == ["ready"], f"{name} is ready")

    def log(self, name: str) -> list[str]:
        """Give what a logging process wrote."""
        path = self.root / name
        return path.read_text().splitlines() if path.exists() else []

    def handle(self, child: subprocess.Popen[bytes]) -> ProcessHandle:
        """Give the handle of a leader."""
        return ProcessHandle.of(child.pid, self.machine)

    def target(self, handle: ProcessHandle | str, *, pid: int | None = None, scope: str | None = None) -> StopTarget:
        """Give what is to be stopped, as it would be recorded."""
        text = handle if isinstance(handle, str) else handle.encode()
        number = handle.pid if pid is None and isinstance(handle, ProcessHandle) else pid
        return StopTarget("run", self.attempt_id, "local", scope or self.machine.scope, text, number)

    def asked(self, handle: ProcessHandle, *, last_seen_at_ms: int | None = None) -> EvidenceTarget:
        """Give what is to be looked for, as it would be recorded."""
        return EvidenceTarget(
            "run",
            self.attempt_id,
            AttemptStatus.RUNNING,
            "local",
            handle.scope,
            None,
            handle.encode(),
            handle.pid,
            0,
            last_seen_at_ms,
        )

    def end(self) -> None:
        """End what is left of the leaders and reap them; what they started bears the test's mark."""
        for child in self.children:
            if child.returncode is None:
                child.kill()
                child.wait()


def once(act: Callable[[], object]) -> Callable[[], None]:
    """Give a function that acts the first time only."""
    left = [act]

    def call() -> None:
        if left:
            left.pop()()

    return call

"""
Watching and ending real processes in tests: found by a mark in their environment, ended by their own number.

Run as a program it is the guard of a mark: ``python process_watch.py MARK`` waits until its input ends, which it does
with the test process, and then ends whatever bears the mark. A test process that is killed cleans up nothing itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE_S = 60.0
"""How long a test waits for what must happen. Generous: a busy machine is no failure."""

MARK = "RUNFACTS_TEST_MARK"


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Wait until ``holds()`` is true (``AssertionError`` after the deadline)."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)


def state_of(pid: int) -> str | None:
    """Give a process's state letter, ``None`` when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def leads_its_session(pid: int, word: str) -> bool:
    """Whether a process leads its session and has a word in its command line; a process that is gone does not.

    A child that has not become its own program yet has the command line of its parent, and not its session's lead.
    """
    try:
        return os.getsid(pid) == pid and word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


class Marked:
    """All processes that have a mark in their environment; a new mark where none is given."""

    def __init__(self, mark: str = "") -> None:
        self.mark = mark or str(uuid.uuid4())

    def living(self) -> set[int]:
        """Give the numbers of those that have not ended, this process left out."""
        text = f"{MARK}={self.mark}".encode()
        found = set()
        for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed
            if name.isdigit() and int(name) != os.getpid():
                try:
                    environment = Path(f"/proc/{name}/environ").read_bytes()
                except (FileNotFoundError, ProcessLookupError, PermissionError):
                    continue
                if text in environment.split(b"\0"):
                    found.add(int(name))
        return found

    def wait_until_gone(self) -> None:
        """Wait until none is left."""
        self._until_gone(lambda _: None)

    def end(self) -> None:
        """Kill what is left, each by its own pidfd, until none is."""
        self._until_gone(kill)

    def _until_gone(self, act: Callable[[int], None]) -> None:
        def gone() -> bool:
            found = self.living()
            for pid in found:
                act(pid)
            if found:
                return False
            # A process shows no environment for a moment while it becomes another program.
            time.sleep(0.05)
            return not self.living()

        wait_until(gone, "all processes of the test have ended")


@contextmanager
def marked_environment() -> Iterator[Marked]:
    """Mark everything that is started within the block; at its end nothing of it is left, nor if this is killed."""
    marked = Marked()
    before = os.environ.get(MARK)
    with _guarded(marked.mark):
        os.environ[MARK] = marked.mark
        try:
            yield marked
        finally:
            if before is None:
                del os.environ[MARK]
            else:
                os.environ[MARK] = before
            marked.end()


@contextmanager
def _guarded(mark: str) -> Iterator[None]:
    """Have a guard of a mark within the block. It bears none itself, and no key of the terminal reaches it."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, mark],
        env={},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as guard:
        try:
            yield
        finally:
            guard.kill()


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process through its pidfd; nothing when it is gone."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(pidfd)


def stopped_at(directory: Path, step: str) -> int:
    """Wait until a process has stopped itself at a keeper's step, and give its number."""
    marker = directory / step
    wait_until(marker.exists, f"step {step} is reached")
    pid = int(marker.read_text())
    wait_until(lambda: state_of(pid) in {"T", None}, f"the process at {step} is stopped")
    return pid


def main() -> None:
    """Be the guard of a mark."""
    sys.stdin.buffer.read()
    Marked(sys.argv[1]).end()


if __name__ == "__main__":
    main()

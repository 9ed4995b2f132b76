"""
Descriptors that a host holds since before the gate opened (R8.5).

Such a descriptor is itself the identity: it was opened on the process that waits at the gate, and it reaches the
group even when the leader has long been reaped. Whoever hosts puts them here, and the controller of the same process
borrows them. They are a fast and strong path, never a source of truth: without one, the recorded handle is proven.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.pidfds import Pidfds, Sent, has_group_signals


class HeldPidfds:
    """Descriptors by attempt. Thread-safe; each is a duplicate of its own, so nobody closes another's."""

    def __init__(self, pidfds: Pidfds | None = None) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[int, ProcessHandle]] = {}
        self._pidfds = pidfds or Pidfds()

    def hold(self, attempt_id: str, pidfd: int, handle: ProcessHandle) -> None:
        """Hold the leader of an attempt's group, from before its gate opens."""
        duplicate = os.dup(pidfd)
        with self._lock:
            before = self._held.get(attempt_id)
            self._held[attempt_id] = (duplicate, handle)
        if before is not None:
            os.close(before[0])

    def release(self, attempt_id: str) -> None:
        """Let go of an attempt that nothing is to be sent to any more."""
        with self._lock:
            held = self._held.pop(attempt_id, None)
        if held is not None:
            os.close(held[0])

    def release_ended(self) -> None:
        """Let go of every group that has no member left: a host that left a run may outlive it by far."""
        by_group = has_group_signals()
        with self._lock:
            ended = [
                attempt_id
                for attempt_id, (pidfd, _) in self._held.items()
                if (
                    self._pidfds.ask(pidfd, group=True) is Sent.GONE
                    if by_group
                    # Without the flag a descriptor reaches its leader only.
                    else self._pidfds.has_ended(pidfd)
                )
            ]
        for attempt_id in ended:
            self.release(attempt_id)

    @contextmanager
    def borrow(self, attempt_id: str, handle: ProcessHandle) -> Iterator[int | None]:
        """Give a descriptor for the length of the block; ``None`` where none is held of exactly this process."""
        with self._lock:
            held = self._held.get(attempt_id)
            duplicate = os.dup(held[0]) if held is not None and held[1] == handle else None
        try:
            yield duplicate
        finally:
            if duplicate is not None:
                os.close(duplicate)

    def close(self) -> None:
        """Let go of all."""
        with self._lock:
            held = tuple(self._held.values())
            self._held.clear()
        for pidfd, _ in held:
            os.close(pidfd)

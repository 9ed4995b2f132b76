"""Programs that fork a process for each of their jobs, and what such a process has to say."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar


class Named(Protocol):
    """What every job has."""

    @property
    def name(self) -> str:
        """What its process is called."""
        ...


Job = TypeVar("Job", bound=Named)


class Said:
    """What one process has to say."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, event: str, **more: object) -> None:
        """Say one line; lines of several processes do not mix."""
        said = {"worker": self._name, "pid": os.getpid(), "event": event} | more
        os.write(1, f"{json.dumps(said)}\n".encode())


def fork_each(jobs: Sequence[Job], run: Callable[[Job], None]) -> None:
    """Fork the processes and say how each of them ended."""
    names = {}
    for job in jobs:
        pid = os.fork()
        if pid == 0:
            try:
                run(job)
            except BaseException:  # noqa: BLE001 - a forked process must not go on as its parent
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        names[pid] = job.name
    while names:
        pid, status = os.waitpid(-1, 0)
        Said(names.pop(pid))("ended", code=os.waitstatus_to_exitcode(status))

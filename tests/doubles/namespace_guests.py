"""A process in a PID namespace of its own, as a container has one, and a worker beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from namespaces import OWN_NAMESPACE
from process_watch import DEADLINE_S

ROOT = Path(__file__).parents[2]
NAMESPACE_GUEST = str(ROOT / "tests/integration/processes/namespace_guest.py")


class Guest:
    """A process in a PID namespace of its own, on the same boot and under the same machine id."""

    def __init__(self, root: Path) -> None:
        self.program = subprocess.Popen(
            [*OWN_NAMESPACE, sys.executable, NAMESPACE_GUEST, root],
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests/doubles'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def said(self) -> dict[str, str]:
        """Give the next line that it says."""
        assert self.program.stdout is not None
        said: dict[str, str] = json.loads(self.program.stdout.readline())
        return said

    def asked(self, text: str) -> dict[str, str]:
        """Ask it, and give its answer."""
        assert self.program.stdin is not None
        self.program.stdin.write(text + "\n")
        self.program.stdin.flush()
        return self.said()

    def end(self) -> None:
        """Let it end, and its namespace with it."""
        self.program.communicate(timeout=DEADLINE_S)


@contextmanager
def guest_in(root: Path) -> Iterator[Guest]:
    """Have a guest within the block."""
    guest = Guest(root)
    try:
        yield guest
    finally:
        guest.end()

"""R9.3: a program that supervises ends when it wants to, whatever a cycle of it is doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from told import environment

PROGRAM = """
import sys, threading
from runfacts import Ledger

reached = threading.Event()

def never_ends(report):
    reached.set()
    threading.Event().wait()

ledger = Ledger.open(sys.argv[1])
supervision = ledger.supervise(on_cycle=never_ends)
supervision.start()
assert reached.wait(60)
print(supervision.stop(10), supervision.running)
"""


def test_a_cycle_that_never_ends_keeps_no_program_alive(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path / 'ledger.db'}"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False False\n", "")

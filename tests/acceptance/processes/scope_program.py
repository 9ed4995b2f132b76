"""
A worker of one scope, with commands of its own that it has left.

Usage: ``python scope_program.py URL MACHINE ROOT COUNT``. It says the Runs that it began and where each notes its
signals, one JSON object, and serves its scope until its input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from left_commands import LeavingHost
from runfacts import Ledger


def main() -> None:
    """Begin, say, serve."""
    url, machine, root, count = sys.argv[1:]
    with Ledger.open(url, machine_id=machine) as ledger:
        host = LeavingHost(ledger, Path(root))
        left = [host.leave() for _ in range(int(count))]
        said = {command.run_id: [str(log) for log in command.logs] for command in left}
        sys.stdout.write(json.dumps({"scope": ledger.machine().scope, "runs": said}) + "\n")
        sys.stdout.flush()
        with ledger.supervise(interval_ms=250):
            sys.stdin.read()


if __name__ == "__main__":
    main()

"""
A supervisor that stops nothing and says after each cycle what it was asked to stop in it.

Usage: ``python supervisor_program.py URL INTERVAL_MS``. It prints a JSON list of Runs for every cycle, and serves until
its input ends.
"""

from __future__ import annotations

import json
import sys

from runfacts import Ledger
from runfacts.domain.cancellation.supervisor import SupervisorReport
from stoppers import Stopper


def main() -> None:
    """Serve, and say."""
    url, interval_ms = sys.argv[1:]
    stopper = Stopper()
    told = 0

    def tell(_: SupervisorReport) -> None:
        nonlocal told
        asked = stopper.asked[told:]
        told += len(asked)
        sys.stdout.write(json.dumps(asked) + "\n")
        sys.stdout.flush()

    with (
        Ledger.open(url, busy_timeout_ms=60_000) as ledger,
        ledger.supervise(controllers=[stopper], local=False, interval_ms=int(interval_ms), on_cycle=tell),
    ):
        sys.stdin.read()


if __name__ == "__main__":
    main()

"""What an idle SQLite ledger costs: import time, resident memory, and which modules stay out of the process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

_ROUNDS = 5
_STAY_OUT = ("psycopg", "click", "rich", "pytest")

# Runs in an interpreter of its own, since here much is loaded already.
_PROBE = """
import json, sys, time

def resident_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

bare = resident_kib()
started = time.perf_counter()
from runfacts import Ledger
imported = time.perf_counter()
with Ledger.open("sqlite:///" + sys.argv[1]):
    print(json.dumps({
        "import_ms": (imported - started) * 1000,
        "open_ms": (time.perf_counter() - imported) * 1000,
        "bare_mib": bare / 1024,
        "idle_mib": resident_kib() / 1024,
        "loaded": [name for name in sys.argv[2:] if name in sys.modules],
    }))
"""


@dataclass(frozen=True)
class Footprint:
    """One round: milliseconds, MiB of resident memory, and what was loaded of that which has to stay out."""

    import_ms: float
    open_ms: float
    bare_mib: float
    idle_mib: float
    loaded: list[str]


def main() -> int:
    """Print the medians; 1 if a module was loaded that has to stay out."""
    with tempfile.TemporaryDirectory() as folder:
        # The first round compiles everything, as an installation does, and does not count.
        rounds = [_measure(Path(folder), f"ledger-{number}.db") for number in range(_ROUNDS + 1)][1:]
    loaded = {name for one in rounds for name in one.loaded}
    print(f"import runfacts         {statistics.median(one.import_ms for one in rounds):6.0f} ms")
    print(f"open a new ledger       {statistics.median(one.open_ms for one in rounds):6.0f} ms")
    print(f"resident, bare Python   {statistics.median(one.bare_mib for one in rounds):6.1f} MiB")
    print(f"resident, idle ledger   {statistics.median(one.idle_mib for one in rounds):6.1f} MiB")
    print(f"not loaded              {', '.join(name for name in _STAY_OUT if name not in loaded)}")
    if loaded:
        print(f"loaded, but must not be: {', '.join(sorted(loaded))}", file=sys.stderr)
    return 1 if loaded else 0


def _measure(folder: Path, ledger: str) -> Footprint:
    command = [sys.executable, "-c", _PROBE, str(folder / ledger), *_STAY_OUT]
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / "compiled"), "PYTHONDONTWRITEBYTECODE": ""}
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
    return Footprint(**json.loads(ended.stdout))


if __name__ == "__main__":
    sys.exit(main())

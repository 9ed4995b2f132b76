"""What a process pays for having the ledger: import time and resident memory, in interpreters of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure

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
    opened = time.perf_counter()
    print(json.dumps([(imported - started) * 1000, (opened - imported) * 1000, (resident_kib() - bare) / 1024]))
"""
_FIGURES = (("import", "ms"), ("open a new SQLite ledger", "ms"), ("memory of an idle SQLite ledger", "MiB"))


def measure(rounds: int) -> Iterator[Figure]:
    """Give import time, opening time and memory beyond that of a bare interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        found = [_probed(Path(folder) / f"{number}.db") for number in range(rounds)]
    for number, (name, unit) in enumerate(_FIGURES):
        yield Figure.of(name, "process", "ledger", unit, [values[number] for values in found])


def _probed(database: Path) -> list[float]:
    ended = subprocess.run([sys.executable, "-c", _PROBE, str(database)], stdout=subprocess.PIPE, check=True)
    values: list[float] = json.loads(ended.stdout)
    return values

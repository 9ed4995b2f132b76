"""
Whatever reads a whole ledger: verifying, exporting, rebuilding a view; how fast, and in how much memory.

Each is done in an interpreter of its own, so that its highest memory is known. *Decoded* is what all of them must do at
least: read every row and let pydantic make the payload.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import RATIO, Figure
from benchmarks.places import Dialect

VERIFY: Final = "verify"
EXPORT: Final = "export"
REBUILD: Final = "rebuild"
_VIEWS: Final = ("statistics", "stop_proof")
_WORK: Final[Mapping[str, str]] = {
    VERIFY: """
    report = ledger.verify()
    assert report.clean, report.differences[:3]
    facts = report.facts
""",
    EXPORT: """
    facts = 0
    with open(os.devnull, "w") as out:
        for line in ledger.export_runs():
            out.write(json.dumps(line) + "\\n")
            facts += 1
""",
    **{
        view: f"""
    facts = ledger.rebuild({view!r}).facts
"""
        for view in _VIEWS
    },
    "decoded": """
    from runfacts.domain.payloads import FACT_TYPES
    from runfacts.infrastructure.stores.ordered import SELECT_FACTS_FROM
    facts = position = 0
    while True:
        with ledger.database.reading() as reading:
            rows = reading.rows(SELECT_FACTS_FROM, {"position": position + 1, "limit": 4_000})
        if not rows:
            break
        decoded = [FACT_TYPES[row[3]].model_validate_json(row[13]) for row in rows]
        facts, position = facts + len(decoded), rows[-1][0]
""",
}
_PROBE: Final = """
import json, os, sys, time
from runfacts import Ledger

with Ledger.open(sys.argv[1], busy_timeout_ms=30_000) as ledger:
    ledger.runs(limit=1)
    started = time.perf_counter()
{work}
    seconds = time.perf_counter() - started
with open("/proc/self/status") as status:
    peak_kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
print(json.dumps([facts, seconds, peak_kib]))
"""


@dataclass(frozen=True, slots=True)
class _Done:
    facts_per_s: float
    peak_mib: float


def whole(dialect: Dialect, few: str, many: str) -> Iterator[Figure]:
    """Verify and export a ledger with few and one with many facts."""
    for case in (VERIFY, EXPORT):
        found = {"few": _done(case, few), "many": _done(case, many)}
        for name, done in found.items():
            yield Figure.of(case, f"{dialect}, {name} facts", "ledger", "facts/s", [done.facts_per_s])
        for name, done in found.items():
            yield Figure.of(case, f"{dialect}, {name} facts", "peak memory", "MiB", [done.peak_mib])
        more = found["many"].peak_mib / found["few"].peak_mib
        yield Figure.of(case, dialect, "peak memory, many : few", RATIO, [more])


def rebuilds(dialect: Dialect, url: str, rounds: int) -> Iterator[Figure]:
    """Rebuild the views of a ledger, and read and decode its facts, in turns."""
    rates: dict[str, list[float]] = {name: [] for name in ("decoded", *_VIEWS)}
    for _ in range(rounds):
        for name, found in rates.items():
            found.append(_done(name, url).facts_per_s)
    for name, found in rates.items():
        yield Figure.of(REBUILD, dialect, name, "facts/s", found)
    for view in _VIEWS:
        ratios = [own / other for own, other in zip(rates[view], rates["decoded"], strict=True)]
        yield Figure.of(REBUILD, dialect, f"{view} : decoded", RATIO, ratios)


def _done(name: str, url: str) -> _Done:
    ended = subprocess.run(
        [sys.executable, "-c", _PROBE.format(work=_WORK[name]), url], stdout=subprocess.PIPE, check=True
    )
    facts, seconds, peak_kib = json.loads(ended.stdout)
    return _Done(facts / seconds, peak_kib / 1_024)

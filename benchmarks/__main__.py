"""
The bench's command: ``python -m benchmarks run``, ``baseline``, ``compare`` and ``page``.

``run`` measures (``scripts/bench`` is this). ``baseline FILE`` makes the output of ``run --json`` the committed
baseline, for somebody to review; ``compare FILE`` names what lies beyond the baseline's spread; ``page`` writes the
tables of docs/performance.md from the baseline.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.cases import CASES, Bench, Effort
from benchmarks.figures import Report
from benchmarks.texts import differences, machine, page_tables, table

BASELINE: Final = Path(__file__).with_name("baseline.json")
PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"
_FACTS_MIN: Final = 4_000
_BEGIN: Final = (
    "<!-- Made from benchmarks/baseline.json by `python -m benchmarks page`; changes made here are lost. -->"
)
_END: Final = "<!-- End of what is made. -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say; 0 where it went well, 1 where a page is stale."""
    parser = argparse.ArgumentParser(prog="bench", description="Measures the ledger beside its opponents.")
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run", help="measure")
    run.add_argument("--json", action="store_true", help="print JSON, for baseline and compare")
    run.add_argument("--quick", action="store_true", help="only show that it works, in seconds")
    run.add_argument(
        "--facts", type=int, metavar="N", help="so many facts in the long ledger of trail, a tenth in the short one"
    )
    run.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; all without any")
    for name, what in (("baseline", "make a run the baseline"), ("compare", "compare a run with the baseline")):
        commands.add_parser(name, help=what).add_argument("file", type=Path, help="output of run --json")
    page = commands.add_parser("page", help="write the tables of docs/performance.md")
    page.add_argument("--check", action="store_true", help="write nothing, fail where the page says something else")
    given = parser.parse_args(arguments)
    match given.command:
        case "run":
            if unknown := set(given.cases) - CASES.keys():
                parser.error(f"no such case: {', '.join(sorted(unknown))}")
            if given.facts is not None and given.facts < _FACTS_MIN:
                parser.error(f"--facts takes at least {_FACTS_MIN}")
            _run(given.cases, as_json=given.json, quick=given.quick, facts=given.facts)
        case "baseline":
            return _make_baseline(_read(given.file))
        case "compare":
            for line in differences(_read(BASELINE), _read(given.file)):
                print(line)
        case _:
            return _write_page(check=given.check)
    return 0


def _run(cases: Sequence[str], *, as_json: bool, quick: bool, facts: int | None) -> None:
    # What is measured with other sizes is no baseline either.
    report = Report(machine(), quick or facts is not None)
    effort = Effort.quick() if quick else Effort.full()
    if facts is not None:
        effort = replace(effort, facts=(facts // 10, facts))
    bench = Bench(effort, report, lambda text: print(text, file=sys.stderr, flush=True))
    bench.run(cases or list(CASES))
    print(_text(report) if as_json else "\n".join(table(report)))


def _make_baseline(report: Report) -> int:
    if report.quick:
        print("a quick run is no baseline", file=sys.stderr)
        return 1
    BASELINE.write_text(_text(report) + "\n")
    return _write_page(check=False)


def _write_page(*, check: bool) -> int:
    text = PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    report = _read(BASELINE) if BASELINE.exists() else None
    made = "\n".join([_BEGIN, "", *page_tables(report), "", _END])
    wanted = f"{before}{made}{after}"
    if wanted == text:
        return 0
    if check:
        print("docs/performance.md is not what the baseline gives: run python -m benchmarks page", file=sys.stderr)
        return 1
    PAGE.write_text(wanted)
    return 0


def _read(file: Path) -> Report:
    return Report.from_json(json.loads(file.read_text()))


def _text(report: Report) -> str:
    return json.dumps(report.as_json(), indent=1, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main())

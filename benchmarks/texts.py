"""What the bench says: tables for people, differences from a baseline, and the tables of docs/performance.md."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from benchmarks.figures import Figure, Report
from benchmarks.goals import GOALS, ONE, STEADY, Goal

_THOUSAND: Final = 1_000
_TEN: Final = 10
_PACKAGES: Final = ("eventsourcing", "sqlalchemy", "psycopg", "pydantic")
_TO_BE_FILLED: Final = "to be filled"


def machine() -> dict[str, Any]:
    """Say what the figures were taken on, without naming the machine."""
    return {
        "processors": len(os.sched_getaffinity(0)),
        "architecture": platform.machine(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "postgresql": "18",
        **{name: version(name) for name in _PACKAGES},
    }


def table(report: Report) -> Iterator[str]:
    """Give the lines of a report for people."""
    yield ", ".join(f"{name} {value}" for name, value in report.machine.items())
    if report.quick:
        yield "QUICK: this shows that the bench works; the figures mean nothing"
    case = None
    for figure in report.figures:
        if figure.case != case:
            case = figure.case
            yield ""
            yield case
        spread = f"{_number(figure.low)} to {_number(figure.high)}" if figure.turns > 1 else ""
        value = f"{_number(figure.median):>9} {figure.unit}"
        yield f"  {figure.setting:30} {figure.side:26} {value:20} {spread}".rstrip()
    if report.fsync_us:
        yield ""
        yield "flush of a small append, before and after each case"
    for flush in report.fsync_us:
        yield f"  {flush['case']}, {flush['setting']}: {flush['before_us']} and {flush['after_us']} µs"
    for note in report.notes:
        yield ""
        yield note


def differences(old: Report, new: Report) -> Iterator[str]:
    """Name what is new, gone, or beyond the other's spread."""
    before = {figure.key: figure for figure in old.figures}
    after = {figure.key: figure for figure in new.figures}
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        if was is None:
            yield f"new    {key}: {_number(after[key].median)}"
        elif now is None:
            yield f"gone   {key}: {_number(was.median)}"
        elif not was.low <= now.median <= was.high:
            change = f"{(now.median / was.median - 1) * 100:+5.0f}%" if was.median else "not 0 "
            yield (
                f"{change}  {key}: {_number(now.median)}, was {_number(was.median)}"
                f" ({_number(was.low)} to {_number(was.high)})"
            )


def page_tables(report: Report | None) -> Iterator[str]:
    """Give the tables of the page, in Markdown; without a report they say that they are to be filled."""
    yield from _rows(("figure", "goal", "median", "lowest to highest", "reached"), _goal_rows(report))
    if report is None:
        return
    yield ""
    yield "Taken with " + ", ".join(f"{name} {value}" for name, value in report.machine.items()) + "."
    yield ""
    rows = (
        (figure.case, figure.setting, figure.side, f"{_number(figure.median)} {figure.unit}", _spread(figure))
        for figure in report.figures
    )
    yield from _rows(("case", "where", "who", "median", "lowest to highest"), rows)
    if report.fsync_us:
        times = [flush[when] for flush in report.fsync_us for when in ("before_us", "after_us")]
        yield ""
        yield f"Between the cases the flush of a small append took {min(times):,} to {max(times):,} µs."
    for note in report.notes:
        yield ""
        yield f"{note[0].upper()}{note[1:]}."


def _goal_rows(report: Report | None) -> Iterator[Sequence[str]]:
    found = {} if report is None else {each.key: each for each in report.figures}
    for goal in GOALS:
        figure = found.get(goal.key)
        if figure is None:
            yield goal.name, goal.words, _TO_BE_FILLED, "", ""
        else:
            reached = "yes" if goal.reached_by(figure.median) else "**no**"
            yield goal.name, goal.words, _number(figure.median), _spread(figure), reached
    yield from _scaling_rows(report)
    for steady in STEADY:
        yield _steady_row(steady, found)


def _steady_row(steady: Goal, found: Mapping[str, Figure]) -> Sequence[str]:
    """Compare the rates of one and of more workers, by their medians."""
    few, many = (found.get(steady.key_with(workers)) for workers in ("1 writer", "8 writers"))
    name = f"{steady.case}, {steady.setting}, from 1 to 8 workers, {steady.side}"
    if few is None or many is None:
        return name, steady.words, _TO_BE_FILLED, "", ""
    ratio = many.median / few.median
    return name, steady.words, _number(ratio), "", "yes" if steady.reached_by(ratio) else "**no**"


def _scaling_rows(report: Report | None) -> Iterator[Sequence[str]]:
    """Compare how the ledger's and the hand-written rates change from 4 to 16 writers, by their medians."""
    found = (
        {}
        if report is None
        else {(each.setting, each.side): each.median for each in report.figures if each.case == ONE}
    )
    for where in ("sqlite, disk", "postgresql, disk", "sqlite, RAM disk", "postgresql, RAM disk"):
        name = f"{ONE}, {where}, from 4 to 16 writers, ledger"
        rates = [found.get((f"{where}, {count} writers", side)) for side in ("ledger", "sql") for count in (4, 16)]
        if None in rates:
            yield name, "as sql or better", _TO_BE_FILLED, "", ""
            continue
        few, many, few_by_hand, many_by_hand = (rate or 0.0 for rate in rates)
        own, by_hand = many / few, many_by_hand / few_by_hand
        reached = "yes" if own >= by_hand else "**no**"
        yield name, f"≥ {_number(by_hand)}, as sql", _number(own), "", reached


def _rows(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"| {' | '.join('---' for _ in head)} |"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _spread(figure: Figure) -> str:
    return f"{_number(figure.low)} to {_number(figure.high)}" if figure.turns > 1 else ""


def _number(value: float) -> str:
    if abs(value) >= _THOUSAND:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= _TEN else f"{value:.2f}"

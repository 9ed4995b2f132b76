"""Pages of the audit trail of a long ledger: as the product gives them, and by hand along the index that fits."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks import long_ledgers
from benchmarks.ledger_sides import open_ledger
from benchmarks.turns import Opener
from runfacts.domain.facts import Fact
from runfacts.domain.views import Page
from runfacts.infrastructure.ledger import Ledger

CASE: Final = "page of the audit trail"
PAGE: Final = 100
_PLACES: Final = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Where in the ledger's time the searches begin that ask for a time: before that, nobody and nothing is rare."""
_TYPES: Final = ("run.created", "run.failed", "run.cancel_requested", "run.waiting_approval")


@dataclass(frozen=True, slots=True)
class Search:
    """One kind of search: what is asked for, and how somebody would write it who knows the indexes."""

    names: tuple[str, ...]
    where: str
    """With ``{mark}`` for a parameter, and ``{along}`` before a column whose index SQLite is not to take."""
    order: str


SEARCHES: Final[Mapping[str, Search]] = {
    "run": Search(("run_id",), "run_id = {mark}", "position"),
    "actor": Search(("actor_id",), "actor_id = {mark}", "position"),
    "type": Search(("types",), "type = {mark}", "position"),
    "project": Search(("project",), "project = {mark}", "position"),
    "time": Search(("since_ms",), "recorded_at_ms >= {mark}", "recorded_at_ms, position"),
    **{
        f"{name} and time": Search(
            (asked, "since_ms"),
            f"{{along}}{column} = {{mark}} AND recorded_at_ms >= {{mark}}",
            "recorded_at_ms, position",
        )
        for name, asked, column in (
            ("actor", "actor_id", "actor_id"),
            ("type", "types", "type"),
            ("project", "project", "project"),
        )
    },
}
"""All of them."""


@dataclass(slots=True)
class LedgerPages:
    """The product's pages; a step is one."""

    ledger: Ledger
    search: Search
    runs: int

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        for number in range(steps):
            if not self.page(number).items:
                raise RuntimeError("a page of the bench is empty")
            yield 1

    def page(self, number: int) -> Page[Fact]:
        """Give the page of that number."""
        asked = dict(zip(self.search.names, _values(self.search, number, self.runs), strict=True))
        return self.ledger.facts(**asked, limit=PAGE)

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()


@dataclass(slots=True)
class PagesByHand:
    """The same rows by hand; one more than a page has, to know whether others follow."""

    connection: Any
    text: str
    search: Search
    runs: int

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        for number in range(steps):
            if not self.rows(number):
                raise RuntimeError("a page of the bench is empty")
            yield 1

    def rows(self, number: int) -> Sequence[Sequence[Any]]:
        """Give the rows of the page of that number, and one more."""
        found: list[Sequence[Any]] = self.connection.execute(
            self.text, _values(self.search, number, self.runs)
        ).fetchall()
        return found

    def close(self) -> None:
        """See ``Side``."""
        self.connection.close()


def ledger_pages(name: str, runs: int) -> Opener:
    """Give who opens the product's side."""
    return partial(_open_ledger_pages, name=name, runs=runs)


def pages_by_hand(name: str, runs: int) -> Opener:
    """Give who opens the other one."""
    return partial(_open_pages_by_hand, name=name, runs=runs)


def _open_ledger_pages(url: str, *, name: str, runs: int) -> LedgerPages:
    return LedgerPages(open_ledger(url), SEARCHES[name], runs)


def _open_pages_by_hand(url: str, *, name: str, runs: int) -> PagesByHand:
    search = SEARCHES[name]
    sqlite = url.startswith("sqlite")
    where = search.where.format(mark="?" if sqlite else "%s", along="+" if sqlite else "")
    text = f"SELECT * FROM facts WHERE {where} ORDER BY {search.order} LIMIT {PAGE + 1}"  # noqa: S608 - words of ours
    if sqlite:
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        import psycopg

        connection = psycopg.connect(url, autocommit=True)
    return PagesByHand(connection, text, search, runs)


def _values(search: Search, number: int, runs: int) -> Sequence[Any]:
    """Give what the search of that number asks for: another thing each time."""
    at_ms = long_ledgers.BEGAN_MS + int(_PLACES[number % len(_PLACES)] * runs) * long_ledgers.RUN_EVERY_MS
    found = {
        "run_id": long_ledgers.run_id_of(number * 7_919 % runs),
        "actor_id": long_ledgers.ACTORS[number % len(long_ledgers.ACTORS)],
        "types": _TYPES[number % len(_TYPES)],
        "project": long_ledgers.PROJECTS[number % len(long_ledgers.PROJECTS)],
        "since_ms": at_ms,
    }
    return [found[name] for name in search.names]

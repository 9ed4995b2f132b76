"""
Cases: what is measured, and where.

Every case gives figures to a report. The cases that depend on flushes run on a disk and on a RAM disk; the flush
itself is timed before and after each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from benchmarks import (
    backlogs,
    crowds,
    delivery_sides,
    delivery_sql,
    edge,
    footprint,
    idle,
    ledger_sides,
    long_ledgers,
    long_reads,
    reaction,
    reading_sides,
    recorder_sides,
    recovery_sides,
    recovery_sql,
    sizes,
    sql_sides,
    trail_sides,
)
from benchmarks.figures import Figure, Report, figures_of_turns
from benchmarks.places import RAM_DISK, Dialect, Place
from benchmarks.turns import Entry, Turns, take_turns

_SHORTER: Final = 4
"""Turns of deliveries are so many times shorter: each step takes a Run of its own, which must be made before."""
_DRAINING: Final = 4
"""Who drain a backlog together."""
_DRAINED_S: Final = 3_600
"""When a backlog is given up that will not end."""
DIALECTS: Final[tuple[Dialect, ...]] = ("sqlite", "postgresql")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int
    seconds: float
    writers: tuple[int, ...]
    disk: bool
    runs: int
    """Runs of which the size is taken."""
    workers: tuple[int, ...]
    """Who deliver at the same time; only the first of these on SQLite, which has one writer."""
    crowd: tuple[int, int]
    """How many finished Runs are few, and how many are many."""
    requests: int
    """Requests whose way to the process is timed."""
    backlog: int
    """Attempts under expired leases, to be drained."""
    facts: tuple[int, int]
    """How many facts of a long ledger are few, and how many are many."""

    @classmethod
    def full(cls) -> Effort:
        """What a baseline is made of: about twenty minutes."""
        return cls(
            rounds=7,
            seconds=0.5,
            writers=(1, 4, 16),
            disk=True,
            runs=1_000,
            workers=(1, 8),
            crowd=(1_000, 1_000_000),
            requests=51,
            backlog=10_000,
            facts=(100_000, 1_000_000),
        )

    @classmethod
    def quick(cls) -> Effort:
        """Shows that everything works: its figures mean nothing."""
        return cls(
            rounds=1,
            seconds=0.02,
            writers=(2,),
            disk=False,
            runs=3,
            workers=(2,),
            crowd=(1_000, 5_000),
            requests=1,
            backlog=200,
            facts=(400, 4_000),
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a case is measured."""

    place: Place
    dialect: Dialect
    writers: int

    @property
    def name(self) -> str:
        """The setting in words."""
        return f"{self.dialect}, {self.place.name}, {self.writers} writer{'s' if self.writers > 1 else ''}"


@dataclass(slots=True)
class Bench:
    """One run of the bench."""

    effort: Effort
    report: Report
    say: Callable[[str], None]
    disk: Place = field(init=False)
    ram: Place = field(init=False)
    """The disk again where there is no RAM disk."""
    places: list[Place] = field(init=False)
    """Where cases run that depend on flushes."""

    def run(self, names: Sequence[str]) -> None:
        """Run these cases, in the order of ``CASES``."""
        with ExitStack() as stack:
            self.disk = stack.enter_context(Place.opened("disk"))
            if RAM_DISK.is_dir():
                self.ram = stack.enter_context(Place.opened("RAM disk", RAM_DISK))
            else:
                self._note("there is no RAM disk at /dev/shm")
                self.ram = self.disk
            self.places = [self.ram, self.disk] if self.effort.disk and self.ram is not self.disk else [self.ram]
            for name, case in CASES.items():
                if name in names:
                    case(self)
        cases = list(dict.fromkeys(figure.case for figure in self.report.figures))
        self.report.figures.sort(key=lambda figure: cases.index(figure.case))

    def one_fact(self) -> None:
        """A one-fact command against hand-written SQL and the library's recorder."""
        for place in self.places:
            for dialect in DIALECTS:
                self._one_fact(place, dialect)

    def lives(self) -> None:
        """Whole lives of Runs."""
        for place in self.places:
            for dialect in DIALECTS:
                for writers in self.effort.writers:
                    entry = Entry("ledger", ledger_sides.lives, place.ledger_database(dialect))
                    self._turns("whole life", Setting(place, dialect, writers), [entry], "runs/s")

    def replay(self) -> None:
        """Reading and replaying against reading and decoding alone."""
        for dialect in DIALECTS:
            entries = [
                Entry("replayed", reading_sides.replayed, self.ram.ledger_database(dialect)),
                Entry("decoded", reading_sides.decoded, self.ram.ledger_database(dialect)),
            ]
            self._turns("replay", Setting(self.ram, dialect, 1), entries, "facts/s")

    def trail(self) -> None:
        """Pages of the audit trail, verifications, exports and rebuilds of long ledgers."""
        place = self.ram
        few, many = self.effort.facts
        for dialect in DIALECTS:
            urls = {"few": place.ledger_database(dialect), "many": place.ledger_database(dialect)}
            for (name, url), count in zip(urls.items(), (few, many), strict=True):
                self.say(f"long ledger, {dialect}, {name}: {count:,} facts")
                runs = long_ledgers.fill(url, count)
            self._searches(place, dialect, urls["many"], runs)
            self.say(f"whole ledgers, {dialect}")
            self.report.figures += long_reads.whole(dialect, urls["few"], urls["many"])
            self.report.figures += long_reads.rebuilds(dialect, urls["few"], min(3, self.effort.rounds))
            # They are gigabytes.
            for url in urls.values():
                place.remove(url)

    def claims(self) -> None:
        """Cancellations claimed and settled, against hand-written SQL."""
        for place in self.places:
            for dialect in DIALECTS:
                for workers in self.effort.workers if dialect == "postgresql" else self.effort.workers[:1]:
                    entries = [
                        Entry("ledger", delivery_sides.pairs, place.ledger_database(dialect)),
                        Entry("sql", delivery_sql.pairs, place.ledger_database(dialect)),
                    ]
                    self._turns("claim and settle", Setting(place, dialect, workers), entries, "pairs/s", _SHORTER)

    def crowd(self) -> None:
        """Claims, and pages of what is due, with few and with many finished Runs in the tables."""
        few, many = self.effort.crowd
        place = self.ram
        for dialect in DIALECTS:
            # Many and few, whatever the numbers: the figures keep their names.
            urls = {"many": place.ledger_database(dialect), "few": place.ledger_database(dialect)}
            for (name, url), count in zip(urls.items(), (many, few), strict=True):
                self.say(f"crowd, {dialect}, {name}: {count:,} runs")
                crowds.fill(url, count)
            setting = Setting(place, dialect, 1)
            for case, opener, unit in (
                ("page of due dispatches", delivery_sides.due_pages, "pages/s"),
                ("claim in a crowd", delivery_sides.claims, "claims/s"),
                (recovery_sides.LOOKED_FOR, recovery_sides.discoveries, "pages/s"),
                (recovery_sides.CLAIMED, recovery_sides.claimed_pages, "pages/s"),
            ):
                entries = [Entry(name, opener, url) for name, url in urls.items()]
                self._turns(case, setting, entries, unit, _SHORTER)
            # They are gigabytes.
            for url in urls.values():
                place.remove(url)

    def recovery(self) -> None:
        """Attempts declared lost, against hand-written SQL, and a backlog of them drained."""
        for place in self.places:
            for dialect in DIALECTS:
                entries = [
                    Entry("ledger", recovery_sides.losses, place.ledger_database(dialect)),
                    Entry("sql", recovery_sql.losses, place.ledger_database(dialect)),
                ]
                self._turns(recovery_sides.LOST, Setting(place, dialect, 1), entries, "pairs/s", _SHORTER)
        for dialect in DIALECTS:
            self._drain(dialect)

    def reaction(self) -> None:
        """From a request to the signal."""
        place = self.places[-1]
        for dialect in DIALECTS:
            for measured in (reaction.in_one_process, reaction.in_two_processes):
                self.say(f"reaction, {dialect}, {measured.__name__.replace('_', ' ')}")
                self.report.figures += measured(place.ledger_database(dialect), self.effort.requests)

    def idle(self) -> None:
        """Supervisors that have nothing to do."""
        self.say("idle")
        self.report.figures += idle.measure(self.ram.ledger_database("sqlite"), self.effort.runs)

    def size(self) -> None:
        """Bytes written and kept."""
        for dialect in DIALECTS:
            self.say(f"size, {dialect}")
            self.report.figures += sizes.measure(self.ram, dialect, self.effort.runs)

    def footprint(self) -> None:
        """Import time and memory."""
        self.say("footprint")
        self.report.figures += footprint.measure(self.effort.rounds)

    def edge(self) -> None:
        """A small machine."""
        self.say("edge")
        database = self.disk.ledger_database("sqlite")
        figures, notes = edge.measure(database, self.effort.rounds, self.effort.seconds)
        self.report.figures += figures
        for note in notes:
            self._note(note)

    def _searches(self, place: Place, dialect: Dialect, url: str, runs: int) -> None:
        """Take turns at all kinds of pages, in one worker."""
        setting = Setting(place, dialect, 1)
        self.say(f"{trail_sides.CASE}, {setting.name}")
        entries = [
            Entry(f"{side}, {name}", opened(name, runs), url)
            for name in trail_sides.SEARCHES
            for side, opened in (("ledger", trail_sides.ledger_pages), ("by hand", trail_sides.pages_by_hand))
        ]
        rates = take_turns(entries, Turns(self.effort.rounds, self.effort.seconds / _SHORTER, 1))
        for name in trail_sides.SEARCHES:
            pair = {side: rates[f"{side}, {name}"] for side in ("ledger", "by hand")}
            self.report.figures += figures_of_turns(
                f"{trail_sides.CASE}, {name}", setting.name, "pages/s", pair, ["by hand"]
            )

    def _drain(self, dialect: Dialect) -> None:
        """Let workers drain a backlog until it is gone: all of it is one turn."""
        setting = Setting(self.ram, dialect, _DRAINING)
        self.say(f"{recovery_sides.DRAINED}, {setting.name}")
        url = self.ram.ledger_database(dialect)
        backlogs.fill(url, self.effort.backlog)
        (rates,) = take_turns(
            [Entry("ledger", recovery_sides.drain, url)], Turns(rounds=1, seconds=_DRAINED_S, writers=_DRAINING)
        ).values()
        for unit, parts in (("items/s", 1), ("items/s per worker", _DRAINING)):
            self.report.figures.append(
                Figure.of(recovery_sides.DRAINED, setting.name, "ledger", unit, [rate / parts for rate in rates])
            )
        self.ram.remove(url)

    def _one_fact(self, place: Place, dialect: Dialect) -> None:
        for writers in self.effort.writers:
            setting = Setting(place, dialect, writers)
            events = place.empty_database(dialect)
            recorder_sides.create_tables(events)
            entries = [
                Entry("ledger", ledger_sides.one_fact, place.ledger_database(dialect)),
                Entry("sql", sql_sides.one_fact, place.ledger_database(dialect)),
                Entry("recorder", recorder_sides.saving, events),
            ]
            self._turns("one-fact command", setting, entries, "commits/s")
            entries = [
                Entry("ledger, facts read", ledger_sides.one_fact_cold, place.ledger_database(dialect)),
                Entry("sql", sql_sides.one_fact, place.ledger_database(dialect)),
            ]
            self._turns("one-fact command, history not kept", setting, entries, "commits/s")

    def _turns(self, case: str, setting: Setting, entries: Sequence[Entry], unit: str, shorter: int = 1) -> None:
        self.say(f"{case}, {setting.name}")
        before = setting.place.flush_us()
        rates = take_turns(entries, Turns(self.effort.rounds, self.effort.seconds / shorter, setting.writers))
        after = setting.place.flush_us()
        self.report.fsync_us.append(
            {"case": case, "setting": setting.name, "before_us": round(before), "after_us": round(after)}
        )
        self.report.figures += figures_of_turns(case, setting.name, unit, rates, [entry.name for entry in entries[1:]])

    def _note(self, note: str) -> None:
        if note not in self.report.notes:
            self.report.notes.append(note)


CASES: Final[Mapping[str, Callable[[Bench], None]]] = {
    "one-fact": Bench.one_fact,
    "lives": Bench.lives,
    "replay": Bench.replay,
    "trail": Bench.trail,
    "claims": Bench.claims,
    "crowd": Bench.crowd,
    "recovery": Bench.recovery,
    "reaction": Bench.reaction,
    "idle": Bench.idle,
    "size": Bench.size,
    "footprint": Bench.footprint,
    "edge": Bench.edge,
}
"""The cases by name."""

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

from benchmarks import edge, footprint, ledger_sides, reading_sides, recorder_sides, sizes, sql_sides
from benchmarks.figures import Report, figures_of_turns
from benchmarks.places import RAM_DISK, Dialect, Place
from benchmarks.turns import Entry, Turns, take_turns

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

    @classmethod
    def full(cls) -> Effort:
        """What a baseline is made of: about ten minutes."""
        return cls(rounds=7, seconds=0.5, writers=(1, 4, 16), disk=True, runs=1_000)

    @classmethod
    def quick(cls) -> Effort:
        """Shows that everything works: its figures mean nothing."""
        return cls(rounds=1, seconds=0.02, writers=(2,), disk=False, runs=3)


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

    def _turns(self, case: str, setting: Setting, entries: Sequence[Entry], unit: str) -> None:
        self.say(f"{case}, {setting.name}")
        before = setting.place.flush_us()
        rates = take_turns(entries, Turns(self.effort.rounds, self.effort.seconds, setting.writers))
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
    "size": Bench.size,
    "footprint": Bench.footprint,
    "edge": Bench.edge,
}
"""The cases by name."""

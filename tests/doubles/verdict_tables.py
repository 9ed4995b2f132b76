"""Decision tables written by hand: every combination of their columns is in exactly one line.

A line says what each column is, and after ``=>`` what is expected. A cell is ``*`` for anything, a value, several with
commas between them, or the name of a group of values in capitals. That no two lines meet makes their order mean
nothing: a table is no program, and cannot repeat the one under test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

Case = dict[str, str]


@dataclass
class Line:
    """One line of a table."""

    text: str
    cells: Mapping[str, frozenset[str]]
    expected: str

    def covers(self, case: Case) -> bool:
        """Whether a case is this line's."""
        return all(value in self.cells[name] for name, value in case.items())


class Table:
    """A table over all combinations of its columns."""

    def __init__(self, columns: Mapping[str, Sequence[str]], groups: Mapping[str, str], text: str) -> None:
        self.columns = {name: tuple(values) for name, values in columns.items()}
        self.groups = groups
        self.lines = [self._line(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]

    def _line(self, text: str) -> Line:
        left, _, expected = text.partition("=>")
        cells = left.split()
        assert len(cells) == len(self.columns), f"{len(cells)} cells in: {text}"
        pairs = zip(self.columns.items(), cells, strict=True)
        return Line(
            text, {name: self._values(values, cell) for (name, values), cell in pairs}, " ".join(expected.split())
        )

    def _values(self, allowed: tuple[str, ...], cell: str) -> frozenset[str]:
        if cell == "*":
            return frozenset(allowed)
        named = ",".join(self.groups.get(part, part) for part in cell.split(","))
        values = frozenset(named.split(","))
        assert values <= set(allowed), f"{cell} is none of {allowed}"
        return values

    def cases(self, **fixed: str) -> Iterator[tuple[Case, str]]:
        """Give every combination with what the one line that covers it expects."""
        free = {name: ((fixed[name],) if name in fixed else values) for name, values in self.columns.items()}
        near = [line for line in self.lines if all(value in line.cells[name] for name, value in fixed.items())]
        for values in product(*free.values()):
            case = dict(zip(free, values, strict=True))
            found = [line for line in near if line.covers(case)]
            assert len(found) == 1, f"{case} is in {len(found)} lines: {[line.text for line in found]}"
            yield case, found[0].expected

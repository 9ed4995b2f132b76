"""The project's pages, as the tests of documents read them: blocks of code, headings, links and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = tuple(page for place in ("*.md", "docs/**/*.md", "examples/*/*.md") for page in sorted(ROOT.glob(place)))

_FENCED = re.compile(r"^```([a-z]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    page: Path
    line: int
    """The line of the page on which its first line stands."""
    text: str
    language: str = "python"

    @property
    def name(self) -> str:
        """Where it stands, to name it in a test's id."""
        return f"{self.page.name}:{self.line}"

    @property
    def has_tests(self) -> bool:
        """Whether it is for pytest rather than to be run as it is."""
        return re.search(r"^def test_|^@pytest\.|^# conftest\.py", self.text, re.MULTILINE) is not None

    def run(self, namespace: dict[str, object]) -> None:
        """Run it; errors name the page and its lines."""
        code = compile("\n" * (self.line - 1) + self.text, str(self.page), "exec")
        exec(code, namespace)  # noqa: S102 - the examples of our own pages


def blocks(page: Path) -> Sequence[Block]:
    """Give a page's blocks, from top to bottom."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start(2)) + 1, found[2], found[1]) for found in _FENCED.finditer(text)
    ]


def python_blocks(page: Path) -> Sequence[Block]:
    """Give a page's blocks of Python, from top to bottom."""
    return [block for block in blocks(page) if block.language == "python"]


def prose(page: Path) -> str:
    """Give a page without its blocks of code."""
    return _FENCED.sub("", page.read_text())


def links(page: Path) -> Iterator[str]:
    """Give the targets of a page's links."""
    return (found[1] for found in _LINK.finditer(prose(page)))


def anchors(page: Path) -> set[str]:
    """Give the anchors of a page's headings, as forges make them."""
    return {_anchor(found[1]) for found in _HEADING.finditer(prose(page))}


def section(page: Path, heading: str) -> str:
    """Give what stands below a heading, to the next one of the same level or higher."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", page.read_text(), re.MULTILINE)
    if found is None:
        raise LookupError(f"{page.name} has no heading {heading!r}")
    rest = page.read_text()[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest if following is None else rest[: following.start()]


def rows(text: str) -> Iterator[list[str]]:
    """Give the cells of every row of the tables in a text, without heads."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        is_row = line.strip().startswith("|") and not set(line) <= set("|- ")
        is_head = number + 1 < len(lines) and set(lines[number + 1].strip()) in ({"|", "-"}, {"|", "-", " "})
        if is_row and not is_head:
            yield cells


def _anchor(heading: str) -> str:
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")

"""
Every block of the guide is run, and what a chapter shows of its output is compared (R15).

A chapter is one session in an empty folder: one shell for its console blocks and one Python for its blocks of Python. A
``text`` block is what the Python above it prints. A block that names a file is that file.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from pages import ROOT, Block, blocks, links
from runfacts.testing.postgres import PostgresServer
from terminal import Terminal, commands, is_shown

GUIDE = ROOT / "docs" / "guide"
CONTENTS = ROOT / "docs" / "guide.md"
PRODUCTION = GUIDE / "production.md"
# Each command starts an interpreter, which takes its time on a machine that is busy.
pytestmark = pytest.mark.timeout(600)

CHAPTERS = sorted(GUIDE.glob("*.md"))
LANGUAGES = {"console", "python", "text"}


class Session:
    """What a reader has: a folder, a terminal, and a Python."""

    def __init__(self, terminal: Terminal, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.terminal, self.folder, self.capsys = terminal, folder, capsys
        self.module = ModuleType("guide")
        self.printed = ""

    def enter(self, block: Block) -> None:
        """Do what the block says; AssertionError where the page shows something else."""
        match block.language:
            case "console":
                for command, shown in commands(block.text):
                    printed = self.terminal.run(command)
                    assert is_shown(shown, printed), f"{block.name}: $ {command}\n{printed}"
            case "python" if (name := file_of(block)) is not None:
                (self.folder / name).write_text(block.text)
            case "python":
                self.capsys.readouterr()
                block.run(vars(self.module))
                self.printed = self.capsys.readouterr().out
            case _:
                assert is_shown(block.text, self.printed), f"{block.name}:\n{self.printed}"
                self.printed = ""


def file_of(block: Block) -> str | None:
    """Give the file that the first line of a block names."""
    first = block.text.partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") and first.endswith(".py") else None


def environment(home: Path) -> dict[str, str]:
    """Give the environment of a reader: the command on the path, nothing set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RUNFACTS_", "XDG_", "PG"))}
    return kept | {
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "COLUMNS": "200",
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which Python works too."""
    empty = tmp_path / "guide"
    empty.mkdir()
    monkeypatch.chdir(empty)
    return empty


@pytest.mark.parametrize("chapter", [page for page in CHAPTERS if page != PRODUCTION], ids=lambda page: page.stem)
def test_a_chapter_does_and_shows_what_it_says(
    chapter: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Terminal(folder, environment(folder.parent)) as terminal:
        session = Session(terminal, folder, capsys)
        # A module that can be imported: eventsourcing finds the classes of stored events by their module's name.
        monkeypatch.setitem(sys.modules, "guide", session.module)
        for block in blocks(chapter):
            session.enter(block)


def test_the_chapter_on_production_works_on_every_postgresql(
    postgres: PostgresServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    superuser = postgres.url("postgres")
    # Where the page names its server, this one is meant.
    here = f"@/runfacts?{superuser.partition('?')[2]}"
    try:
        with Terminal(folder, environment(folder.parent)) as terminal:
            session = Session(terminal, folder, capsys)
            for block in blocks(PRODUCTION):
                text = block.text.replace("@db.internal/runfacts", here)
                if block.language == "sql":
                    with psycopg.connect(superuser, autocommit=True) as connection:
                        for statement in text.split(";\n"):
                            connection.execute(statement.encode())
                else:
                    session.enter(Block(block.page, block.line, text, block.language))
    finally:
        with psycopg.connect(superuser, autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS runfacts WITH (FORCE)")
            connection.execute("DROP ROLE IF EXISTS runfacts_owner, runfacts_app")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda page: page.stem)
def test_a_chapter_has_no_block_that_is_not_run(chapter: Path) -> None:
    assert {block.language for block in blocks(chapter)} <= LANGUAGES | ({"sql"} if chapter == PRODUCTION else set())


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda page: page.stem)
def test_every_chapter_is_in_the_contents(chapter: Path) -> None:
    assert f"guide/{chapter.name}" in set(links(CONTENTS))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a … c\n", "a b c\n", True),
        ("a … c\n", "a b d\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nb\nc\n", False),
        ("", "unexpected\n", False),
        ("a\n", "a   \n", True),
        ("a\n", "", False),
    ],
)
def test_what_is_shown_is_compared(shown: str, printed: str, same: bool) -> None:  # noqa: FBT001 - a column of the table
    assert is_shown(shown, printed) is same

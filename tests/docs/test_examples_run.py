"""
Every block of Python on the project's pages is run as it stands.

A page's blocks are one session, from top to bottom. ``docs/api.md`` runs on every database (its ``url``); blocks that
hold tests are given to pytest, as a reader would. The chapters of the guide are in test_the_guide.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from pages import PAGES, ROOT, Block, python_blocks
from runfacts.infrastructure.database.statements import read_sql

API = ROOT / "docs" / "api.md"
TESTING = ROOT / "docs" / "testing.md"
GUIDE = ROOT / "docs" / "guide"
OTHERS = [page for page in PAGES if page not in {API, TESTING} and page.parent != GUIDE and python_blocks(page)]


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.name)
def test_a_pages_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A module that can be imported: eventsourcing finds the classes of stored events by their module's name.
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in python_blocks(page):
        assert not block.has_tests, f"{block.name} has tests: only docs/testing.md may"
        block.run(vars(module))


def test_the_readmes_example_prints_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = python_blocks(ROOT / "README.md")
    block.run({"__name__": "example"})
    assert capsys.readouterr().out.splitlines() == [
        "1 run.created ana",
        "2 run.queued ana",
        "3 run.dispatching ana",
        "4 attempt.claimed ana",
        "5 attempt.starting ana",
        "6 attempt.running ana",
        "7 run.running ana",
        "8 attempt.succeeded ana",
        "9 run.succeeded ana",
    ]


def test_the_guide_to_the_api_runs_on_every_database(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where the logs of commands lie whose ledger is on a server.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if database_url.startswith("postgresql"):
        # Real leases pass on this page, so time must.
        with psycopg.connect(database_url, autocommit=True) as connection:
            now = read_sql("now.postgresql.sql").replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
            connection.execute(now.encode())
    namespace: dict[str, object] = {"__name__": "example", "url": database_url}
    for block in python_blocks(API):
        block.run(namespace)


def test_the_examples_of_the_testing_guide_pass(tmp_path: Path) -> None:
    blocks = python_blocks(TESTING)
    assert any(block.has_tests for block in blocks)
    # A block that names a file is that file; the others are one file of tests, from top to bottom.
    files: dict[str, list[Block]] = {}
    for block in blocks:
        first = block.text.partition("\n")[0]
        name = first.removeprefix("# ") if first.startswith("# ") and first.endswith(".py") else "test_examples.py"
        files.setdefault(name, []).append(block)
    for name, parts in files.items():
        (tmp_path / name).write_text("\n\n".join(part.text for part in parts))
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout

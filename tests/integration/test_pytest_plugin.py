"""The database fixtures: every kind of database, fresh for each test, with a clock that tests can move (R5.1, R5.4)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from runfacts.testing.clock import EPOCH_MS
from runfacts.testing.postgres import PostgresServer, database_name

SEEN: list[str] = []


@pytest.mark.parametrize("round_", [1, 2])
def test_every_test_gets_a_database_of_its_own(database_url: str, round_: int) -> None:
    assert database_url not in SEEN, round_
    SEEN.append(database_url)


def test_a_postgresql_database_has_the_schema_and_a_clock_that_stands_still(database_url: str) -> None:
    if database_url.startswith("sqlite:"):
        # A SQLite ledger makes its schema when it is opened.
        assert not Path(database_url.removeprefix("sqlite:///")).exists()
        return
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert connection.execute("SELECT runfacts_now_ms(), count(*) FROM facts").fetchone() == (EPOCH_MS, 0)
        connection.execute("UPDATE runfacts_test_clock SET now_ms = now_ms + 5")
        assert connection.execute("SELECT runfacts_now_ms()").fetchone() == (EPOCH_MS + 5,)


def test_a_database_is_dropped_after_its_test(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(
        "import pytest\n"
        "from runfacts.testing.postgres import PostgresServer\n"
        "@pytest.fixture(scope='session', autouse=True)\n"
        "def afterwards(postgres_18):\n"
        "    yield\n"
        "    import psycopg\n"
        "    with psycopg.connect(postgres_18.url('postgres')) as connection:\n"
        "        names = [name for (name,) in connection.execute('SELECT datname FROM pg_database')]\n"
        "    print('left', sum(name.startswith('test_') for name in names))\n"
        "def test_one(database_url): pass\n"
    )
    ended = run_pytest(tmp_path, "-s", "-k", "18")
    assert "1 passed" in ended.stdout
    # The template alone; its server goes with the session.
    assert "left 1\n" in ended.stdout


def test_a_users_test_runs_once_per_database(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text("def test_one(database_url):\n    assert '://' in database_url\n")
    ended = run_pytest(tmp_path, "-v")
    assert re.findall(r"test_one\[(.*?)\] PASSED", ended.stdout) == ["sqlite", "postgresql-16", "postgresql-18"]


def test_a_users_own_fixture_of_the_same_name_wins(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def database_url(): return 'mine'\n"
        "def test_one(database_url): assert database_url == 'mine'\n"
    )
    assert "1 passed" in run_pytest(tmp_path).stdout


def test_both_servers_serve_a_session_until_its_end(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    assert database_name(url).startswith("test_")
    postgres.drop_database(url)
    assert postgres.pid() is not None


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A session as a user has it: another folder, the installed plugin, no configuration of ours."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(folder)],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )

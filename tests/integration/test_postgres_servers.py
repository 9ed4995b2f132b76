"""The servers that tests run on: as fast, as private and as short-lived as they promise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from runfacts.testing import postgres_binaries
from runfacts.testing.postgres import PostgresServer, PostgresUnavailable, PostgresVersion, database_name

DEADLINE_S = 30


def ask(url: str, question: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return row[0]


def folder_of(server: PostgresServer) -> Path:
    return Path(parse_qs(urlsplit(server.url("postgres")).query)["host"][0])


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_there(pid: int) -> bool:
    try:
        # A zombie is over, even where nobody reaps it.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("version", [16, 18])
def test_a_server_is_of_the_version_asked_for(version: PostgresVersion, request: pytest.FixtureRequest) -> None:
    server: PostgresServer = request.getfixturevalue(f"postgres_{version}")
    number = ask(server.url("postgres"), "SELECT current_setting('server_version_num')::int / 10000")
    assert (server.version, number) == (version, version)


def test_a_server_listens_on_no_network(postgres: PostgresServer) -> None:
    assert ask(postgres.url("postgres"), "SHOW listen_addresses") == ""


def test_commits_are_synchronous_since_the_product_insists_on_it(postgres: PostgresServer) -> None:
    assert ask(postgres.url("postgres"), "SHOW synchronous_commit") == "on"


def test_texts_are_utf8_and_sort_alike_everywhere(postgres: PostgresServer) -> None:
    assert ask(postgres.url("postgres"), "SHOW server_encoding") == "UTF8"
    assert ask(postgres.url("postgres"), "SELECT datcollate FROM pg_database WHERE datname = 'postgres'") == "C.UTF-8"


def test_a_copy_has_what_its_template_has_and_changes_nothing_there(postgres: PostgresServer) -> None:
    template = postgres.create_database()
    with psycopg.connect(template, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept (number int)")
        connection.execute("INSERT INTO kept VALUES (7)")
    copy = postgres.create_database(database_name(template))
    with psycopg.connect(copy, autocommit=True) as connection:
        connection.execute("UPDATE kept SET number = 8")
    assert (ask(template, "SELECT number FROM kept"), ask(copy, "SELECT number FROM kept")) == (7, 8)
    postgres.drop_database(copy)
    postgres.drop_database(template)


def test_dropping_a_database_ends_the_sessions_in_it(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    with psycopg.connect(url) as connection:
        postgres.drop_database(url)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)


def test_dropping_a_database_twice_does_no_harm(postgres: PostgresServer) -> None:
    url = postgres.create_database()
    postgres.drop_database(url)
    postgres.drop_database(url)


@pytest.mark.parametrize("version", [16, 18])
def test_what_was_committed_survives_a_crash_and_what_was_not_does_not(version: PostgresVersion) -> None:
    with PostgresServer.start(version) as server:
        url = server.create_database()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept (number int)")
            connection.execute("INSERT INTO kept VALUES (1)")
            connection.execute("BEGIN")
            connection.execute("INSERT INTO kept VALUES (2)")
            server.stop_immediately()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("COMMIT")
        assert server.pid() is None
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url)
        server.restart()
        assert ask(url, "SELECT array_agg(number) FROM kept") == [1]


def test_a_server_that_was_stopped_goes_on_under_the_same_urls() -> None:
    with PostgresServer.start(18) as server:
        url = server.create_database()
        server.stop()
        server.stop()
        assert server.pid() is None
        server.restart()
        assert ask(url, "SELECT 1") == 1


def test_a_running_server_restarts_as_another_process() -> None:
    with PostgresServer.start(16) as server:
        before = server.pid()
        server.restart()
        after = server.pid()
        assert None not in (before, after)
        assert before != after


def test_closing_leaves_neither_process_nor_folder() -> None:
    server = PostgresServer.start(18)
    pid, folder = server.pid(), folder_of(server)
    server.close()
    server.close()
    assert pid is not None
    assert not is_there(pid)
    assert not folder.exists()


def test_a_stopped_server_is_closed_without_a_signal_to_anybody() -> None:
    server = PostgresServer.start(16)
    folder = folder_of(server)
    server.stop()
    # A crash leaves such a file behind; the number is this very process's by now.
    (folder / "data" / "postmaster.pid").write_text(f"{os.getpid()}\n")
    assert server.pid() is None
    server.close()
    assert not folder.exists()


def test_a_server_ends_with_a_test_process_that_is_killed() -> None:
    program = (
        "import sys\n"
        "from runfacts.testing.postgres import PostgresServer\n"
        "server = PostgresServer.start(18)\n"
        "print(server.pid(), server.url('postgres'), flush=True)\n"
        "sys.stdin.read()\n"  # ends with this process
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, url = owner.stdout.readline().split()
        assert ask(url, "SELECT 1") == 1
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    folder = Path(parse_qs(urlsplit(url).query)["host"][0])
    assert eventually(lambda: not is_there(int(pid)))
    assert eventually(lambda: not folder.exists())


def test_a_forked_child_that_lives_on_neither_ends_the_server_nor_delays_its_end() -> None:
    program = (
        "import os, signal\n"
        "from runfacts.testing.postgres import PostgresServer\n"
        "server = PostgresServer.start(18)\n"
        "if (first := os.fork()) == 0:\n"
        "    raise SystemExit\n"  # runs what is registered for the end of the process
        "os.waitpid(first, 0)\n"
        "assert server.pid() is not None\n"
        "if (second := os.fork()) == 0:\n"
        "    signal.pause()\n"
        "server.close()\n"
        "os.kill(second, signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE_S)


def test_a_server_starts_where_user_namespaces_are_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_binaries, "_USER_NAMESPACE", ("false",))
    with PostgresServer.start(18) as server:
        assert ask(server.create_database(), "SELECT 1") == 1


def test_a_server_starts_where_nobody_can_reach_the_installed_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_binaries, "_USER_NAMESPACE", ("false",))
    works = postgres_binaries._works
    monkeypatch.setattr(postgres_binaries, "_works", lambda command, user=None: user is None and works(command))
    with PostgresServer.start(16) as server:
        assert ask(server.create_database(), "SELECT 1") == 1


def test_a_missing_installation_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_binaries, "_PACKAGE", "no_such_package")
    with pytest.raises(PostgresUnavailable, match=r"pip install 'runfacts\[testing\]'"):
        PostgresServer.start(18)

"""
Bad input and broken databases: the right exit code and ``error.code``, one clear line, no traceback, nothing written.

A full disk is made in two ways: SQLite's own page limit (``PRAGMA max_page_count``), which it reports as a full disk,
and a limit on the size of files (``RLIMIT_FSIZE``), which is an error of the system below it.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.pool import Pool

from runfacts import Actor, DatabaseBusy, DatabaseFull, DatabaseUnreachable, Ledger, RunNotFound
from runfacts.infrastructure.database.opening import connect
from runfacts.testing.postgres import PostgresServer
from told import Said, Told, apart

NOBODY = str(uuid.UUID(int=0))

# root may write whatever a file's mode says, unless it is without this capability.
WITHOUT_OVERRIDE = (
    sys.executable,
    "-c",
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1); os.execv(sys.argv[1], sys.argv[1:])",
)
SMALL_FILES = ("sh", "-c", 'ulimit -f 64; exec "$@"', "sh")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger file with one run, which the command uses."""
    path = tmp_path / "ledger.db"
    monkeypatch.setenv("RUNFACTS_DB", f"sqlite:///{path}")
    with Ledger.open(f"sqlite:///{path}") as ledger:
        ledger.create(actor=Actor.user("ana"), task="there before")
    return path


def refused(said: Said, exit_code: int, code: str) -> str:
    """Check a refusal that was asked for with ``--json``; its message."""
    (line,) = said.err.splitlines()
    error = said.json["error"]
    assert (said.code, error["code"], set(error)) == (exit_code, code, {"code", "message"})
    assert line == f"runfacts: {error['message']}"
    return line


def refused_exec(said: Said, code: str) -> str:
    """Check a refusal of ``exec`` before its run was made: everything is on stderr, and the exit code is 125."""
    line, last = said.err.splitlines()
    assert (said.code, said.out, json.loads(last)["error"]["code"]) == (125, "", code)
    return line


@pytest.mark.parametrize("command", [("show",), ("audit",), ("verify",), ("verify", "--heads")])
def test_an_unknown_run_is_not_found(ledger_told: Told, command: tuple[str, ...]) -> None:
    assert ledger_told("list").code == 0
    assert NOBODY in refused(ledger_told(*command, NOBODY, "--json"), 3, "not_found")


@pytest.mark.parametrize("command", ["show", "audit", "verify"])
@pytest.mark.parametrize("run_id", ["x", NOBODY[:-1], "{" + NOBODY + "}", "\x1b[31m"])
def test_a_malformed_id_is_a_usage_error(file: Path, told: Told, command: str, run_id: str) -> None:
    before = file.read_bytes()
    assert "\x1b" not in refused(told(command, run_id, "--json"), 2, "usage")
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "url",
    [
        *("", "nonsense", "mysql://here/there", "sqlite:///:memory:", "sqlite://"),
        *("postgresql://ana:secret@here:there/ledger", "postgresql://ana@here/ledger?pass=secret"),
    ],
)
def test_a_url_that_cannot_be_understood_is_a_usage_error(told: Told, tmp_path: Path, url: str) -> None:
    for command in (["list"], ["verify"], ["doctor"], ["migrate"], ["migrate", "--check"]):
        assert "secret" not in refused(told("--db", url, *command, "--json"), 2, "usage")
    assert "secret" not in refused_exec(told("exec", "--db", url, "--json", "--", "true"), "usage")
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server(told: Told, tmp_path: Path) -> None:
    url = f"postgresql://ana:secret@/there?host={tmp_path}"
    for command in (["list"], ["verify"], ["migrate"], ["migrate", "--check"]):
        assert "secret" not in refused(told("--db", url, *command, "--json"), 5, "database_unreachable")
    assert "secret" not in refused_exec(told("exec", "--db", url, "--json", "--", "true"), "database_unreachable")
    said = told("--db", url, "doctor", "--json")
    assert (said.code, said.json["checks"][0]["name"], said.json["checks"][0]["ok"]) == (1, "database", False)


def test_a_place_where_no_file_can_be(told: Told, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "ledger.db"):
        refused(told("--db", f"sqlite:///{path}", "list", "--json"), 5, "database_unreachable")
    for command in (["verify"], ["migrate", "--check"]):
        refused(told("--db", f"sqlite:///{tmp_path}/typo.db", *command, "--json"), 5, "database_unreachable")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database(told: Told, tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear ledger, this is no database. " * 100)
    before = path.read_bytes()
    for command in (["list"], ["verify"], ["migrate"]):
        refused(told("--db", f"sqlite:///{path}", *command, "--json"), 5, "database_unreachable")
    assert (path.read_bytes(), [file.name for file in tmp_path.iterdir()]) == (before, ["letter.txt"])


def test_a_read_only_file_is_read_and_not_written(file: Path) -> None:
    before = file.read_bytes()
    file.chmod(0o400)
    assert len(apart("list", "--json", prefix=WITHOUT_OVERRIDE, url=f"sqlite:///{file}").json["items"]) == 1
    said = apart("exec", "--json", "--", "true", prefix=WITHOUT_OVERRIDE, url=f"sqlite:///{file}")
    refused_exec(said, "database_read_only")
    assert file.read_bytes() == before


def test_a_new_ledger_in_a_read_only_directory(tmp_path: Path) -> None:
    place = tmp_path / "closed"
    place.mkdir(mode=0o500)
    said = apart("migrate", "--json", prefix=WITHOUT_OVERRIDE, url=f"sqlite:///{place}/ledger.db")
    refused(said, 5, said.json["error"]["code"])
    assert said.json["error"]["code"] in {"database_read_only", "database_unreachable"}
    assert list(place.iterdir()) == []


@contextmanager
def at_most(pages: int) -> Iterator[None]:
    """Let no SQLite file get larger than this many pages."""

    def limit(connection: object, _entry: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute(f"PRAGMA max_page_count = {pages}")

    event.listen(Pool, "connect", limit)
    try:
        yield
    finally:
        event.remove(Pool, "connect", limit)


def test_a_full_disk_at_the_first_use(told: Told, tmp_path: Path) -> None:
    with at_most(1):
        line = refused(told("--db", f"sqlite:///{tmp_path}/ledger.db", "migrate", "--json"), 5, "database_read_only")
    assert "full" in line


def test_a_full_disk_at_an_exec_leaves_nothing_half_and_runs_nothing_twice(
    file: Path, told: Told, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    ran.touch()
    # A few runs fit into what is left of the last pages; then nothing does.
    with at_most(file.stat().st_size // 4096 + 1):
        for number in range(50):
            said = told("exec", "--json", "--", "sh", "-c", f"echo {number} >> {ran}")
            if said.code != 0:
                break
    assert (said.code, said.out) == (125, "")
    assert json.loads(said.err.splitlines()[-1])["error"]["code"] == "database_read_only"
    assert "Traceback" not in said.err
    assert told("verify").code == 0
    done = ran.read_text().split()
    assert done == [str(number) for number in range(len(done))]
    # With room again, what ended without having been recorded is.
    assert told("exec", "--", "true").code == 0
    succeeded = told("list", "--status", "succeeded", "--json").json["items"]
    assert len(succeeded) == len(done) + 1


def test_a_full_disk_while_working_once_is_told_by_the_exit_code(file: Path, told: Told, tmp_path: Path) -> None:
    """A worker goes on, whatever fails (R9.3); after a single cycle its exit code says what was in its way."""
    ran = tmp_path / "ran"
    for _ in range(20):
        assert told("submit", "--", "sh", "-c", f"echo >> {ran}").code == 0
    with at_most(file.stat().st_size // 4096 + 1):
        said = told("work", "--once", "--json")
    assert said.code == 5
    assert said.lines[-1]["error"]["code"] == "database_read_only"
    assert "Traceback" not in said.err
    assert told("verify").code == 0


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("command", ["supervise", "work"])
@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (DatabaseUnreachable("the server has gone"), (5, ["database_unreachable"])),
        (DatabaseFull("no room is left"), (5, ["database_read_only"])),
        (DatabaseBusy("it took too long"), (5, ["busy"])),
        (RunNotFound(NOBODY), (1, [])),
        (RuntimeError("a defect"), (1, [])),
    ],
)
def test_trouble_with_the_database_in_a_single_cycle_is_told_by_the_exit_code(
    told: Told, monkeypatch: pytest.MonkeyPatch, command: str, error: Exception, ending: tuple[int, list[str]]
) -> None:
    def fail(ledger: Ledger, **given: object) -> int:
        del ledger, given
        raise error

    monkeypatch.setattr(Ledger, "request_due_deadlines", fail)
    said = told(command, "--once", "--json")
    counted, *more = said.lines
    assert counted["deadlines"] == {"error": 1}
    assert (said.code, [line["error"]["code"] for line in more]) == ending
    assert "runfacts: deadlines failed" in said.err
    assert told(command, "--once").out == "deadlines: error 1\n"


def test_files_that_may_not_grow(file: Path) -> None:
    before = file.read_bytes()
    said = apart("exec", "--json", "--", "true", prefix=SMALL_FILES, url=f"sqlite:///{file}")
    assert said.code == 125
    assert json.loads(said.err.splitlines()[-1])["error"]["code"] in {"database_unreachable", "database_read_only"}
    assert "Traceback" not in said.err
    assert file.read_bytes() == before


def test_a_newer_schema_is_refused_before_anything_is_written(ledger_told: Told, database_url: str) -> None:
    with Ledger.open(database_url) as ledger, ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE runfacts_schema SET version_num = '9999'")
    for command in (["list"], ["verify"], ["migrate"], ["migrate", "--check"]):
        assert "9999" in refused(ledger_told(*command, "--json"), 6, "schema_too_new")
    assert "9999" in refused_exec(ledger_told("exec", "--json", "--", "true"), "schema_too_new")
    assert ledger_told("doctor").code == 1
    database = connect(database_url)
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM runs").scalar_one() == 0
    database.close()


def test_a_postgresql_database_that_was_not_migrated(told: Told, postgres: PostgresServer) -> None:
    url = postgres.create_database()
    for command in (["list"], ["verify"], ["show", NOBODY]):
        assert "runfacts migrate" in refused(told("--db", url, *command, "--json"), 6, "schema_too_old")
    refused_exec(told("exec", "--db", url, "--json", "--", "true"), "schema_too_old")
    assert told("--db", url, "migrate", "--check", "--json").json["revision"] is None


@pytest.mark.parametrize("setting", ["poll_ms=0", "poll_ms=10001", "poll_ms=x", "poll_ms=1.5", "polls=3"])
def test_a_setting_out_of_its_bounds(file: Path, told: Told, setting: str) -> None:
    before = file.read_bytes()
    name = setting.partition("=")[0]
    assert name in refused(told("--set", setting, "list", "--json"), 2, "invalid_setting")
    assert name in refused(told("facts", "--json", "--set", setting), 2, "invalid_setting")
    assert name in refused_exec(told("exec", "--set", setting, "--json", "--", "true"), "invalid_setting")
    assert file.read_bytes() == before


@pytest.mark.usefixtures("file")
def test_a_setting_from_the_environment_is_checked_as_well(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNFACTS_FACT_PAGE", "501")
    refused(told("list", "--json"), 2, "invalid_setting")
    assert told("list", "--set", "fact_page=1").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--nonsense"],
        ["list", "--limit", "0"],
        ["list", "--status", "sleeping"],
        ["list", "--after", "nonsense"],
        ["audit", "--since", "yesterday"],
        ["audit", "--after", "-1"],
        ["audit", "--format", "csv"],
        ["list", "unasked-for"],
        ["show"],
        ["--set", "poll_ms", "list"],
        ["--as", "", "--db", "", "nonsense"],
        ["verify", "--against", "/no/such/file"],
        ["verify", "--heads", "--against", "/dev/null"],
        ["migrate", "--check", "--adopt"],
        ["migrate", "--app-role", "programs"],
    ],
    ids=" ".join,
)
def test_usage(file: Path, told: Told, arguments: list[str]) -> None:
    before = file.read_bytes()
    refused(told(*arguments, "--json"), 2, "usage")
    assert file.read_bytes() == before


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("option", ["--attempts", "--retry-lost", "--retry-failed", "--replay-safe"])
def test_options_of_exec_that_are_not_built_are_unknown(told: Told, option: str) -> None:
    assert option in refused_exec(told("exec", "--json", option, "3", "--", "true"), "usage")


@pytest.mark.parametrize("command", ["teleport", "exports", "EXPORT"])
def test_commands_that_are_none_are_unknown(told: Told, command: str) -> None:
    assert command in refused(told(command, "--json"), 2, "usage")


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("arguments", [[], ["--"], ["--", ""], ["--task", "a\nb", "--", "true"]])
def test_an_exec_of_nothing_usable_records_nothing(told: Told, arguments: list[str]) -> None:
    refused_exec(told("exec", "--json", *arguments), "usage")
    assert len(told("list", "--json").json["items"]) == 1


def test_a_working_directory_that_is_gone(file: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    leave = ("sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh")
    said = apart("exec", "--json", "--", "true", prefix=leave, url=f"sqlite:///{file}", cwd=gone)
    assert "working directory" in refused_exec(said, "usage")
    assert len(apart("list", "--json", url=f"sqlite:///{file}").json["items"]) == 1


@pytest.mark.usefixtures("file")
def test_a_head_file_that_is_none(told: Told, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    for content in (b"nonsense\n", b"[]\n", b'{"run_id": "x", "version": 1, "hash": "y"}\n', b"\xff\xfe\n"):
        heads.write_bytes(content)
        assert "heads" in refused(told("verify", "--against", str(heads), "--json"), 2, "usage")


def test_a_type_of_fact_that_is_none(told: Told) -> None:
    refused(told("facts", "run.invented", "--json"), 3, "not_found")


def test_the_ledger_of_another_machine_can_be_read_until_it_is_adopted(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNFACTS_DB", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("RUNFACTS_MACHINE_ID", "machine-a")
    assert told("exec", "--", "true").code == 0
    monkeypatch.setenv("RUNFACTS_MACHINE_ID", "machine-b")
    assert len(told("list", "--json").json["items"]) == 1
    refused_exec(told("exec", "--json", "--", "true"), "foreign_machine")
    refused(told("migrate", "--json"), 5, "foreign_machine")
    unwell = [check["name"] for check in told("doctor", "--json").json["checks"] if not check["ok"]]
    assert unwell == ["owner"]
    assert told("migrate", "--adopt").code == 0
    assert told("exec", "--", "true").code == 0

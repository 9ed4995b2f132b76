"""``migrate`` on every database, and what the role that it grants to can do (R1.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine

from runfacts.testing.postgres import PostgresServer
from told import Told


def test_a_new_postgresql_ledger_is_made_once_and_serves_a_role_of_little_power(
    told: Told, postgres: PostgresServer
) -> None:
    url = postgres.create_database()
    checked = told("--db", url, "migrate", "--check", "--json")
    assert (checked.code, checked.json) == (6, {"revision": None, "head": "0004", "applied": []})
    assert "runfacts migrate" in told("--db", url, "migrate", "--check").out
    role = f"programs_of_{postgres.version}"
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {role} LOGIN")
    engine.dispose()
    first = told("--db", url, "migrate", "--app-role", role, "--json")
    assert (first.code, first.json) == (
        0,
        {"revision": "0004", "head": "0004", "applied": ["0001", "0002", "0003", "0004"]},
    )
    again = told("--db", url, "migrate", "--json")
    assert (again.code, again.json) == (0, {"revision": "0004", "head": "0004", "applied": []})
    assert told("--db", url, "migrate", "--check").code == 0

    as_role = url.replace("//postgres@", f"//{role}@")
    said = told("--db", as_role, "exec", "--", "sh", "-c", "exit 4")
    assert said.code == 4
    assert told("--db", as_role, "show", said.run_id, "--json").json["attempts"][0]["exit_code"] == 4
    assert told("--db", as_role, "verify").code == 0
    # The test's server does not wait for a disk; everything else is as it should be.
    unwell = [check["name"] for check in told("--db", as_role, "doctor", "--json").json["checks"] if not check["ok"]]
    assert unwell == ["durability"]


def test_a_role_that_does_not_exist_is_refused_and_nothing_is_made(told: Told, postgres: PostgresServer) -> None:
    url = postgres.create_database()
    said = told("--db", url, "migrate", "--app-role", "nobody_here", "--json")
    assert (said.code, said.json["error"]["code"]) == (2, "usage")
    assert told("--db", url, "migrate", "--check", "--json").json["revision"] is None


def test_a_sqlite_ledger_is_made_on_first_use_or_by_migrate(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNFACTS_DB", f"sqlite:///{tmp_path}/ledger.db")
    assert told("list", "--json").json == {"items": [], "next": None}
    assert told("migrate", "--check").code == 0
    other = told("--db", f"sqlite:///{tmp_path}/other.db", "migrate")
    assert (other.code, other.out) == (0, "The schema is now 0004; applied: 0001, 0002, 0003, 0004.\n")
    assert told("--db", f"sqlite:///{tmp_path}/other.db", "migrate").out.endswith("nothing is to be done.\n")

"""The commands that read, on every database: list, show, audit, verify, doctor (R1.3, R1.4, R14.1, R14.2)."""

from __future__ import annotations

import csv
import io
import json
import uuid
from pathlib import Path

import pytest

from runfacts import Actor, Ledger, Outcome
from told import Told

ANA = Actor.user("ana")


@pytest.fixture
def runs(database_url: str) -> list[str]:
    """Three runs, oldest first: one has succeeded, one runs, one is only created."""
    ids = []
    with Ledger.open(database_url) as ledger:
        for task, steps in (("import", 2), ("export", 1), ("later", 0)):
            run_id = ledger.create(actor=ANA, task=task, project="books").run.run_id
            ids.append(run_id)
            if steps == 0:
                continue
            ledger.queue(run_id, actor=ANA)
            claimed = ledger.claim(run_id, actor=Actor.worker("w-1"), executor_type="mine")
            claim = claimed.claim  # type: ignore[union-attr] # it is free
            ledger.start(claim, actor=ANA)
            ledger.running(claim, actor=ANA)
            if steps == 2:
                ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=ANA)
    return ids


def test_list_gives_the_newest_first_page_by_page(ledger_told: Told, runs: list[str]) -> None:
    first = ledger_told("list", "--limit", "2", "--json").json
    assert [item["run_id"] for item in first["items"]] == [runs[2], runs[1]]
    second = ledger_told("list", "--limit", "2", "--after", first["next"], "--json").json
    assert ([item["run_id"] for item in second["items"]], second["next"]) == ([runs[0]], None)
    assert second["items"][0] == {
        "run_id": runs[0],
        "project": "books",
        "task": "import",
        "status": "succeeded",
        "version": 9,
        "created_at_ms": second["items"][0]["created_at_ms"],
        "intent_at_ms": None,
        "dispatch": None,
        "recovery": None,
    }


def test_list_lets_through_what_was_asked_for(ledger_told: Told, runs: list[str]) -> None:
    found = ledger_told("list", "--status", "running", "--status", "created", "--json").json["items"]
    assert [item["run_id"] for item in found] == [runs[2], runs[1]]
    assert ledger_told("list", "--project", "films", "--json").json == {"items": [], "next": None}


def test_piped_tables_are_plain_columns_with_times_in_utc(ledger_told: Told, runs: list[str]) -> None:
    said = ledger_told("list", "--status", "succeeded")
    header, row = said.out.splitlines()
    assert header.split() == ["RUN", "PROJECT", "TASK", "STATUS", "STOP", "RECOVERY", "CREATED"]
    assert row.split()[:6] == [runs[0], "books", "import", "succeeded", "-", "-"]
    assert row.endswith("Z")
    assert "\x1b" not in said.out


def test_show_gives_the_run_with_its_attempts(ledger_told: Told, runs: list[str]) -> None:
    ended = ledger_told("show", runs[0], "--json").json
    (attempt,) = ended["attempts"]
    assert (ended["status"], ended["version"], ended["cancellation"], ended["recovery"]) == ("succeeded", 9, None, None)
    assert (attempt["number"], attempt["status"], attempt["executor_type"]) == (1, "succeeded", "mine")
    assert (attempt["exit_code"], attempt["signal"], attempt["lease"]) == (0, None, "none")
    assert attempt["claimed_at_ms"] <= attempt["started_at_ms"] <= attempt["finished_at_ms"]
    (running,) = ledger_told("show", runs[1].upper(), "--json").json["attempts"]
    assert (running["status"], running["lease"], running["finished_at_ms"]) == ("running", "valid", None)
    shown = ledger_told("show", runs[0]).out
    assert "succeeded" in shown
    assert "exit code 0" in shown


def test_audit_gives_every_fact_in_order_and_goes_on_where_it_ended(ledger_told: Told, runs: list[str]) -> None:
    every = ledger_told("audit", "--json").lines
    assert len(every) == 9 + 7 + 1
    assert set(every[0]) == {
        "position", "run_id", "sequence", "type", "schema_version", "project", "attempt_id", "actor_type", "actor_id",
        "recorded_at_ms", "payload",
    }  # fmt: skip
    assert [fact["sequence"] for fact in every if fact["run_id"] == runs[0]] == list(range(1, 10))
    assert (every[0]["type"], every[0]["actor_type"], every[0]["actor_id"]) == ("run.created", "user", "ana")
    assert every[0]["payload"]["task"] == "import"
    first = ledger_told("audit", "--limit", "10", "--format", "jsonl")
    cursor = str(first.lines[-1]["position"])
    assert f"--after {cursor}" in first.err
    assert first.lines + ledger_told("audit", "--after", cursor, "--json").lines == every


def test_audit_filters(ledger_told: Told, runs: list[str]) -> None:
    def found(*options: str) -> list[tuple[str, str]]:
        return [(fact["run_id"], fact["type"]) for fact in ledger_told("audit", "--json", *options).lines]

    attempt_id = ledger_told("show", runs[0], "--json").json["attempts"][0]["attempt_id"]
    of_attempt = {kind for _, kind in found("--attempt", attempt_id)}
    assert {"attempt.claimed", "attempt.succeeded", "run.succeeded"} < of_attempt
    assert not {"run.created", "run.queued"} & of_attempt
    assert found(runs[2]) == [(runs[2], "run.created")]
    assert found("--type", "run.succeeded", "--type", "attempt.succeeded") == [
        (runs[0], "attempt.succeeded"),
        (runs[0], "run.succeeded"),
    ]
    assert {kind for _, kind in found("--actor", "w-1")} == {"run.dispatching", "attempt.claimed"}
    assert found("--since", "9000-01-01T00:00:00Z") == []
    assert found("--until", "2001-01-01") == []
    assert len(found("--project", "books", "--since", "2020-01-01", "--until", "8999-12-31T23:00:00+02:00")) == 17
    assert found("--attempt", str(uuid.uuid4())) == []


def test_audit_as_csv_and_as_a_table_has_the_same_rows(ledger_told: Told, runs: list[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(ledger_told("audit", runs[0], "--format", "csv").out)))
    lines = ledger_told("audit", runs[0], "--json").lines
    assert [json.loads(row["payload"]) for row in rows] == [line["payload"] for line in lines]
    assert [row["position"] for row in rows] == [str(line["position"]) for line in lines]
    assert len(ledger_told("audit", runs[0]).out.splitlines()) == 1 + 9


def test_verify_is_clean_and_names_a_row_that_was_changed(
    ledger_told: Told, runs: list[str], database_url: str
) -> None:
    assert (ledger_told("verify").code, ledger_told("verify", runs[0]).code) == (0, 0)
    assert ledger_told("verify", "--json").json == {"runs": 3, "facts": 17, "unknown_types": {}, "differences": []}
    with Ledger.open(database_url) as ledger, ledger.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE runs SET task = 'changed' WHERE version = 9")
    said = ledger_told("verify", "--json")
    (difference,) = said.json["differences"]
    assert said.code == 1
    assert (difference["run_id"], difference["kind"], difference["field"]) == (runs[0], "run", "task")
    assert (difference["recorded"], difference["recomputed"]) == ("changed", "import")
    assert ledger_told("verify", runs[1]).code == 0


def test_heads_kept_elsewhere_stand_after_more_facts_and_show_rewriting(
    ledger_told: Told, runs: list[str], tmp_path: Path, database_url: str
) -> None:
    heads = ledger_told("verify", "--heads")
    assert [set(head) for head in heads.lines] == [{"run_id", "version", "hash"}] * 3
    kept = tmp_path / "heads.jsonl"
    kept.write_text(heads.out)
    with Ledger.open(database_url) as ledger:
        ledger.queue(runs[2], actor=ANA)
    assert ledger_told("verify", "--against", str(kept)).code == 0
    # As if history had been written anew since, every hash of it computed again.
    kept.write_text(heads.out.replace(heads.lines[0]["hash"], "0" * 64))
    said = ledger_told("verify", "--against", str(kept), "--json")
    assert said.code == 1
    (difference,) = said.json["differences"]
    assert (difference["kind"], difference["recomputed"], difference["sequence"]) == ("head", "0" * 64, 9)
    # A fact that was there and is not any more.
    kept.write_text(json.dumps(heads.lines[1] | {"version": 400}) + "\n")
    (gone,) = ledger_told("verify", "--against", str(kept), "--json").json["differences"]
    assert (gone["run_id"], gone["recorded"]) == (runs[1], None)


def test_doctor_says_what_it_looked_at(ledger_told: Told, runs: list[str], database_url: str) -> None:
    assert runs
    said = ledger_told("doctor", "--json")
    checks = {check["name"]: check for check in said.json["checks"]}
    expected = {"database", "schema", "durability", "append_only", "fact types", "receipts", "clocks", "pidfd", "scope"}
    assert expected | {"machine id"} <= set(checks)
    if database_url.startswith("sqlite"):
        assert [check for check in checks.values() if not check["ok"]] == []
        assert (said.code, checks["wal"]["ok"], checks["owner"]["ok"]) == (0, True, True)
    else:
        # A test's server: its time function is replaced, its disk is memory, and the role is its superuser.
        weak = {"durability", "privileges", "time", "server clock"}
        assert {name for name, check in checks.items() if not check["ok"]} == weak
        assert said.code == 1


def test_a_dropped_trigger_makes_doctor_unwell(ledger_told: Told, runs: list[str], database_url: str) -> None:
    assert runs
    trigger = "facts_refuse_update" if database_url.startswith("sqlite") else "facts_refuse_change ON facts"
    with Ledger.open(database_url) as ledger, ledger.database.engine.begin() as connection:
        connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
    said = ledger_told("doctor", "--json")
    assert said.code == 1
    assert [check["ok"] for check in said.json["checks"] if check["name"] == "append_only"] == [False]

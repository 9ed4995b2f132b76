"""Heads kept elsewhere show later rewriting, also by whoever owns the database and computes all hashes (R14.2)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runfacts import Actor, Ledger
from runfacts.domain.canonical import GENESIS, chained_hash
from runfacts.domain.facts import envelope
from stages import finished
from tampering import Owner, owner_of
from told import Told, environment


@pytest.fixture
def run_ids(database_url: str) -> list[str]:
    """Three runs that have ended."""
    with Ledger.open(database_url) as ledger:
        return [finished(ledger).run_id for _ in range(3)]


@pytest.fixture
def kept(ledger_told: Told, run_ids: list[str], tmp_path: Path) -> str:
    """The heads of then, kept elsewhere."""
    file = tmp_path / "heads.jsonl"
    file.write_text(ledger_told("verify", "--heads").out)
    assert len(file.read_text().splitlines()) == len(run_ids)
    return str(file)


def everything_of(leader: int) -> str:
    """Read a terminal until nobody writes to it any more."""
    read = b""
    while True:
        try:
            part = os.read(leader, 65_536)
        except OSError:
            return read.decode()
        if not part:
            return read.decode()
        read += part


def forget(owner: Owner, run_id: str, after: int = 0) -> None:
    """Remove a run's facts behind one of them; with the first of them, everything of the run."""
    if after == 0:
        for table in ("attempts", "executions", "runs"):
            owner.run(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
    owner.run("DELETE FROM facts WHERE run_id = ? AND sequence > ?", [run_id, after])


def told_of(ledger_told: Told, kept: str) -> list[tuple[str, str, int | None]]:
    """Give run, kind and sequence of each difference that only the kept heads show."""
    said = ledger_told("verify", "--against", kept, "--json")
    assert said.code == 1
    return [
        (item["run_id"], item["kind"], item["sequence"])
        for item in said.json["differences"]
        if item["kind"] not in {"position", "run", "attempt", "execution"}
    ]


def test_a_run_that_was_removed(ledger_told: Told, run_ids: list[str], kept: str, database_url: str) -> None:
    with owner_of(database_url) as owner:
        forget(owner, run_ids[1])
    assert told_of(ledger_told, kept) == [(run_ids[1], "head", 9)]


def test_a_history_that_was_shortened(ledger_told: Told, run_ids: list[str], kept: str, database_url: str) -> None:
    with owner_of(database_url) as owner:
        forget(owner, run_ids[1], after=7)
    assert told_of(ledger_told, kept) == [(run_ids[1], "head", 9)]


def test_a_history_that_was_written_anew_with_every_hash(
    ledger_told: Told, run_ids: list[str], kept: str, database_url: str
) -> None:
    with Ledger.open(database_url) as ledger:
        facts = ledger.history(run_ids[2])
    digest = GENESIS
    with owner_of(database_url) as owner:
        for fact in facts:
            fields = dict(envelope(fact)) | ({"actor_id": "eve"} if fact.actor == Actor.user("ana") else {})
            digest = chained_hash(digest, fields, fact.payload_text)
            owner.run(
                "UPDATE facts SET actor_id = ?, hash = ? WHERE run_id = ? AND sequence = ?",
                [fields["actor_id"], digest, fact.run_id, fact.sequence],
            )
        owner.run("UPDATE runs SET head_hash = ? WHERE run_id = ?", [digest, run_ids[2]])
    assert ledger_told("verify").code == 0
    assert told_of(ledger_told, kept) == [(run_ids[2], "head", 9)]


def test_a_run_that_went_on_stands(ledger_told: Told, run_ids: list[str], kept: str, database_url: str) -> None:
    with Ledger.open(database_url) as ledger:
        finished(ledger)
    assert len(run_ids) == 3
    said = ledger_told("verify", "--against", kept)
    assert (said.code, said.out) == (0, "Verified 4 runs and 36 facts, 3 earlier heads: nothing differs.\n")


def test_a_long_verification_shows_how_far_it_is_on_a_terminal(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Ledger.open(url) as ledger:
        for _ in range(60):
            ledger.create(actor=Actor.user("ana"), task="report")
    for command in (("verify", "--json"), ("export",), ("audit", "--limit", "1000", "--json")):
        leader, follower = pty.openpty()
        with ThreadPoolExecutor(1) as pool:
            # A terminal that nobody reads from fills up, and whoever writes to it waits.
            seen = pool.submit(everything_of, leader)
            ended = subprocess.run(
                [sys.executable, "-m", "runfacts", *command],
                env=environment(url, TERM="xterm-256color", COLUMNS="120"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=follower,
                timeout=60,
                check=False,
            )
            os.close(follower)
            shown = seen.result(timeout=30)
        os.close(leader)
        assert ended.returncode == 0
        assert {"verify": "verifying", "export": "exporting", "audit": "reading"}[command[0]] in shown
        assert all(json.loads(line) for line in ended.stdout.splitlines())

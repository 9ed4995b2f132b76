"""Export, import, replay and the trail take memory for a page, not for a ledger, and hold nothing meanwhile (R14.2)."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from runfacts import Actor, Imported, Ledger
from runfacts.domain.archives import Line
from runfacts.domain.canonical import canonical_json, chained_hash
from runfacts.testing.ledgers import ThrowAwayLedgers, sqlite_ledgers
from stages import created, finished

FACTS = 4_000
TEXT = "x" * 2_000
"""What each of them says: together more than 8 MB."""
BOUND = 4_000_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of one Run with some thousand facts of a later release."""
    file = tmp_path_factory.mktemp("archive") / "long.jsonl"
    with sqlite_ledgers() as ledgers, ledgers() as ledger, file.open("w") as lines:
        lines.writelines(
            json.dumps(line) + "\n" for line in _grown(list(ledger.export_runs([finished(ledger).run_id])))
        )
    return file


def _grown(lines: list[Line]) -> Iterator[Line]:
    """Let a Run's history go on with facts that nobody understands."""
    count = len(lines) + FACTS
    for line in lines:
        yield line | {"run_version": count}
    last = lines[-1]
    envelope = {
        name: value for name, value in last.items() if name not in {"position", "payload", "hash", "run_version"}
    }
    digest, sequence, version = str(last["hash"]), len(lines), int(str(last["aggregate_version"]))
    for number in range(1, FACTS + 1):
        payload = {"number": number, "text": TEXT}
        fields = envelope | {"sequence": sequence + number, "aggregate_version": version + number, "type": "run.noted"}
        fields |= {"attempt_id": None, "dedupe_key": f"k{number}"}
        digest = chained_hash(digest, fields, canonical_json(payload))  # type: ignore[arg-type]  # texts and numbers
        yield fields | {"payload": payload, "hash": digest, "run_version": count}


def peak(work: Callable[[], object]) -> int:
    """Give the most memory that was in use at once while something was done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_thousands_of_facts_go_in_and_out_in_bounded_memory(ledger: Ledger, archive: Path) -> None:
    assert archive.stat().st_size > 8_000_000
    answers: list[object] = []

    def take() -> None:
        with archive.open("rb") as file:
            answers.extend(ledger.import_runs(file, actor=Actor.user("ana")))

    assert peak(take) < BOUND
    (answer,) = answers
    assert isinstance(answer, Imported)
    assert answer.version == FACTS + 9
    run_id = answer.run_id
    counted = 0

    def give() -> None:
        nonlocal counted
        for _ in ledger.export_runs():
            counted += 1

    assert peak(give) < BOUND
    assert counted == FACTS + 9
    assert peak(lambda: [fact.sequence for fact in ledger.facts_of(run_id)]) < BOUND
    assert peak(lambda: ledger.replay(run_id)) < BOUND


def test_a_reader_that_pauses_keeps_no_log_from_being_cut(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    with ThrowAwayLedgers(f"sqlite:///{file}") as ledgers, ledgers() as ledger:
        for _ in range(3):
            created(ledger)
        paused = [ledger.export_runs(), ledger.facts_of(created(ledger)), ledger.heads()]
        for reader in paused:
            assert list(islice(reader, 1))
        with sqlite3.connect(file, isolation_level=None) as other:
            created(ledger)
            busy, _, _ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        other.close()
        assert busy == 0
        assert file.with_name("ledger.db-wal").stat().st_size == 0
        assert len(list(paused[0])) == 3

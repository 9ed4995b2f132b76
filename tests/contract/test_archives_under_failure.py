"""An import that fails or meets another one leaves a Run whole or not at all (R4.1, R4.2, R14.2)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from racing import somebody_waits
from runfacts import Actor, AlreadyImported, Imported, Ledger, NotImported
from runfacts.testing.ledgers import ThrowAwayLedgers, contents_of, sqlite_ledgers
from runfacts.testing.steps import FailAt, PauseAt, RecordedSteps, listening
from stages import finished, one_writer, running
from waiting import until

BO = Actor.operator("bo")
IMPORT = ("insert_run", "insert_execution", "insert_attempt", "insert_imported_facts", "commit")


@pytest.fixture(scope="module")
def archive() -> bytes:
    """Two Runs: one that has ended and one that has not."""
    with sqlite_ledgers() as ledgers, ledgers() as ledger:
        finished(ledger, idempotency_key="monday")
        running(ledger)
        return "".join(json.dumps(line) + "\n" for line in ledger.export_runs()).encode()


def taken(archive: bytes) -> Callable[[Ledger], list[Imported | AlreadyImported | NotImported]]:
    """Take an archive in, whole."""
    return lambda ledger: list(ledger.import_runs(io.BytesIO(archive), actor=BO, as_archive=True))


class Failed(Exception):
    """Something of nobody's making."""


def test_every_step_that_fails_leaves_nothing_of_its_run(ledger_factory: ThrowAwayLedgers, archive: bytes) -> None:
    ledger = ledger_factory()
    empty = contents_of(ledger)
    for name in IMPORT:
        with listening(ledger, FailAt(f"sql:before:{name}", Failed())), pytest.raises(Failed):
            taken(archive)(ledger)
        assert contents_of(ledger) == empty, name
    recorded = RecordedSteps()
    with listening(ledger, recorded):
        first, second = taken(archive)(ledger)
    assert isinstance(first, Imported)
    assert isinstance(second, Imported)
    assert {f"sql:before:{name}" for name in IMPORT} <= set(recorded.names)
    assert ledger.verify().clean


def test_what_was_imported_before_a_failure_stays_and_the_rest_follows(
    ledger_factory: ThrowAwayLedgers, archive: bytes
) -> None:
    ledger = ledger_factory()
    with listening(ledger, FailAt("sql:before:commit", Failed(), nth=2)), pytest.raises(Failed):
        taken(archive)(ledger)
    assert [type(answer) for answer in taken(archive)(ledger)] == [AlreadyImported, Imported]
    assert ledger.verify().clean


def test_nobody_waits_for_a_source_that_is_slow(ledger_factory: ThrowAwayLedgers, archive: bytes) -> None:
    slow, other = ledger_factory(), ledger_factory(busy_timeout_ms=0)
    lines = archive.splitlines(keepends=True)

    class Slow(io.BytesIO):
        def readline(self, size: int | None = -1) -> bytes:
            # Between any two lines somebody else writes.
            running(other)
            return super().readline(-1 if size is None else size)

    answers = list(slow.import_runs(Slow(b"".join(lines)), actor=BO, as_archive=True))
    assert [type(answer) for answer in answers] == [Imported, Imported]
    assert slow.verify().clean


def test_of_two_who_import_the_same_one_does(ledger_factory: ThrowAwayLedgers, archive: bytes) -> None:
    one, two = ledger_factory(), ledger_factory()
    pause = PauseAt("sql:before:commit")
    with listening(one, pause), ThreadPoolExecutor(2) as pool:
        first = pool.submit(taken(archive), one)
        pause.wait()
        second = pool.submit(taken(archive), two)
        if not one_writer(one):
            until(lambda: somebody_waits(ledger_factory.url))
        pause.resume()
        answers = [*first.result(timeout=30), *second.result(timeout=30)]
    came_in = [answer.run_id for answer in answers if isinstance(answer, Imported)]
    assert len(came_in) == len(set(came_in)) == 2
    assert sum(isinstance(answer, AlreadyImported) for answer in answers) == 2
    assert two.verify().clean

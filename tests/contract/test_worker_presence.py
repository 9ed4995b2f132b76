"""R8.3: workers say where they run, and a machine id that names two machines is found out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from runfacts import Ledger
from runfacts.infrastructure.presence import WorkerPresence
from runfacts.infrastructure.processes.machine import MachineIdentity, MachineIdSource
from runfacts.infrastructure.stores.workers import SELECT_BOOTS, Boot, machine_is_ambiguous, two_at_once
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import contents_of
from stages import one_writer, row_of

HOUR = 3_600_000
MINUTE = 60_000
FIRST = "00000000-0000-4000-8000-00000000000a"
SECOND = "00000000-0000-4000-8000-00000000000b"
THIRD = "00000000-0000-4000-8000-00000000000c"


class Stopwatch:
    """A clock of one process, in seconds."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        """Give the time."""
        return self.now_s


def presence(
    ledger: Ledger,
    boot_id: str = FIRST,
    *,
    worker_id: str = "w-1",
    machine_id: str = "rack-7",
    stopwatch: Stopwatch | None = None,
) -> WorkerPresence:
    """A worker of a machine."""
    machine = MachineIdentity(machine_id, MachineIdSource.CONFIGURED, boot_id, 4_026_531_836, 4_026_531_834)
    return WorkerPresence(ledger.database, worker_id, machine, monotonic=stopwatch or Stopwatch())


def ambiguous(ledger: Ledger, boot_id: str = FIRST, *, began_at_ms: int, machine_id: str = "rack-7") -> bool:
    """Ask from a boot that began then."""
    with ledger.database.reading() as reading:
        return machine_is_ambiguous(reading, machine_id, boot_id=boot_id, began_at_ms=began_at_ms)


def test_a_worker_says_at_its_start_where_it_runs_on_a_server_and_not_in_a_file(ledger: Ledger) -> None:
    written = presence(ledger).beat()
    if one_writer(ledger):
        assert not written
        assert contents_of(ledger)["workers"] == []
        return
    assert written
    assert row_of(ledger, "workers") == {
        "worker_id": "w-1",
        "machine_id": "rack-7",
        "boot_id": FIRST,
        "scope": "rack-7/4026531836/4026531834",
        "started_at_ms": EPOCH_MS,
        "seen_at_ms": EPOCH_MS,
    }


def test_it_says_so_every_thirty_seconds_and_not_more_often(ledger: Ledger, manual_clock: ManualClock) -> None:
    stopwatch = Stopwatch()
    worker = presence(ledger, stopwatch=stopwatch)
    worker.beat()
    manual_clock.advance(29_999)
    stopwatch.now_s += 29.999
    assert not worker.beat()
    manual_clock.advance(1)
    stopwatch.now_s += 0.001
    assert worker.beat() == (not one_writer(ledger))
    if not one_writer(ledger):
        row = row_of(ledger, "workers")
        assert (row["started_at_ms"], row["seen_at_ms"]) == (EPOCH_MS, EPOCH_MS + 30_000)


def test_a_servers_clock_that_steps_back_unsees_nobody(ledger: Ledger, manual_clock: ManualClock) -> None:
    stopwatch = Stopwatch()
    worker = presence(ledger, stopwatch=stopwatch)
    worker.beat()
    manual_clock.jump_database(-HOUR)
    stopwatch.now_s += 30
    worker.beat()
    if not one_writer(ledger):
        assert row_of(ledger, "workers")["seen_at_ms"] == EPOCH_MS


def test_boots_that_follow_each_other_are_one_machines(ledger: Ledger, manual_clock: ManualClock) -> None:
    presence(ledger, FIRST).beat()
    manual_clock.advance(MINUTE)
    presence(ledger, SECOND, worker_id="w-2").beat()
    assert not ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS + 1)
    manual_clock.advance(MINUTE)
    presence(ledger, THIRD, worker_id="w-3").beat()
    presence(ledger, THIRD, worker_id="w-4").beat()
    assert not ambiguous(ledger, THIRD, began_at_ms=EPOCH_MS + MINUTE + 1)


def test_a_boot_that_is_seen_after_a_later_one_had_started_tells_of_two_machines_for_an_hour(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    presence(ledger, FIRST).beat()
    manual_clock.advance(MINUTE)
    clone = presence(ledger, SECOND, worker_id="w-2")
    clone.beat()
    manual_clock.advance(MINUTE)
    # Another worker of the first boot: its first one need not be there any more.
    presence(ledger, FIRST, worker_id="w-3").beat()
    expected = not one_writer(ledger)
    assert ambiguous(ledger, FIRST, began_at_ms=EPOCH_MS - MINUTE) == expected
    assert ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS + MINUTE) == expected
    assert not ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS + MINUTE, machine_id="rack-8")
    manual_clock.advance(HOUR)
    assert ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS + MINUTE) == expected
    manual_clock.advance(1)
    assert not ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS + MINUTE)


def test_whoever_asks_knows_when_his_own_boot_began(ledger: Ledger, manual_clock: ManualClock) -> None:
    """Its first worker may have started long after it."""
    presence(ledger, FIRST).beat()
    manual_clock.advance(MINUTE)
    assert not ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS + 1)
    # This boot had begun when the other one was still seen.
    assert ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS) == (not one_writer(ledger))
    presence(ledger, SECOND, worker_id="w-2").beat()
    assert ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS) == (not one_writer(ledger))


def test_a_boot_that_goes_on_beside_a_later_one_is_ambiguous_as_long_as_it_does(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    """Whoever still runs is seen now, however long ago the other one began."""
    presence(ledger, FIRST).beat()
    manual_clock.advance(MINUTE)
    presence(ledger, SECOND, worker_id="w-2").beat()
    manual_clock.advance(100 * HOUR)
    assert ambiguous(ledger, FIRST, began_at_ms=EPOCH_MS - MINUTE) == (not one_writer(ledger))
    # Seen from the later one nothing is in doubt any more: the first was not seen again.
    assert not ambiguous(ledger, SECOND, began_at_ms=EPOCH_MS + 1)


def test_nobody_is_ambiguous_alone(ledger: Ledger, manual_clock: ManualClock) -> None:
    assert not ambiguous(ledger, began_at_ms=EPOCH_MS - MINUTE)
    for number in range(3):
        presence(ledger, worker_id=f"w-{number}").beat()
        manual_clock.advance(MINUTE)
    assert not ambiguous(ledger, began_at_ms=EPOCH_MS - MINUTE)


def test_a_proof_asks_once_for_each_boot_however_many_workers_it_had(ledger: Ledger, manual_clock: ManualClock) -> None:
    if one_writer(ledger):
        return
    for number in range(300):
        presence(ledger, (FIRST, SECOND, THIRD)[number // 100], worker_id=f"w-{number}").beat()
        manual_clock.advance(1_000)
    with ledger.database.reading() as reading:
        found = reading.rows(SELECT_BOOTS, {"machine_id": "rack-7"})
    assert sorted(found) == [
        (FIRST, EPOCH_MS, EPOCH_MS + 99_000),
        (SECOND, EPOCH_MS + 100_000, EPOCH_MS + 199_000),
        (THIRD, EPOCH_MS + 200_000, EPOCH_MS + 299_000),
    ]
    compiled = SELECT_BOOTS.compiled(ledger.database.dialect)
    with ledger.database.engine.connect() as connection:
        connection.execute(text("ANALYZE workers"))
        # What is only cheaper for so few rows.
        for way in ("seqscan", "bitmapscan"):
            connection.execute(text(f"SET LOCAL enable_{way} = off"))
        asked = f"EXPLAIN (ANALYZE, FORMAT JSON) {compiled.text}"
        plan = connection.exec_driver_sql(asked, compiled.bind({"machine_id": "rack-7"})).scalar_one()
    # Rows times loops: nine, but the server tells a rounded average.
    read = [node["Actual Rows"] * node["Actual Loops"] for node in _nodes(plan[0]["Plan"]) if "Index Name" in node]
    assert 0 < sum(read) < 15


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


@pytest.mark.parametrize(
    ("boots", "expected"),
    [
        ([], False),
        ([Boot(0, 100)], False),
        ([Boot(0, 49), Boot(50, 100)], False),
        ([Boot(0, 50), Boot(50, 100)], True),
        ([Boot(50, 60), Boot(0, 100)], True),
        # Seen together, but longer ago than counts.
        ([Boot(0, 19), Boot(10, 100)], False),
        ([Boot(0, 20), Boot(10, 100)], True),
        # Neighbours follow each other, the outer ones do not.
        ([Boot(0, 90), Boot(10, 15), Boot(80, 100)], True),
        ([Boot(0, 30), Boot(40, 50), Boot(60, 90)], False),
    ],
)
def test_two_at_once_are_an_earlier_boot_seen_after_a_later_one_started(boots: list[Boot], *, expected: bool) -> None:
    assert two_at_once(boots, since_ms=20) == expected
    assert two_at_once(reversed(boots), since_ms=20) == expected

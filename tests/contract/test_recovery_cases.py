"""R11: cases from the field, with a whole worker: C09, C29, C33; and what stands in front of a good item."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import insert
from sqlalchemy.exc import IntegrityError

from abandoned import NotRunning
from deliveries import brought_to
from hosted_runs import parent_of
from left_commands import LeavingHost, LeftCommand
from process_watch import Marked, kill, marked_environment, state_of, wait_until
from recoveries import FREE, LEASE_MS, change, copied, only, page, put_rows, row_of_item, settled
from runfacts import Ledger
from runfacts.domain.recovery.claims import Purpose
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.infrastructure.database.tables import executions
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.infrastructure.supervision import Duty
from runfacts.testing.clock import ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import ANA, EXECUTOR, WORKER, types

LEFT_LEASE_MS = 600_000
"""Of what ``LeavingHost`` leaves."""
GOOD = 1_000
PAGE = 128
FAILURES = 3
WAIT_MS = 5_000


@pytest.fixture
def marked() -> Iterator[Marked]:
    """Nothing that a test starts outlives it. Asked for last: a server that others use must not get the mark."""
    with marked_environment() as mark:
        yield mark


@pytest.fixture
def leave(ledger: Ledger, tmp_path: Path, marked: Marked) -> Callable[..., LeftCommand]:
    """Start a command of this machine whose host is gone."""
    assert not marked.living()
    return LeavingHost(ledger, tmp_path).leave


def status(ledger: Ledger, command: LeftCommand) -> tuple[str, str, str | None]:
    """Give how the Run and its only Attempt stand, and by what an end is known."""
    run = ledger.run(command.run_id)
    (attempt,) = run.attempts
    return run.status, attempt.status, attempt.evidence


def leader_is_killed(ledger: Ledger, command: LeftCommand) -> int:
    """Kill keeper and leader, and give the group in which the child is left."""
    leader = ledger.execution(command.claim.attempt_id).pid
    assert leader is not None
    keeper = parent_of(leader)
    assert keeper is not None
    kill(keeper)
    kill(leader)
    wait_until(lambda: state_of(leader) in {None, "Z"}, "the leader has ended")
    assert len(ProcFs().living_members(leader)) == 1
    return leader


def test_c09_a_child_that_outlives_its_leader_is_running(
    ledger: Ledger, manual_clock: ManualClock, leave: Callable[..., LeftCommand]
) -> None:
    command = leave("stays")
    group = leader_is_killed(ledger, command)
    manual_clock.advance(LEFT_LEASE_MS)
    worker = ledger.supervise(duties=[Duty.RECOVERY])
    for _ in range(3):
        assert worker.cycle()["recovery"]["found_running"] == 1
        assert status(ledger, command) == ("running", "running", None)
        manual_clock.advance(300_000)
    for member in ProcFs().living_members(group):
        kill(member.pid)
    wait_until(lambda: not ProcFs().living_members(group), "the child has ended")
    assert worker.cycle()["recovery"]["lost"] == 1
    assert status(ledger, command) == ("lost", "lost", "not_running")
    assert command.signals() == [[], []]


def test_c09_a_child_that_nobody_can_tell_from_a_stranger_is_an_operators(
    ledger: Ledger, manual_clock: ManualClock, leave: Callable[..., LeftCommand]
) -> None:
    command = leave("hides")
    leader_is_killed(ledger, command)
    manual_clock.advance(LEFT_LEASE_MS)
    counted = ledger.supervise(duties=[Duty.RECOVERY]).cycle()["recovery"]
    assert (counted["found_identity_unverifiable"], counted["manual"]) == (1, 1)
    assert status(ledger, command) == ("running", "running", None)
    (item,) = ledger.manual().items
    assert (item.run_id, item.reason) == (command.run_id, "identity_unverifiable")
    assert command.signals() == [[], []]


def test_c29_an_attempt_without_a_lease_cannot_be_stored(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running")
    with pytest.raises(IntegrityError):
        change(ledger, "executions", "lease_expires_at_ms = NULL", f"attempt_id = '{claim.attempt_id}'")
    with ledger.database.engine.connect() as connection:
        (row,) = connection.execute(executions.select()).mappings()
    with pytest.raises(IntegrityError), ledger.database.engine.begin() as connection:
        connection.execute(insert(executions), [dict(row) | {"attempt_id": "other", "lease_expires_at_ms": None}])
    # So whatever is active is found once its lease is over.
    manual_clock.advance(LEASE_MS)
    assert only(ledger).attempt_id == claim.attempt_id


def test_c33_what_runs_is_looked_at_less_and_less_often_and_nothing_else(
    ledger: Ledger,
    ledger_factory: ThrowAwayLedgers,
    manual_clock: ManualClock,
    leave: Callable[..., LeftCommand],
) -> None:
    command = leave("stays")
    leader = ledger.execution(command.claim.attempt_id).pid
    assert leader is not None
    manual_clock.advance(LEFT_LEASE_MS)
    before = types(ledger, command.run_id)
    waits = []
    for _ in range(10):
        # By a worker of its own each time: what it goes by is stored.
        counted = ledger_factory().supervise().cycle()
        assert (counted["recovery"]["found_running"], counted["recovery"]["retry"]) == (1, 1)
        assert counted["cancellation"] == {"seen": 0, "claimed": 0}
        row = row_of_item(ledger, Purpose.RECOVERY, command.claim.attempt_id)
        assert row["state"] == "retry"
        wait_ms = row["next_claim_at_ms"] - manual_clock.wall_ms()
        waits.append(wait_ms)
        manual_clock.advance(wait_ms - 1)
        assert ledger_factory().supervise().cycle()["recovery"]["claimed"] == 0
        assert len(ProcFs().living_members(leader)) == 2
        manual_clock.advance(1)
    assert waits == [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, *[300_000] * 4]
    assert status(ledger, command) == ("running", "running", None)
    assert types(ledger, command.run_id) == before
    assert command.signals() == [[], []]


def test_200_items_of_operators_do_not_delay_one_that_can_be_claimed(
    ledger: Ledger, ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    template = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    settled(ledger, claim, retry_in_ms=300_000)
    manual = copied(ledger, template, 200, recover_at_ms=None)
    free = {"reason": "unexpected", "seen": "-", "due_at_ms": None, "next_claim_at_ms": None}
    put_rows(ledger, manual, claim, **(FREE | {"state": "manual"} | free))
    good = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    assert only(ledger_factory(), limit=1).attempt_id == good.attempt_id
    assert page(ledger) == ()


@pytest.mark.parametrize(
    "database_url",
    [
        "sqlite",
        pytest.param("postgresql-16", marks=pytest.mark.long),
        pytest.param("postgresql-18", marks=pytest.mark.long),
    ],
    indirect=True,
)
@pytest.mark.timeout(300)
def test_an_item_that_always_fails_costs_1000_good_ones_behind_it_nothing(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ledger_factory(
        recovery_page=PAGE, failure_limit=FAILURES, recovery_delay_max_ms=WAIT_MS, recovery_delay_ms=WAIT_MS
    )
    with ledger.database.engine.begin() as connection:
        made = []
        for _ in range(1 + GOOD):
            run_id = ledger.create(actor=ANA, task="t", connection=connection).run.run_id
            ledger.claim(run_id, actor=WORKER, executor_type=EXECUTOR, queue=True, connection=connection)
            made.append(run_id)
    poison = made[0]
    read = ledger.recovery_snapshot

    def fails(claim: object) -> Snapshot | None:
        if getattr(claim, "run_id") == poison:  # noqa: B009 - whatever it is
            raise ValueError("cannot be read")
        return read(claim)  # type: ignore[arg-type]  # it is

    monkeypatch.setattr(ledger, "recovery_snapshot", fails)
    worker = ledger.supervise(
        providers=[NotRunning(executor_type=EXECUTOR)],
        local=False,
        duties=[Duty.RECOVERY],
        on_diagnostic=lambda _: None,
    )
    manual_clock.advance(LEASE_MS)
    cycles = [worker.cycle()["recovery"] for _ in range(-(-GOOD // PAGE))]
    assert [each["lost"] for each in cycles] == [PAGE - 1, *[PAGE] * (GOOD // PAGE - 1), GOOD % PAGE + 1]
    assert [each.get("error", 0) for each in cycles] == [1, *[0] * (GOOD // PAGE)]
    assert {ledger.run(run_id).status for run_id in made[1:]} == {"lost"}
    # And it is an operator's in the end.
    for _ in range(FAILURES - 1):
        manual_clock.advance(WAIT_MS)
        assert worker.cycle()["recovery"]["error"] == 1
    (item,) = ledger.manual().items
    assert (item.run_id, item.reason, ledger.run(poison).status) == (poison, "failure_limit", "dispatching")

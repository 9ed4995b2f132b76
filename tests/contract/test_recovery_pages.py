"""
What a page of recovery costs: a range of an index, whatever stands in front of it, and nothing where all is well.

R8.2, R11.1, R11.2, R11.7, R11.9; case C31 for recovery.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from deliveries import asked_to_stop, brought_to
from recoveries import (
    ELSEWHERE,
    FREE,
    LEASE_MS,
    SERVED,
    TWO,
    UNSERVED_MS,
    change,
    copied,
    only,
    page,
    put_rows,
    settled,
    without_an_attempt,
)
from runfacts import Ledger
from runfacts.domain.recovery.claims import ManualReason, Purpose
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.stores.recovery_pages import (
    AHEAD_ATTEMPTS,
    CLAIMS_AHEAD,
    DUE_ATTEMPTS,
    DUE_CLAIMS,
    OWNERLESS_RUNS,
    SELECT_UNSERVED_ATTEMPTS,
    SELECT_UNSERVED_CLAIMS,
    STUCK_RUNS,
)
from runfacts.infrastructure.stores.recovery_sweep import SELECT_MANUAL_CLAIMS, SELECT_UNDER_WAY
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.ledgers import ThrowAwayLedgers
from runfacts.testing.steps import RecordedSteps, listening
from stages import created, one_writer, unchanged

HOUR = 3_600_000
MANUAL = {"state": "manual", "reason": "unexpected", "seen": "-", "due_at_ms": None, "next_claim_at_ms": None}


def test_a_clean_page_writes_nothing_and_takes_no_lock(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    asked_to_stop(ledger)
    created(ledger)
    manual_clock.advance(LEASE_MS - 1)
    for purpose in Purpose:
        recorded = RecordedSteps()
        with unchanged(ledger), listening(ledger, recorded):
            assert page(ledger, purpose) == ()
        # No transaction that writes has begun: none is committed.
        assert "sql:before:commit" not in recorded.names
        assert not [name for name in recorded.names if "lock" in name]


def test_a_clean_sweep_takes_no_lock_either(ledger: Ledger, manual_clock: ManualClock) -> None:
    brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    only(ledger)
    recorded = RecordedSteps()
    with unchanged(ledger), listening(ledger, recorded):
        ledger.sweep_recoveries()
        ledger.scan_recoveries(SERVED, limit=1)
    assert "sql:before:commit" not in recorded.names


@pytest.fixture(params=[200, pytest.param(5_000, marks=pytest.mark.long)])
def crowd(request: pytest.FixtureRequest, ledger: Ledger, manual_clock: ManualClock) -> str:
    """Attempts that nobody can claim now, all older than one that can be claimed; that one's id."""
    count: int = request.param
    template = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    settled(ledger, claim, retry_in_ms=300_000)
    wait_ms = EPOCH_MS + LEASE_MS + 300_000
    held_ms = EPOCH_MS + 2 * LEASE_MS
    manual = copied(ledger, template, count // 2, recover_at_ms=None)
    put_rows(ledger, manual, claim, **MANUAL)
    backing_off = copied(ledger, template, count // 4, recover_at_ms=wait_ms)
    put_rows(ledger, backing_off, claim, next_claim_at_ms=wait_ms, due_at_ms=wait_ms)
    boot = {"claim_boot_id": manual_clock.boot_id(), "claim_expires_boot_ms": manual_clock.boot_ms() + LEASE_MS}
    held = copied(ledger, template, count // 4, recover_at_ms=held_ms)
    owned = {"state": "claimed", "owner": TWO, "token_digest": "d" * 64, "next_claim_at_ms": None}
    times = {"claim_expires_at_ms": held_ms, "due_at_ms": held_ms} | (boot if one_writer(ledger) else {})
    put_rows(ledger, held, claim, **(FREE | owned | times))
    good = brought_to(ledger, "running")
    change(
        ledger,
        "executions",
        f"recover_at_ms = {EPOCH_MS + LEASE_MS}, lease_expires_at_ms = {EPOCH_MS + LEASE_MS}"
        + (f", lease_expires_boot_ms = {manual_clock.boot_ms()}" if one_writer(ledger) else ""),
        f"attempt_id = '{good.attempt_id}'",
    )
    return good.attempt_id


def test_c31_rows_that_cannot_be_claimed_do_not_delay_one_that_can(
    ledger: Ledger, ledger_factory: ThrowAwayLedgers, crowd: str
) -> None:
    with unchanged(ledger):
        assert page(ledger, served=ELSEWHERE) == ()
    assert only(ledger_factory(), limit=1).attempt_id == crowd
    with unchanged(ledger):
        assert page(ledger) == ()


def test_runs_that_wait_for_an_operator_do_not_delay_one_that_can_be_claimed(
    ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock
) -> None:
    ledger = ledger_factory()
    made = [created(ledger) for _ in range(40)]
    manual_clock.advance(HOUR)
    while claims := page(ledger):
        for claim in claims:
            settled(ledger, claim, manual=ManualReason.STUCK_CREATED)
    manual_clock.advance(1)
    late = created(ledger)
    ownerless = without_an_attempt(ledger)
    assert only(ledger, limit=1).run_id == ownerless
    manual_clock.advance(HOUR)
    # Also by a worker that has just come, and passes over the others for the first time.
    taken = {claim.run_id for claim in page(ledger_factory(), owner=TWO)}
    assert taken == {late, ownerless}
    assert late not in made


def test_what_waits_for_an_operator_is_passed_over_once(ledger: Ledger, manual_clock: ManualClock) -> None:
    for _ in range(3):
        created(ledger)
    manual_clock.advance(HOUR)
    for claim in page(ledger):
        settled(ledger, claim, manual=ManualReason.STUCK_CREATED)
    manual_clock.advance(120_000)
    assert page(ledger) == ()
    # Later pages begin where this one ended, a minute for late commits before.
    assert ledger._walks.at(manual_clock.database_ms())[STUCK_RUNS] == EPOCH_MS + 60_000
    # Now and then a walk begins anew: nothing is passed over for ever.
    manual_clock.advance(600_000)
    assert ledger._walks.at(manual_clock.database_ms()) == {}


PARAMETERS: dict[str, Any] = {
    "executor_type": "batch",
    "scope": "here",
    "purpose": "recovery",
    "limit": 17,
    "until_ms": EPOCH_MS + HOUR,
    "ahead_ms": EPOCH_MS + HOUR,
    "now_ms": EPOCH_MS + HOUR,
    "after_ms": -1,
    "after_id": "",
    "after_purpose": "",
    "after_executor_type": "",
    "after_scope": "",
    "after_due_at_ms": -1,
    "after_updated_at_ms": -1,
    "after_item_id": "",
}
RECOVERY, DUE, MANUAL_QUEUE = "ix_executions_recovery", "ix_recovery_claims_due", "ix_recovery_claims_manual"
PLANS = [
    (DUE_ATTEMPTS.looked, "executions", RECOVERY),
    (DUE_ATTEMPTS.held, "executions", RECOVERY),
    (AHEAD_ATTEMPTS.looked, "executions", RECOVERY),
    (DUE_CLAIMS.looked, "recovery_claims", DUE),
    (DUE_CLAIMS.held, "recovery_claims", DUE),
    (CLAIMS_AHEAD.looked, "recovery_claims", DUE),
    (OWNERLESS_RUNS.looked, "runs", "ix_runs_ownerless"),
    (STUCK_RUNS.looked, "runs", "ix_runs_board_status"),
    (SELECT_UNSERVED_ATTEMPTS, "executions", RECOVERY),
    (SELECT_UNSERVED_CLAIMS, "recovery_claims", DUE),
    (SELECT_UNDER_WAY, "recovery_claims", DUE),
    (SELECT_MANUAL_CLAIMS, "recovery_claims", MANUAL_QUEUE),
]


@pytest.mark.parametrize(("statement", "table", "index"), PLANS, ids=lambda each: getattr(each, "name", None))
def test_c31_a_page_is_a_range_of_an_index_however_many_rows_there_are(
    ledger: Ledger, manual_clock: ManualClock, statement: Statement, table: str, index: str
) -> None:
    template = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    claim = only(ledger)
    put_rows(ledger, copied(ledger, template, 300), claim)
    parameters = PARAMETERS | (
        {"boot_id": manual_clock.boot_id(), "boot_ms": manual_clock.boot_ms()} if one_writer(ledger) else {}
    )
    compiled = statement.compiled(ledger.database.dialect)
    bound = compiled.bind(parameters)
    with ledger.database.engine.connect() as connection:
        if one_writer(ledger):
            lines = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled.text}", bound)]
            assert any(f"INDEX {index} (" in line for line in lines), lines
            assert not [line for line in lines if "TEMP B-TREE" in line], lines
            scans = [line for line in lines if line.startswith("SCAN") and line not in {"SCAN s", "SCAN CONSTANT ROW"}]
            assert not scans, lines
            return
        connection.execute(text("ANALYZE"))
        # What is only cheaper for so few rows.
        for way in ("seqscan", "bitmapscan", "hashjoin", "mergejoin"):
            connection.execute(text(f"SET LOCAL enable_{way} = off"))
        found = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {compiled.text}", bound).scalar_one()
        tree = found if isinstance(found, list) else json.loads(found)
        nodes = list(_nodes(tree[0]["Plan"]))
        own = [node for node in nodes if node.get("Relation Name") == table]
        assert {node.get("Index Name") for node in own} == {index}, tree
        assert all("Index Cond" in node for node in own if "LIMIT" not in compiled.text or node is own[0]), tree
        assert "Seq Scan" not in {node["Node Type"] for node in nodes}, tree
        assert not [node for node in nodes if node["Node Type"] == "Sort"], tree


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def test_executions_left_open_behind_ended_attempts_take_no_place_in_a_page(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    template = brought_to(ledger, "running")
    # Damage, which `verify` reports: no command leaves it so (R2.7).
    damaged = copied(ledger, template, 20, recover_at_ms=EPOCH_MS)
    change(ledger, "attempts", f"status = 'lost', finished_at_ms = {EPOCH_MS}", f"attempt_id IN {tuple(damaged)}")
    manual_clock.advance(LEASE_MS)
    (claim,) = page(ledger)
    assert claim.attempt_id == template.attempt_id


def test_a_page_asks_as_much_for_one_as_for_many(ledger: Ledger, manual_clock: ManualClock) -> None:
    def asked() -> int:
        recorded = RecordedSteps()
        with listening(ledger, recorded):
            assert page(ledger)
        return len([name for name in recorded.names if name.startswith("sql:before:")])

    template = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    one = asked()
    copied(ledger, template, 16, recover_at_ms=EPOCH_MS + LEASE_MS)
    assert asked() <= one


def test_scopes_are_skipped_through(ledger: Ledger, manual_clock: ManualClock) -> None:
    template = brought_to(ledger, "running")
    for number in range(5):
        copied(ledger, template, 10, scope=f"scope-{number}")
    manual_clock.advance(LEASE_MS + UNSERVED_MS)
    young = brought_to(ledger, "running")
    change(ledger, "executions", "scope = 'young'", f"attempt_id = '{young.attempt_id}'")
    parameters = {"executor_type": "batch", "until_ms": EPOCH_MS + LEASE_MS}
    with ledger.database.reading() as reading:
        found = [row[0] for row in reading.rows(SELECT_UNSERVED_ATTEMPTS, parameters)]
    assert found == ["here", *(f"scope-{number}" for number in range(5))]
    manual_clock.advance(LEASE_MS)
    taken = page(ledger, served=frozenset({("batch", "young")}), limit=128)
    assert (len(taken), taken[0].attempt_id) == (52, young.attempt_id)
    assert {claim.foreign for claim in taken[1:]} == {True}

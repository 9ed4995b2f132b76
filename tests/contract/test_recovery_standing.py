"""What people see of recovery at a Run and on the board: the one claim that matters now (R11.2, R12, R13.1)."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from deliveries import OPERATOR, asked_to_stop, brought_to
from left_rows import left_to_operators, put_row
from runfacts import Ledger, Outcome, RecoveryView, RetryPolicy, RunStatus
from runfacts.domain.recovery.claims import ClaimState, ManualReason, Purpose
from runfacts.infrastructure.database.dialects import SQLITE
from runfacts.infrastructure.stores import board
from runfacts.testing.clock import EPOCH_MS, ManualClock
from stages import ANA, WORKER, created, queued

LEASE_MS = 30_000
NOW_MS = EPOCH_MS + LEASE_MS
FAILED = Outcome.failed(exit_code=1)


def stands(ledger: Ledger, run_id: str) -> RecoveryView | None:
    """What stands at a Run, which must stand on the board too."""
    shown = ledger.run(run_id).recovery
    (listed,) = [item.recovery for item in ledger.runs().items if item.run_id == run_id]
    assert listed == shown
    return shown


def test_about_a_run_that_its_worker_looks_after_nothing_stands(ledger: Ledger) -> None:
    done = brought_to(ledger, "running")
    ledger.finish(done, Outcome.succeeded(exit_code=0), actor=WORKER)
    runs = (created(ledger), queued(ledger), brought_to(ledger, "running").run_id, done.run_id)
    assert [stands(ledger, run_id) for run_id in runs] == [None] * 4


@pytest.mark.parametrize(
    ("state", "reason", "next_at_ms"),
    [
        (ClaimState.AVAILABLE, None, None),
        (ClaimState.CLAIMED, None, None),
        (ClaimState.RETRY, None, NOW_MS + 5_000),
        (ClaimState.MANUAL, ManualReason.IDENTITY_UNVERIFIABLE, None),
        (ClaimState.RESOLVED, None, None),
    ],
)
def test_the_recovery_of_the_active_attempt_stands_at_its_run(
    ledger: Ledger, manual_clock: ManualClock, state: ClaimState, reason: ManualReason | None, next_at_ms: int | None
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    put_row(ledger, Purpose.RECOVERY, state, claim.run_id, claim.attempt_id, version=6)
    assert stands(ledger, claim.run_id) == RecoveryView(state, Purpose.RECOVERY, 6, reason, next_at_ms)


def test_what_stands_follows_the_run_from_its_loss_to_its_next_attempt(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    policy = RetryPolicy(max_attempts=2, retry_on_failure=True)
    claim = brought_to(ledger, "running", policy=policy)
    run_id = claim.run_id
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, claim)
    ledger.attest_not_running(run_id, actor=OPERATOR, because="I looked", version=2)
    assert ledger.run(run_id).status is RunStatus.LOST
    assert stands(ledger, run_id) == RecoveryView(ClaimState.AVAILABLE, Purpose.RETRY, 0, None, None)
    failed = brought_to(ledger, "running", policy=policy)
    ledger.finish(failed, FAILED, actor=WORKER)
    waiting = stands(ledger, failed.run_id)
    assert waiting == RecoveryView(ClaimState.AVAILABLE, Purpose.RETRY, 0, None, None)
    (summary,) = [item for item in ledger.runs().items if item.run_id == failed.run_id]
    assert (summary.status, summary.retry_due_at_ms) == (RunStatus.RETRY_WAIT, NOW_MS + 1_000)
    manual_clock.advance(1_000)
    ledger.queue(failed.run_id, actor=ANA)
    assert stands(ledger, failed.run_id) is None


def test_of_a_run_that_was_asked_to_stop_the_stop_stands_and_no_row_from_before(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, claim, version=9)
    ledger.request_cancellation(claim.run_id, actor=ANA)
    assert stands(ledger, claim.run_id) == RecoveryView(ClaimState.AVAILABLE, Purpose.STOP, 0, None, None)
    left_to_operators(ledger, claim, Purpose.STOP, reason="conflicting_evidence")
    conflicting = ManualReason.CONFLICTING_EVIDENCE
    assert stands(ledger, claim.run_id) == RecoveryView(ClaimState.MANUAL, Purpose.STOP, 2, conflicting, None)
    ledger.finish(claim, Outcome.cancelled(signal=15), actor=WORKER)
    assert stands(ledger, claim.run_id) == RecoveryView(ClaimState.RESOLVED, Purpose.STOP, 3, None, None)


def test_a_run_that_is_stuck_says_so(ledger: Ledger) -> None:
    run_id = created(ledger)
    put_row(ledger, Purpose.RECOVERY, ClaimState.MANUAL, run_id, reason="stuck_created", executor_type="", scope="")
    stuck = ManualReason.STUCK_CREATED
    assert stands(ledger, run_id) == RecoveryView(ClaimState.MANUAL, Purpose.RECOVERY, 2, stuck, None)


def test_the_version_that_a_run_shows_is_what_the_verbs_take(ledger: Ledger, manual_clock: ManualClock) -> None:
    claim = brought_to(ledger, "running")
    manual_clock.advance(LEASE_MS)
    left_to_operators(ledger, claim, version=4)
    shown, (item,) = stands(ledger, claim.run_id), ledger.manual().items
    assert shown is not None
    assert shown.version == item.version == 4
    answer = ledger.release(claim.run_id, actor=OPERATOR, because="look again", version=shown.version)
    assert stands(ledger, claim.run_id) == RecoveryView(
        ClaimState.AVAILABLE, Purpose.RECOVERY, answer.version, None, None
    )


def test_the_boards_filters_and_pages_hold_with_recoveries_too(ledger: Ledger, manual_clock: ManualClock) -> None:
    claims = [brought_to(ledger, "running", project="a") for _ in range(3)]
    asked_to_stop(ledger, project="b")
    manual_clock.advance(LEASE_MS)
    for claim in claims:
        left_to_operators(ledger, claim)
        put_row(ledger, Purpose.RETRY, ClaimState.RESOLVED, claim.run_id, claim.attempt_id)
        put_row(ledger, Purpose.STOP, ClaimState.RESOLVED, claim.run_id, claim.attempt_id)
    first = ledger.runs(project="a", status=RunStatus.RUNNING, limit=2)
    rest = ledger.runs(project="a", status=RunStatus.RUNNING, limit=2, after=first.next)
    assert [item.run_id for item in (*first.items, *rest.items)] == [claim.run_id for claim in claims[::-1]]
    assert rest.next is None


def test_a_page_of_the_board_finds_each_claim_by_its_key(ledger: Ledger) -> None:
    dialect = ledger.database.dialect
    for (by_status, by_project, goes_on), statement in board._BOARDS.items():
        place = {"limit": 3, "statuses": ["running"], "project": "a", "after_ms": 5, "after_id": "x"}
        wanted = {"limit"} | ({"statuses"} if by_status else set()) | ({"project"} if by_project else set())
        wanted |= {"after_ms", "after_id"} if goes_on else set()
        compiled = statement.compiled(dialect)
        explain = "EXPLAIN QUERY PLAN " if dialect == SQLITE else "EXPLAIN "
        with ledger.database.engine.begin() as connection:
            if dialect != SQLITE:
                # An empty table is read whole whatever indexes it has.
                connection.execute(text("SET LOCAL enable_seqscan = off"))
                connection.execute(text("SET LOCAL enable_hashjoin = off"))
                connection.execute(text("SET LOCAL enable_mergejoin = off"))
            cursor = connection.connection.cursor()
            cursor.execute(explain + compiled.text, compiled.bind({name: place[name] for name in wanted}))
            plan = "\n".join(str(row[-1]) for row in cursor.fetchall())
        key = "sqlite_autoindex_recovery_claims_1" if dialect == SQLITE else "pk_recovery_claims"
        assert key in plan, plan
        if dialect == SQLITE:
            assert "(purpose=? AND kind=? AND item_id=?)" in plan
        else:
            assert "((purpose = CASE" in plan
            assert "(item_id = CASE" in plan

"""Where a Run stands that nobody reports on, in words (R11.2, R12, R13.1)."""

from __future__ import annotations

import pytest

from runfacts import (
    AttemptStatus,
    AttemptView,
    CancellationView,
    DispatchStatus,
    DispatchView,
    ExecutionOwner,
    IntentKind,
    LeaseState,
    RecoveryView,
    RetryPolicy,
    RunStatus,
    RunSummary,
    RunView,
)
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.recovery.claims import ClaimState, ManualReason, Purpose
from runfacts.infrastructure.cli.standing import standing_of, standing_on_board

AT_MS = 1_700_000_000_000
AT = "2023-11-14T22:13:20.000Z"
RUN_ID = "01890000-0000-7000-8000-000000000001"
ATTEMPT_ID = "01890000-0000-7000-8000-00000000000a"


def claim(state: str, purpose: str = "recovery") -> RecoveryView:
    waits, manual = state == "retry", state == "manual"
    reason = ManualReason.IDENTITY_UNVERIFIABLE if manual else None
    return RecoveryView(ClaimState(state), Purpose(purpose), 3, reason, AT_MS if waits else None)


def board(
    status: str, recovery: RecoveryView | None = None, *, dispatch: str | None = None, due_at_ms: int | None = None
) -> str | None:
    """What the board says; ``dispatch`` where the Run was asked to stop."""
    asked = dispatch is not None
    delivery = DispatchStatus(dispatch) if dispatch else None
    intent_at_ms = 5 if asked else None
    return standing_on_board(
        RunSummary(RUN_ID, "p", "t", RunStatus(status), 7, 1, intent_at_ms, delivery, recovery, due_at_ms)
    )


def shown(
    status: str,
    recovery: RecoveryView | None = None,
    *,
    evidence: Evidence | None = None,
    lease: LeaseState = LeaseState.VALID,
    dispatch: str | None = None,
    due_at_ms: int | None = None,
) -> str | None:
    """What stands at the Run."""
    attempt = AttemptView(
        attempt_id=ATTEMPT_ID,
        number=1,
        status=AttemptStatus.RUNNING,
        executor_type="local",
        worker_id=None,
        exit_code=None,
        signal=None,
        error_code=None,
        error_summary=None,
        observed=None,
        lease=lease,
        lease_expires_at_ms=9,
        deadline_at_ms=None,
        claimed_at_ms=1,
        started_at_ms=2,
        running_at_ms=3,
        finished_at_ms=None,
        evidence=evidence,
    )
    delivery = None if dispatch is None else DispatchView(DispatchStatus(dispatch), 2, 1, None, None)
    run = RunView(
        run_id=RUN_ID,
        project="p",
        task="t",
        status=RunStatus(status),
        version=7,
        execution_owner=ExecutionOwner.RUNTIME,
        policy=RetryPolicy(),
        idempotency_key=None,
        retry_of_run_id=None,
        created_at_ms=1,
        updated_at_ms=1,
        finished_at_ms=None,
        deadline_at_ms=None,
        retry_due_at_ms=due_at_ms,
        attempts=(attempt,),
        cancellation=None if dispatch is None else CancellationView(5, IntentKind.USER, None, delivery),
        recovery=recovery,
    )
    return standing_of(run)


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        ("running", None, None),
        ("running", "resolved", None),
        ("running", "available", "its worker vanished; waits to be looked at"),
        ("dispatching", "claimed", "its worker vanished; being recovered by a worker"),
        ("waiting_approval", "retry", f"its worker vanished; looked at again at {AT}"),
        ("running", "manual", "waits for an operator: identity_unverifiable"),
        ("created", None, None),
        ("created", "available", "created and never queued; waits to be looked at"),
        ("created", "claimed", "created and never queued; being looked at"),
        ("created", "retry", f"created and never queued; looked at again at {AT}"),
        ("created", "manual", "waits for an operator: identity_unverifiable"),
        ("queued", None, None),
    ],
)
def test_what_is_under_way_says_who_looks_after_it(status: str, state: str | None, words: str | None) -> None:
    recovery = None if state is None else claim(state)
    assert board(status, recovery) == words
    assert shown(status, recovery) == words


@pytest.mark.parametrize(
    ("dispatch", "state", "words"),
    [
        ("pending", "available", None),
        ("leased", "available", None),
        ("dispatched", "available", "signalled, its end is not reported yet"),
        ("dispatched", "retry", f"signalled, still running; looked at again at {AT}"),
        ("blocked", "retry", f"asked to stop, not proven to have stopped; looked at again at {AT}"),
        ("dispatched", "claimed", "asked to stop; a worker looks whether it has"),
        ("blocked", "manual", "waits for an operator: identity_unverifiable"),
    ],
)
def test_what_was_asked_to_stop_says_how_far_that_is(dispatch: str, state: str, words: str | None) -> None:
    recovery = claim(state, "stop")
    assert board("running", recovery, dispatch=dispatch) == words
    assert shown("running", recovery, dispatch=dispatch) == words


@pytest.mark.parametrize(
    ("evidence", "state", "words"),
    [
        (Evidence.NOT_RUNNING, "available", "lost on proof; a retry is not decided yet"),
        (Evidence.PRE_START, "claimed", "lost on proof; a retry is being decided"),
        (Evidence.ATTESTED, "available", "lost on an operator's word; a retry is not decided yet"),
        (Evidence.NOT_RUNNING, "retry", f"lost on proof; looked at again at {AT}"),
        (Evidence.NOT_RUNNING, "manual", "waits for an operator: identity_unverifiable"),
    ],
)
def test_what_is_lost_says_by_what_that_is_known(evidence: Evidence, state: str, words: str) -> None:
    recovery = claim(state, "retry")
    assert shown("lost", recovery, evidence=evidence) == words
    # The board does not know by what.
    assert board("lost", recovery) == words.replace(" on proof", "").replace(" on an operator's word", "")


@pytest.mark.parametrize(
    ("evidence", "state", "words"),
    [
        (Evidence.NOT_RUNNING, "available", f"lost on proof, waits for a retry at {AT}"),
        (Evidence.ATTESTED, "available", f"lost on an operator's word, waits for a retry at {AT}"),
        (None, "available", f"waits for a retry at {AT}"),
        (None, "retry", f"waits for a retry; looked at again at {AT}"),
        (None, "claimed", "its retry is being queued by a worker"),
        (None, "manual", "waits for an operator: identity_unverifiable"),
    ],
)
def test_what_waits_for_its_retry_says_until_when(evidence: Evidence | None, state: str, words: str) -> None:
    recovery = claim(state, "retry")
    assert shown("retry_wait", recovery, evidence=evidence, due_at_ms=AT_MS) == words
    if evidence is None:
        assert board("retry_wait", recovery, due_at_ms=AT_MS) == words


def test_a_run_whose_lease_has_expired_says_so_before_anybody_has_looked() -> None:
    words = "its worker's lease has expired; waits to be looked at"
    assert shown("running", lease=LeaseState.EXPIRED) == words
    assert shown("running", claim("resolved"), lease=LeaseState.EXPIRED) == words
    assert shown("running", claim("claimed"), lease=LeaseState.EXPIRED) != words
    assert shown("running", lease=LeaseState.EXPIRED, dispatch="pending") is None


@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "timed_out"])
@pytest.mark.parametrize("state", ["manual", "retry", "resolved"])
def test_what_has_ended_waits_for_nobody(status: str, state: str) -> None:
    assert board(status, claim(state)) is None
    assert shown(status, claim(state), dispatch="blocked") is None

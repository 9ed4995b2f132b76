"""
What operators see of cancellations, and what they can do: blocked, unproven, rearm, abandon, confirm-stopped.

R2.5, R6.2, R7.4 to R7.6, R8.2, R13.1, R13.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

import later_release
from deliveries import (
    LEASE_MS,
    OPERATOR,
    TWO,
    Asked,
    asked_to_stop,
    brought_to,
    due_runs,
    held_by,
    last_fact,
    refused_as,
    settled_with,
    stored,
)
from evidence_doubles import Provider
from runfacts import (
    AttemptStatus,
    DedupeConflict,
    ExecutionOwner,
    IntentKind,
    InvalidCursor,
    InvalidValue,
    LateCallback,
    Ledger,
    LegacyRun,
    Outcome,
    RetryPolicy,
    RunNotFound,
    RunStatus,
    RunVersionConflict,
    UnknownFactsInRun,
)
from runfacts.domain.cancellation.dispatch import ClaimAnswer
from runfacts.domain.cancellation.operators import DIAGNOSES, Abandoned, Rearmed, StopConfirmed
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.errors import DispatchVersionConflict, StillRunning, VerbRefused
from runfacts.domain.lifecycle import AttemptStatus as Status
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptRunning,
    AttemptStarting,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunQueued,
    RunRunning,
)
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking, Unknown
from runfacts.testing.clock import EPOCH_MS, ManualClock
from runfacts.testing.given_when_then import given_in
from runfacts.testing.ledgers import ThrowAwayLedgers
from stages import WORKER, created, queued, types, unchanged

MISMATCH = DispatchResult.IDENTITY_MISMATCH
DELIVERED = DispatchResult.TERMINATION_REQUESTED
NOBODY = "01890000-0000-7000-8000-000000000001"
MINUTE = 60_000
Verb = Callable[[Ledger, str, int], object]
ASKED_WHILE_RUNNING = (
    RunCreated(task="report", policy=RetryPolicy()),
    RunQueued(),
    RunDispatching(number=1),
    AttemptClaimed(number=1, executor_type="batch"),
    AttemptStarting(),
    AttemptRunning(),
    RunRunning(),
    RunCancelRequested(kind=IntentKind.USER),
)


def rearm(ledger: Ledger, run_id: str, version: int, because: str = "mended", **other: Any) -> Rearmed:  # noqa: ANN401
    return ledger.rearm(run_id, actor=OPERATOR, because=because, version=version, **other)


def abandon(ledger: Ledger, run_id: str, version: int, because: str = "hopeless") -> Abandoned:
    return ledger.abandon(run_id, actor=OPERATOR, because=because, version=version)


def confirm(ledger: Ledger, run_id: str, version: int, because: str = "saw it", **other: Any) -> StopConfirmed:  # noqa: ANN401
    return ledger.confirm_stopped(run_id, actor=OPERATOR, because=because, version=version, **other)


# blocked


@pytest.mark.parametrize(
    "result", ["identity_mismatch", "pid_mismatch", "unsupported", "invalid", "scope_mismatch", "group_survivors"]
)
def test_what_is_blocked_is_listed_with_age_reason_and_diagnosis(
    ledger: Ledger, manual_clock: ManualClock, result: str
) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(9)
    settled_with(ledger, asked, DispatchResult(result))
    (item,) = ledger.blocked().items
    assert (item.run_id, item.attempt_id, item.reason) == (asked.run_id, asked.attempt_id, result)
    assert (item.since_ms, item.version, item.diagnosis) == (EPOCH_MS + 9, 2, DIAGNOSES[result])


def test_what_nobody_of_its_scope_claims_is_listed_after_a_while(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    manual_clock.advance(10 * MINUTE - 1)
    assert ledger.blocked().items == ()
    manual_clock.advance(1)
    (item,) = ledger.blocked().items
    assert (item.run_id, item.reason, item.since_ms, item.version) == (asked.run_id, "scope_unserved", EPOCH_MS, 0)
    # It is only listed: a worker of its scope that comes after all delivers it, and no other does (R8.2).
    assert refused_as(ledger, asked, served=frozenset({("batch", "there")})) is ClaimAnswer.NOT_ELIGIBLE
    held_by(ledger, asked)
    assert ledger.blocked().items == ()


def test_the_queue_has_pages_blocked_ones_first(ledger: Ledger, manual_clock: ManualClock) -> None:
    unserved = [asked_to_stop(ledger).run_id for _ in range(3)]
    blocked = []
    for _ in range(3):
        manual_clock.advance(1)
        asked = asked_to_stop(ledger)
        settled_with(ledger, asked, MISMATCH)
        blocked.append(asked.run_id)
    manual_clock.advance(10 * MINUTE)
    expected = [*blocked, *sorted(unserved)]
    for size in (1, 2, 3, 4, 6):
        seen: list[str] = []
        after: str | None = None
        while True:
            page = ledger.blocked(limit=size, after=after)
            assert len(page.items) <= size
            seen += [item.run_id for item in page.items]
            after = page.next
            if after is None:
                break
        assert seen == expected, size


@pytest.mark.parametrize("cursor", ["", "x1:a", "b", "b1", "bx:a", "b²:a", "b-1:a"])
def test_a_cursor_that_is_none_of_ours_is_refused(ledger: Ledger, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        ledger.blocked(after=cursor)
    with pytest.raises(InvalidCursor):
        ledger.unproven(after=cursor)


def test_rows_of_ended_runs_and_abandoned_ones_are_in_no_queue(ledger: Ledger, manual_clock: ManualClock) -> None:
    ended, given_up, late = asked_to_stop(ledger), asked_to_stop(ledger), asked_to_stop(ledger)
    for asked in (ended, given_up):
        settled_with(ledger, asked, MISMATCH)
    ledger.finish(ended.claim, Outcome.cancelled(signal=15), actor=WORKER)
    abandon(ledger, given_up.run_id, 2)
    ledger.finish(late.claim, Outcome.cancelled(signal=15), actor=WORKER)
    with ledger.database.engine.begin() as connection:
        connection.execute(text(f"UPDATE cancellation_dispatches SET due_at_ms = 5 WHERE run_id = '{late.run_id}'"))
    manual_clock.advance(60 * MINUTE)
    assert ledger.blocked().items == ()


# unproven


def reasons(ledger: Ledger) -> dict[str, str]:
    return {item.run_id: item.reason for item in ledger.unproven().items}


def test_a_stop_is_unproven_from_the_request_to_the_evidence(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    run_id = asked.run_id
    assert reasons(ledger) == {run_id: "waiting"}
    held = held_by(ledger, asked)
    assert reasons(ledger) == {run_id: "delivering"}
    ledger.settle_dispatch(held, DispatchResult.DISPATCH_ERROR)
    assert reasons(ledger) == {run_id: "waiting"}
    manual_clock.advance(1_000)
    settled_with(ledger, asked, DELIVERED)
    assert reasons(ledger) == {run_id: "signalled"}
    (item,) = ledger.unproven().items
    assert (item.attempt_id, item.since_ms, item.version) == (asked.attempt_id, EPOCH_MS, ledger.run(run_id).version)
    assert "perhaps still running" in item.diagnosis
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    assert reasons(ledger) == {}


def test_what_never_passed_its_barrier_and_what_nobody_asked_is_not_unproven(ledger: Ledger) -> None:
    asked_to_stop(ledger, "claimed")
    brought_to(ledger, "running")
    ledger.request_cancellation(queued(ledger), actor=OPERATOR)
    assert reasons(ledger) == {}
    starting = asked_to_stop(ledger, "starting")
    assert reasons(ledger) == {starting.run_id: "waiting"}


def test_a_blocked_stop_says_why_it_is_unproven(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, MISMATCH)
    (item,) = ledger.unproven().items
    assert (item.reason, item.diagnosis) == ("identity_mismatch", DIAGNOSES["identity_mismatch"])


def test_what_ended_on_an_operators_word_is_listed_last(ledger: Ledger, manual_clock: ManualClock) -> None:
    attested = []
    for _ in range(2):
        asked = asked_to_stop(ledger)
        manual_clock.advance(1)
        confirm(ledger, asked.run_id, ledger.run(asked.run_id).version)
        attested.append(asked.run_id)
    still_open = []
    for _ in range(2):
        manual_clock.advance(1)
        still_open.append(asked_to_stop(ledger).run_id)
    for size in (1, 2, 3, 4):
        seen: list[tuple[str, str]] = []
        after: str | None = None
        while True:
            page = ledger.unproven(limit=size, after=after)
            seen += [(item.run_id, item.reason) for item in page.items]
            after = page.next
            if after is None:
                break
        assert seen == [(run, "waiting") for run in still_open] + [(run, "attested") for run in attested], size


# rearm


@pytest.mark.parametrize(("result", "status"), [(MISMATCH, "blocked"), (DELIVERED, "dispatched")])
def test_rearm_gives_new_tries_after_a_delay(
    ledger: Ledger, manual_clock: ManualClock, result: DispatchResult, status: str
) -> None:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, result)
    assert stored(ledger, asked, "status") == (status,)
    manual_clock.advance(100)
    due_at_ms = EPOCH_MS + 100 + 2_500
    assert rearm(ledger, asked.run_id, 2, delay_ms=2_500) == Rearmed(asked.run_id, 3, due_at_ms)
    columns = ("status", "version", "dispatch_count", "tries_since_rearm", "next_attempt_at_ms", "last_result")
    assert stored(ledger, asked, *columns) == ("retry_wait", 3, 1, 0, due_at_ms, result.value)
    said = {"attempt_id": asked.attempt_id, "delay_ms": 2_500, "reason": "mended"}
    expected = ("run.cancel_dispatch_rearmed", said, f"rearm:{asked.run_id}:2")
    assert last_fact(ledger, asked.run_id) == expected
    assert ledger.history(asked.run_id)[-1].actor == OPERATOR
    manual_clock.advance(2_499)
    assert refused_as(ledger, asked) is ClaimAnswer.NOT_DUE
    assert due_runs(ledger) == []
    manual_clock.advance(1)
    assert due_runs(ledger) == [asked.run_id]
    assert held_by(ledger, asked, TWO).dispatch_count == 2
    assert ledger.verify().clean


def test_rearm_after_abandon_begins_anew(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    abandon(ledger, asked.run_id, 0)
    assert rearm(ledger, asked.run_id, 1).next_attempt_at_ms == EPOCH_MS + 1_000


@pytest.mark.parametrize("delay_ms", [-1, 0, 999, 86_400_001])
def test_a_rearms_delay_has_bounds(ledger: Ledger, delay_ms: int) -> None:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, MISMATCH)
    with unchanged(ledger), pytest.raises(InvalidValue, match="rearm_delay_ms"):
        rearm(ledger, asked.run_id, 2, delay_ms=delay_ms)


@pytest.mark.parametrize("stage", ["pending", "leased", "expired", "retry_wait"])
def test_what_goes_on_by_itself_is_not_rearmed(ledger: Ledger, manual_clock: ManualClock, stage: str) -> None:
    asked = asked_to_stop(ledger)
    version = 0
    if stage != "pending":
        held = held_by(ledger, asked)
        version = 1
        if stage == "retry_wait":
            ledger.settle_dispatch(held, DispatchResult.DISPATCH_ERROR)
            version = 2
        if stage == "expired":
            manual_clock.advance(LEASE_MS)
    with unchanged(ledger), pytest.raises(VerbRefused, match="its dispatch is"):
        rearm(ledger, asked.run_id, version)


# abandon


@pytest.mark.parametrize("stage", ["pending", "expired", "retry_wait", "dispatched", "blocked"])
def test_abandon_ends_the_delivery_from_any_status_that_nobody_holds(
    ledger: Ledger, manual_clock: ManualClock, stage: str
) -> None:
    asked = asked_to_stop(ledger)
    version = 0
    if stage != "pending":
        held = held_by(ledger, asked)
        results = {"retry_wait": DispatchResult.DISPATCH_ERROR, "dispatched": DELIVERED, "blocked": MISMATCH}
        if stage in results:
            ledger.settle_dispatch(held, results[stage])
        else:
            manual_clock.advance(LEASE_MS)
        version = 2 if stage in results else 1
    assert abandon(ledger, asked.run_id, version) == Abandoned(asked.run_id, version + 1)
    columns = ("status", "version", "last_result", "due_at_ms", "next_attempt_at_ms", "lease_owner")
    assert stored(ledger, asked, *columns) == ("blocked", version + 1, "abandoned", None, None, None)
    said = {"attempt_id": asked.attempt_id, "reason": "hopeless"}
    expected = ("run.cancel_dispatch_abandoned", said, f"abandon:{asked.run_id}:{version}")
    assert last_fact(ledger, asked.run_id) == expected
    manual_clock.advance(60 * MINUTE)
    assert due_runs(ledger) == []
    assert ledger.blocked().items == ()
    assert refused_as(ledger, asked, TWO) is ClaimAnswer.BLOCKED
    # The Run still ends by its own report.
    assert ledger.run(asked.run_id).status is RunStatus.RUNNING
    ledger.finish(asked.claim, Outcome.succeeded(), actor=WORKER)
    assert ledger.run(asked.run_id).status is RunStatus.CANCELLED
    assert ledger.verify().clean


def test_abandon_is_refused_while_a_worker_holds_a_valid_lease(ledger: Ledger, manual_clock: ManualClock) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    manual_clock.advance(LEASE_MS - 1)
    with unchanged(ledger), pytest.raises(VerbRefused, match="holds its dispatch"):
        abandon(ledger, asked.run_id, 1)
    manual_clock.advance(1)
    abandon(ledger, asked.run_id, 1)
    with unchanged(ledger):
        assert type(ledger.settle_dispatch(held, DELIVERED)).__name__ == "DispatchFenced"


def test_abandon_before_there_is_a_row_keeps_everybody_from_beginning(ledger: Ledger) -> None:
    asked = Asked(given_in(ledger, *ASKED_WHILE_RUNNING).claim, EPOCH_MS)
    assert reasons(ledger) == {asked.run_id: "no_dispatch"}
    assert abandon(ledger, asked.run_id, 0) == Abandoned(asked.run_id, 1)
    assert refused_as(ledger, asked, served=frozenset({("batch", "")})) is ClaimAnswer.BLOCKED
    assert stored(ledger, asked, "status", "version", "last_result") == ("blocked", 1, "abandoned")


@pytest.mark.parametrize("verb", [rearm, abandon, confirm])
@pytest.mark.parametrize("delivered", [True, False])
def test_no_verb_is_for_a_run_that_this_release_does_not_understand(
    ledger: Ledger, verb: Verb, *, delivered: bool
) -> None:
    # Without a delivery: recorded by somebody who made no dispatch (R7.2).
    run_id = (on_a_blocked_run(ledger) if delivered else given_in(ledger, *ASKED_WHILE_RUNNING).claim).run_id
    later_release.append(ledger, run_id, "run.teleported", "{}")
    version = ledger.run(run_id).version if verb is confirm else 2 * delivered
    with unchanged(ledger), pytest.raises(UnknownFactsInRun):
        verb(ledger, run_id, version)


def test_a_run_that_nobody_asked_to_stop_has_no_delivery_to_abandon(ledger: Ledger) -> None:
    claim = brought_to(ledger, "running")
    for verb in (rearm, abandon):
        with unchanged(ledger), pytest.raises(VerbRefused, match="has no dispatch"):
            verb(ledger, claim.run_id, 0)


# what all verbs share


def on_a_blocked_run(ledger: Ledger) -> Asked:
    asked = asked_to_stop(ledger)
    settled_with(ledger, asked, MISMATCH)
    return asked


@pytest.mark.parametrize(("verb", "version"), [(rearm, 2), (abandon, 2), (confirm, 9)])
def test_an_exact_repeat_answers_the_same_and_another_reason_is_a_conflict(
    ledger: Ledger, manual_clock: ManualClock, verb: Callable[..., object], version: int
) -> None:
    asked = on_a_blocked_run(ledger)
    first = verb(ledger, asked.run_id, version)
    manual_clock.advance(7)
    with unchanged(ledger):
        assert verb(ledger, asked.run_id, version) == first
        with pytest.raises(DedupeConflict):
            verb(ledger, asked.run_id, version, because="another")


def test_a_rearm_that_is_repeated_answers_the_same_also_where_the_clock_had_stepped_back(
    ledger: Ledger, manual_clock: ManualClock
) -> None:
    asked = on_a_blocked_run(ledger)
    manual_clock.jump_wall(-60 * MINUTE)
    manual_clock.jump_database(-60 * MINUTE)
    first = rearm(ledger, asked.run_id, 2)
    assert first.next_attempt_at_ms == EPOCH_MS - 60 * MINUTE + 1_000
    with unchanged(ledger):
        assert rearm(ledger, asked.run_id, 2) == first


def test_a_rearm_that_is_repeated_with_another_delay_is_a_conflict(ledger: Ledger) -> None:
    asked = on_a_blocked_run(ledger)
    rearm(ledger, asked.run_id, 2, delay_ms=5_000)
    with unchanged(ledger), pytest.raises(DedupeConflict):
        rearm(ledger, asked.run_id, 2, delay_ms=6_000)


@pytest.mark.parametrize("verb", [rearm, abandon])
@pytest.mark.parametrize("version", [0, 1, 3, -1])
def test_another_version_of_the_dispatch_is_a_conflict(ledger: Ledger, verb: Verb, version: int) -> None:
    asked = on_a_blocked_run(ledger)
    with unchanged(ledger), pytest.raises(DispatchVersionConflict) as caught:
        verb(ledger, asked.run_id, version)
    assert (caught.value.expected, caught.value.actual) == (version, 2)


@pytest.mark.parametrize("verb", [rearm, abandon, confirm])
@pytest.mark.parametrize("because", ["", " ", "\n\t"])
def test_every_verb_needs_a_reason(ledger: Ledger, verb: Callable[..., object], because: str) -> None:
    asked = on_a_blocked_run(ledger)
    with unchanged(ledger), pytest.raises(InvalidValue, match="because"):
        verb(ledger, asked.run_id, 2, because=because)


@pytest.mark.parametrize("verb", [rearm, abandon])
def test_a_run_that_has_ended_needs_no_verb(ledger: Ledger, verb: Verb) -> None:
    asked = on_a_blocked_run(ledger)
    ledger.finish(asked.claim, Outcome.cancelled(signal=15), actor=WORKER)
    with unchanged(ledger), pytest.raises(VerbRefused, match="it is cancelled"):
        verb(ledger, asked.run_id, 2)


@pytest.mark.parametrize("verb", [rearm, abandon, confirm])
def test_no_verb_is_for_runs_of_others_or_runs_that_are_not_there(ledger: Ledger, verb: Verb) -> None:
    legacy = created(ledger, execution_owner=ExecutionOwner.LEGACY)
    with unchanged(ledger):
        with pytest.raises(LegacyRun):
            verb(ledger, legacy, 0)
        with pytest.raises(RunNotFound):
            verb(ledger, NOBODY, 0)


# confirm_stopped


@pytest.mark.parametrize(
    ("kind", "run_end", "attempt_end"),
    [
        (IntentKind.USER, RunStatus.CANCELLED, AttemptStatus.CANCELLED),
        (IntentKind.TIMEOUT, RunStatus.TIMED_OUT, AttemptStatus.TIMED_OUT),
    ],
)
def test_an_operators_word_ends_attempt_and_run(
    ledger: Ledger, kind: IntentKind, run_end: RunStatus, attempt_end: AttemptStatus
) -> None:
    asked = asked_to_stop(ledger, kind=kind)
    answer = confirm(ledger, asked.run_id, 8)
    assert answer == StopConfirmed(asked.run_id, run_end, 11)
    view = ledger.run(asked.run_id)
    assert (view.status, view.attempts[0].status) == (run_end, attempt_end)
    assert types(ledger, asked.run_id)[8:] == ["run.stop_confirmed", f"attempt.{attempt_end}", f"run.{run_end}"]
    fact = ledger.history(asked.run_id)[8]
    assert fact.payload.model_dump(mode="json", exclude_none=True) == {"evidence": "attested", "reason": "saw it"}
    assert (fact.dedupe_key, fact.actor) == (f"confirm-stopped:{asked.run_id}:8", OPERATOR)
    # The row is history, and the executions too.
    assert stored(ledger, asked, "status", "due_at_ms") == ("pending", None)
    assert due_runs(ledger) == []
    assert reasons(ledger) == {asked.run_id: "attested"}
    assert ledger.verify().clean
    # A process that lives after all reports too late.
    late = ledger.finish(asked.claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    assert isinstance(late, LateCallback)
    assert ledger.run(asked.run_id).status is run_end


@pytest.mark.parametrize("stage", ["leased", "dispatched", "blocked", "retry_wait"])
def test_it_does_whatever_the_dispatch_is_doing(ledger: Ledger, stage: str) -> None:
    asked = asked_to_stop(ledger)
    held = held_by(ledger, asked)
    results = {"retry_wait": DispatchResult.DISPATCH_ERROR, "dispatched": DELIVERED, "blocked": MISMATCH}
    if stage in results:
        ledger.settle_dispatch(held, results[stage])
    answer = confirm(ledger, asked.run_id, ledger.run(asked.run_id).version)
    assert answer.status is RunStatus.CANCELLED
    assert stored(ledger, asked, "status", "due_at_ms") == (stage, None)
    if stage == "leased":
        assert type(ledger.settle_dispatch(held, DELIVERED)).__name__ == "DispatchSettled"
    assert ledger.verify().clean


@pytest.mark.parametrize("answer", [Evidence.not_running(), *(Evidence.unknown(reason) for reason in Unknown)], ids=str)
def test_the_provider_is_asked_first_and_only_running_stands_in_the_way(ledger: Ledger, answer: Evidence) -> None:
    asked = asked_to_stop(ledger)
    provider = Provider(answer)
    assert confirm(ledger, asked.run_id, 8, provider=provider).status is RunStatus.CANCELLED
    (target,) = provider.asked
    assert (target.run_id, target.attempt_id, target.attempt_status) == (asked.run_id, asked.attempt_id, Status.RUNNING)
    assert (target.executor_type, target.scope, target.handle, target.pid) == ("batch", "here", "handle-1", 4_711)
    assert not hasattr(target, "lease_token")


def test_what_runs_is_not_confirmed_unless_the_operator_insists(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    with unchanged(ledger), pytest.raises(StillRunning):
        confirm(ledger, asked.run_id, 8, provider=Provider(Evidence.running()))
    forced = confirm(ledger, asked.run_id, 8, provider=Provider(Evidence.running()), force=True)
    assert forced.status is RunStatus.CANCELLED
    payload = ledger.history(asked.run_id)[8].payload
    assert payload.model_dump(mode="json", exclude_none=True) == {
        "evidence": "attested",
        "reason": "saw it",
        "forced": True,
    }


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("answer", [ConnectionError("no route to 10.0.0.7"), None, "running"], ids=repr)
def test_a_provider_that_fails_or_says_nothing_sensible_stands_in_nobodys_way(
    ledger: Ledger, caplog: pytest.LogCaptureFixture, answer: object, *, force: bool
) -> None:
    class Broken(Provider):
        """Fails, or answers what is no evidence."""

        def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:
            super().inspect(target, timeout_ms=timeout_ms, cancelled=cancelled)
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[return-value]  # what a provider of somebody else's may do

    asked = asked_to_stop(ledger)
    provider = Broken()
    assert confirm(ledger, asked.run_id, 8, provider=provider, force=force).status is RunStatus.CANCELLED
    assert len(provider.asked) == 1
    assert "forced" not in ledger.history(asked.run_id)[8].payload.model_dump(exclude_none=True)
    # What it fails with may hold anything: it is told by its name alone.
    told = [message for message in caplog.messages if "who looks for its process failed" in message]
    assert [message.endswith("failed: ConnectionError") for message in told] == [True] * isinstance(answer, Exception)


def test_force_is_recorded_only_where_it_was_needed(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    confirm(ledger, asked.run_id, 8, provider=Provider(), force=True)
    assert "forced" not in ledger.history(asked.run_id)[8].payload.model_dump(exclude_none=True)


def test_a_provider_of_another_executor_type_is_not_asked(ledger: Ledger) -> None:
    asked = asked_to_stop(ledger)
    provider = Provider(Evidence.running(), executor_type="other")
    confirm(ledger, asked.run_id, 8, provider=provider)
    assert provider.asked == []


def test_what_nobody_asked_to_stop_or_has_ended_is_not_confirmed(ledger: Ledger) -> None:
    running = brought_to(ledger, "running").run_id
    ended = asked_to_stop(ledger)
    ledger.finish(ended.claim, Outcome.cancelled(signal=15), actor=WORKER)
    with unchanged(ledger):
        with pytest.raises(VerbRefused):
            confirm(ledger, running, 7)
        with pytest.raises(VerbRefused):
            confirm(ledger, ended.run_id, 10)
        with pytest.raises(RunVersionConflict) as caught:
            confirm(ledger, running, 6)
    assert (caught.value.expected, caught.value.actual) == (6, 7)


def test_the_unserved_time_is_a_setting(ledger_factory: ThrowAwayLedgers, manual_clock: ManualClock) -> None:
    ledger = ledger_factory(unserved_after_ms=1_000)
    asked_to_stop(ledger)
    manual_clock.advance(999)
    assert ledger.blocked().items == ()
    manual_clock.advance(1)
    assert len(ledger.blocked().items) == 1

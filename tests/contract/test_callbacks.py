"""Reports: sequences, repetitions, late ones and wrong tokens (R2.7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from runfacts import (
    AttemptClaim,
    AttemptNotFound,
    AttemptStatus,
    Finished,
    InvalidValue,
    LateCallback,
    Ledger,
    Outcome,
    Recorded,
    Repeated,
    RetryPolicy,
    RunStatus,
    StartRefused,
    TokenRefused,
)
from runfacts.domain.payloads import AttemptLateCallbackIgnored
from stages import ANA, WORKER, claimed, created, finished, queued, run_again, running, started, types, unchanged

FAILED = Outcome.failed(exit_code=1)
Report = Callable[[Ledger, AttemptClaim], object]
REPORTS: list[Report] = [
    lambda ledger, claim: ledger.running(claim, actor=WORKER),
    lambda ledger, claim: ledger.wait_for_approval(claim, actor=WORKER),
    lambda ledger, claim: ledger.go_on(claim, actor=WORKER),
    lambda ledger, claim: ledger.finish(claim, FAILED, actor=WORKER),
]
LEASED: list[Report] = [
    lambda ledger, claim: ledger.start(claim, actor=WORKER),
    lambda ledger, claim: ledger.renew(claim),
]


def sequence_of(ledger: Ledger, claim: AttemptClaim) -> int:
    return ledger.execution(claim.attempt_id).callback_sequence


def test_reports_are_counted(ledger: Ledger) -> None:
    claim = started(ledger)
    assert sequence_of(ledger, claim) == 0
    ledger.running(claim, actor=WORKER, sequence=1)
    assert sequence_of(ledger, claim) == 1
    ledger.wait_for_approval(claim, actor=WORKER, sequence=2)
    ledger.go_on(claim, actor=WORKER, sequence=7)
    assert sequence_of(ledger, claim) == 7
    assert isinstance(ledger.finish(claim, FAILED, actor=WORKER, sequence=8), Finished)
    assert sequence_of(ledger, claim) == 8


def test_a_report_without_a_sequence_takes_the_next(ledger: Ledger) -> None:
    claim = started(ledger)
    ledger.running(claim, actor=WORKER, sequence=5)
    ledger.finish(claim, FAILED, actor=WORKER)
    assert sequence_of(ledger, claim) == 6


def test_a_sequence_that_is_not_new_is_a_repetition_whatever_it_says(ledger: Ledger) -> None:
    claim = started(ledger)
    ledger.running(claim, actor=WORKER, sequence=3)
    with unchanged(ledger):
        for sequence in (1, 2, 3):
            answer = ledger.finish(claim, FAILED, actor=WORKER, sequence=sequence)
            assert answer == Repeated(claim.run_id, RunStatus.RUNNING, 7)


def test_a_sequence_is_a_number_from_one_on(ledger: Ledger) -> None:
    claim = running(ledger)
    with unchanged(ledger):
        for sequence in (0, -1, 1 << 52):
            with pytest.raises(InvalidValue, match="sequence"):
                ledger.finish(claim, FAILED, actor=WORKER, sequence=sequence)


def test_the_same_report_without_a_sequence_changes_nothing(ledger: Ledger) -> None:
    claim = running(ledger)
    with unchanged(ledger):
        assert ledger.running(claim, actor=WORKER) == Repeated(claim.run_id, RunStatus.RUNNING, 7)
        assert ledger.go_on(claim, actor=WORKER) == Repeated(claim.run_id, RunStatus.RUNNING, 7)
    ledger.wait_for_approval(claim, actor=WORKER)
    with unchanged(ledger):
        again = ledger.wait_for_approval(claim, actor=WORKER)
        assert again == Repeated(claim.run_id, RunStatus.WAITING_APPROVAL, 8)
    ledger.finish(claim, FAILED, actor=WORKER)
    with unchanged(ledger):
        assert ledger.finish(claim, FAILED, actor=WORKER) == Repeated(claim.run_id, RunStatus.FAILED, 10)


def test_another_outcome_after_the_end_is_late_and_changes_no_status(ledger: Ledger) -> None:
    claim = finished(ledger, FAILED)
    answer = ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=WORKER)
    assert answer == LateCallback(RunStatus.FAILED, AttemptStatus.FAILED, 10)
    late = ledger.history(claim.run_id)[-1]
    assert late.payload == AttemptLateCallbackIgnored(sequence=3, reported="succeeded", exit_code=0)
    assert (late.sequence, late.aggregate_id, late.attempt_id) == (10, claim.attempt_id, claim.attempt_id)
    view = ledger.run(claim.run_id)
    assert (view.status, view.version, view.attempts[0].exit_code) == (RunStatus.FAILED, 10, 1)
    assert ledger.verify().clean


def test_the_same_late_report_is_noted_once(ledger: Ledger) -> None:
    claim = finished(ledger)
    first = ledger.finish(claim, Outcome.failed(signal=9), actor=WORKER, sequence=3)
    assert isinstance(first, LateCallback)
    with unchanged(ledger):
        again = ledger.finish(claim, Outcome.failed(signal=9), actor=WORKER, sequence=3)
    assert again == Repeated(claim.run_id, RunStatus.SUCCEEDED, 10)
    assert isinstance(ledger.finish(claim, Outcome.failed(signal=9), actor=WORKER, sequence=4), LateCallback)
    assert types(ledger, claim.run_id)[-2:] == ["attempt.late_callback_ignored"] * 2


@pytest.mark.parametrize(
    ("report", "word"), list(zip(REPORTS[:3], ["running", "waiting_approval", "going_on"], strict=True))
)
def test_every_kind_of_report_can_be_late(ledger: Ledger, report: Report, word: str) -> None:
    claim = finished(ledger)
    assert report(ledger, claim) == LateCallback(RunStatus.SUCCEEDED, AttemptStatus.SUCCEEDED, 10)
    assert ledger.history(claim.run_id)[-1].payload == AttemptLateCallbackIgnored(sequence=3, reported=word)


def test_a_late_start_is_refused_and_not_noted(ledger: Ledger) -> None:
    claim = finished(ledger)
    with unchanged(ledger):
        assert isinstance(ledger.start(claim, actor=WORKER), StartRefused)


def test_a_report_of_an_earlier_attempt_does_not_touch_the_present_one(ledger: Ledger) -> None:
    policy = RetryPolicy(max_attempts=2, retry_on_failure=True, backoff_ms=0)
    first = finished(ledger, FAILED, policy=policy)
    ledger.queue(first.run_id, actor=ANA)
    second = run_again(ledger, first.run_id)
    answer = ledger.finish(first, Outcome.succeeded(), actor=WORKER)
    assert answer == LateCallback(RunStatus.RUNNING, AttemptStatus.FAILED, 16)
    assert isinstance(ledger.finish(second, Outcome.succeeded(), actor=WORKER), Finished)
    assert ledger.verify().clean


def test_a_wrong_token_is_refused_and_counted(ledger: Ledger) -> None:
    claim, other = running(ledger), running(ledger)
    assert ledger.refused == {}
    wrong = [other.callback_token, claim.lease_token, claim.callback_token[:-1], "", "rft_\ud800"]
    with unchanged(ledger):
        for report, token in product(REPORTS, wrong):
            with pytest.raises(TokenRefused) as caught:
                report(ledger, replace(claim, callback_token=token))
            assert caught.value.attempt_id == claim.attempt_id
    assert ledger.refused == {"token": 20}


def test_start_and_renewal_need_the_lease_token(ledger: Ledger) -> None:
    claim, other = claimed(ledger), claimed(ledger)
    wrong = [other.lease_token, claim.callback_token, "", "rft_\ud800"]
    with unchanged(ledger):
        for command, token in product(LEASED, wrong):
            with pytest.raises(TokenRefused):
                command(ledger, replace(claim, lease_token=token))
    assert ledger.refused == {"token": 8}


def test_an_attempt_of_another_run_or_none_is_not_found(ledger: Ledger) -> None:
    claim, other = running(ledger), running(ledger)
    nowhere = "01900000-0000-7000-8000-00000000dead"
    changes: list[dict[str, Any]] = [{"run_id": other.run_id}, {"attempt_id": nowhere}]
    with unchanged(ledger):
        for command, change in product([*REPORTS, *LEASED], changes):
            with pytest.raises(AttemptNotFound):
                command(ledger, replace(claim, **change))


def test_a_wrong_token_does_not_say_whether_the_sequence_was_new(ledger: Ledger) -> None:
    claim = finished(ledger)
    with unchanged(ledger), pytest.raises(TokenRefused):
        ledger.finish(replace(claim, callback_token="x"), FAILED, actor=WORKER, sequence=1)


def test_a_handle_that_cannot_be_stored_is_refused(ledger: Ledger) -> None:
    claim = started(ledger)
    wrong: list[dict[str, Any]] = [{"handle": text} for text in ("", "x" * 513, "é" * 257, "a\x00b", "\ud800")]
    wrong += [{"pid": number} for number in (0, -5, 1 << 31)]
    with unchanged(ledger):
        for options in wrong:
            with pytest.raises(InvalidValue):
                ledger.running(claim, actor=WORKER, **options)
    assert isinstance(ledger.running(claim, actor=WORKER, handle="é" * 256), Recorded)


def test_reports_of_two_runs_do_not_meet(ledger: Ledger) -> None:
    one, two = running(ledger), running(ledger)
    ledger.finish(one, FAILED, actor=WORKER)
    assert ledger.run(two.run_id).status == RunStatus.RUNNING
    assert ledger.run(created(ledger)).status == RunStatus.CREATED
    assert ledger.run(queued(ledger)).status == RunStatus.QUEUED


def test_the_same_late_report_without_a_sequence_is_noted_once(ledger: Ledger) -> None:
    claim = finished(ledger, FAILED)
    late = Outcome.failed(exit_code=2)
    assert isinstance(ledger.finish(claim, late, actor=WORKER), LateCallback)
    with unchanged(ledger):
        assert isinstance(ledger.finish(claim, late, actor=WORKER), Repeated)
    assert isinstance(ledger.finish(claim, Outcome.failed(exit_code=3), actor=WORKER), LateCallback)

"""What operators are told, and which claim matters for a Run as it is (R7.4, R11.1, R12, R13.1)."""

from __future__ import annotations

import pytest

from runfacts import IntentKind
from runfacts.domain.history import History
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import (
    AttemptClaimed,
    AttemptFailed,
    AttemptLost,
    AttemptSucceeded,
    Payload,
    RunCancelRequested,
    RunCreated,
    RunDispatching,
    RunLost,
    RunQueued,
    RunRetryWait,
    RunSucceeded,
)
from runfacts.domain.recovery.claims import ItemKind, ManualReason, Purpose, RecoveryKey
from runfacts.domain.recovery.operators import UNSERVED, attest_key, diagnosis, item_of, items_ever, release_key
from runfacts.domain.retry import RetryPolicy
from runfacts.testing.given_when_then import given

CREATED: tuple[Payload, ...] = (RunCreated(task="report", policy=RetryPolicy()),)
CLAIMED = (*CREATED, RunQueued(), RunDispatching(number=1), AttemptClaimed(number=1, executor_type="batch"))
LOST = (*CLAIMED, AttemptLost(evidence=Evidence.PRE_START))
ITEMS = [(Purpose.RECOVERY, ItemKind.ATTEMPT), *((purpose, ItemKind.RUN) for purpose in Purpose)]


def history_of(*past: Payload) -> History:
    return given(*past).history


@pytest.mark.parametrize(
    ("past", "purpose", "kind"),
    [
        (CREATED, "recovery", "run"),
        (CLAIMED, "recovery", "attempt"),
        ((*CLAIMED, AttemptSucceeded(exit_code=0)), "recovery", "run"),
        (LOST, "recovery", "run"),
        ((*LOST, RunLost(evidence=Evidence.PRE_START)), "retry", "run"),
        ((*CLAIMED, AttemptFailed(exit_code=1), RunRetryWait(due_at_ms=5)), "retry", "run"),
        ((*CLAIMED, RunCancelRequested(kind=IntentKind.USER)), "stop", "run"),
        ((*LOST, RunLost(evidence=Evidence.PRE_START), RunCancelRequested(kind=IntentKind.USER)), "stop", "run"),
    ],
)
def test_one_claim_matters_at_a_time(past: tuple[Payload, ...], purpose: str, kind: str) -> None:
    history = history_of(*past)
    attempt = history.active_attempt
    item_id = attempt.id if kind == "attempt" and attempt is not None else history.run_id
    assert item_of(history) == RecoveryKey(Purpose(purpose), ItemKind(kind), item_id)


def test_a_run_that_ended_beside_its_active_attempt_is_still_about_that_attempt() -> None:
    history = history_of(*CLAIMED, RunSucceeded(exit_code=0))
    assert history.active_attempt is not None
    assert item_of(history) == RecoveryKey(Purpose.RECOVERY, ItemKind.ATTEMPT, history.active_attempt.id)


def test_a_verb_is_looked_for_on_everything_that_it_may_have_been_about() -> None:
    history = history_of(*CLAIMED)
    (attempt_id,) = history.attempts
    assert list(items_ever(history)) == [
        RecoveryKey(Purpose.RECOVERY, ItemKind.ATTEMPT, attempt_id),
        RecoveryKey(Purpose.RECOVERY, ItemKind.RUN, history.run_id),
        RecoveryKey(Purpose.STOP, ItemKind.RUN, history.run_id),
        RecoveryKey(Purpose.RETRY, ItemKind.RUN, history.run_id),
    ]


def test_the_keys_of_verbs_name_verb_item_and_version() -> None:
    assert release_key(RecoveryKey(Purpose.STOP, ItemKind.RUN, "r"), 4) == "release:stop:r:4"
    assert attest_key(RecoveryKey(Purpose.RECOVERY, ItemKind.ATTEMPT, "a"), 0) == "attest-not-running:a:0"


@pytest.mark.parametrize(("purpose", "kind"), ITEMS)
@pytest.mark.parametrize("reason", [reason for reason in ManualReason if reason is not ManualReason.STUCK_CREATED])
def test_every_diagnosis_says_what_can_be_done(purpose: Purpose, kind: ItemKind, reason: ManualReason) -> None:
    verbs = {
        (Purpose.RECOVERY, ItemKind.ATTEMPT): {"attest-not-running", "release"},
        (Purpose.RECOVERY, ItemKind.RUN): {"attest-not-running", "release", "cancel"},
        (Purpose.STOP, ItemKind.RUN): {"confirm-stopped", "release"},
        (Purpose.RETRY, ItemKind.RUN): {"release", "cancel"},
    }
    words = diagnosis(purpose, kind, reason)
    every = {"attest-not-running", "confirm-stopped", "release", "cancel"}
    assert {verb for verb in every if verb in words} == verbs[purpose, kind]
    assert words.endswith(".")
    assert len(words) > 150


def test_each_reason_has_words_of_its_own() -> None:
    for purpose, kind in ITEMS:
        assert len({diagnosis(purpose, kind, reason) for reason in ManualReason}) == len(ManualReason)


def test_a_stuck_run_is_to_be_queued_or_cancelled() -> None:
    words = diagnosis(Purpose.RECOVERY, ItemKind.RUN, ManualReason.STUCK_CREATED)
    assert words.endswith("Queue it if it is still wanted, else cancel it.")


def test_of_what_nobody_serves_no_worker_is_blamed() -> None:
    assert set(UNSERVED) == set(Purpose)
    assert "attest-not-running" in UNSERVED[Purpose.RECOVERY]
    assert "confirm-stopped with the run's version" in UNSERVED[Purpose.STOP]
    assert UNSERVED[Purpose.RETRY].endswith("Start one; or cancel the run.")
    # There is nothing to release: no worker has given it up.
    assert not any("release" in words for words in UNSERVED.values())

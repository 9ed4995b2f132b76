"""The processor of recovery: a page, each item looked into, applied and settled, and what it does when that fails.

R11.2, R11.3, R11.6, R11.7, R11.8, R12.1. The store is in memory under the port; real stores are under the contract
tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from recovery_store import Looker, Store
from runfacts.domain.errors import InvalidSetting
from runfacts.domain.lifecycle import IntentKind
from runfacts.domain.limits import Settings
from runfacts.domain.payload_parts import Evidence as EvidenceKind
from runfacts.domain.recovery.claims import (
    ItemKind,
    Purpose,
    RecoveryClaimed,
    RecoveryFenced,
    RecoveryStale,
    SweepReport,
)
from runfacts.domain.recovery.evidence import Evidence, Unknown
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.processor import MARGIN_MS, RecoveryProcessor, RecoveryReport
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.retry import RetryPolicy, Safety
from snapshots import ANSWERS, NOW_MS, claim_for, snapshot

SERVED = frozenset({("batch", "here")})
ASKED: dict[str, Any] = {"intent_kind": IntentKind.USER, "intent_at_ms": 1}
RECOVERY, STOP, RETRY = Purpose.RECOVERY, Purpose.STOP, Purpose.RETRY


class Bench:
    """A processor over a page in memory, on a clock that stands still unless a look takes time."""

    def __init__(
        self,
        *items: tuple[RecoveryClaimed, Snapshot | None],
        purpose: Purpose = RECOVERY,
        looker: Looker | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.store = Store(tuple(claim for claim, _ in items), {claim.key.item_id: seen for claim, seen in items})
        self.looker = looker or Looker()
        self.now_s = 0.0
        self.errors: list[tuple[str | None, BaseException]] = []
        self.processor = RecoveryProcessor(
            self.store,
            self.looker,
            purpose,
            owner="worker-1",
            served=SERVED,
            settings=settings or Settings(),
            monotonic=lambda: self.now_s,
            on_error=lambda run_id, error: self.errors.append((run_id, error)),
        )

    def cycle(self, stopping: Callable[[], bool] = lambda: False) -> RecoveryReport:
        """Run a cycle."""
        return self.processor.cycle(stopping)

    def takes(self, seconds: float) -> None:
        """Let each look take so long."""

        def look(_: Snapshot) -> None:
            self.now_s += seconds

        self.looker.looks = look


def items(count: int) -> list[tuple[RecoveryClaimed, Snapshot | None]]:
    """Running Attempts whose lease has expired."""
    return [(claim_for(item_id=f"a{number}", run_id=f"r{number}"), snapshot()) for number in range(count)]


def one(
    seen: Snapshot | None = None,
    purpose: Purpose = RECOVERY,
    **claim: Any,  # noqa: ANN401 - any field
) -> tuple[RecoveryClaimed, Snapshot | None]:
    """One item."""
    return claim_for(purpose, item_id="a0", **claim), seen or snapshot()


def test_a_page_is_claimed_for_the_purpose_with_the_settings_of_the_ledger() -> None:
    bench = Bench(purpose=STOP, settings=Settings(recovery_page=7, recovery_lease_ms=20_000))
    assert bench.cycle().as_dict() == {"claimed": 0}
    assert bench.store.asked == [(STOP, "worker-1", SERVED, 7, 20_000)]


@pytest.mark.parametrize(("purpose", "sweeps"), [(RECOVERY, True), (STOP, False), (RETRY, False)])
def test_the_sweep_of_all_purposes_is_done_once_a_cycle_and_before_the_page(purpose: Purpose, sweeps: bool) -> None:  # noqa: FBT001 - pytest names it
    bench = Bench(purpose=purpose)
    bench.store.swept = SweepReport(3, 1_234)
    report = bench.cycle()
    assert bench.store.calls == (["sweep", "claim"] if sweeps else ["claim"])
    assert (report.counts["swept"], report.swept_oldest_ms) == ((3, 1_234) if sweeps else (0, 0))


def test_a_sweep_that_fails_does_not_keep_the_page() -> None:
    bench = Bench(*items(1))
    bench.store.fails["sweep"] = ConnectionError("gone")
    assert bench.cycle().as_dict() == {"claimed": 1, "error": 1, "found_not_running": 1, "lost": 1}
    assert [(run_id, str(error)) for run_id, error in bench.errors] == [(None, "gone")]


def test_a_page_that_cannot_be_claimed_is_the_callers_to_know() -> None:
    bench = Bench()
    bench.store.fails["claim"] = ConnectionError("gone")
    with pytest.raises(ConnectionError):
        bench.cycle()


# From the verdict to the settle, one transaction each (R11.3, R11.6, R11.7).


def test_what_is_proven_gone_is_lost_and_then_settled() -> None:
    bench = Bench(one())
    assert bench.cycle().as_dict() == {"claimed": 1, "found_not_running": 1, "lost": 1, "swept": 0}
    assert bench.store.calls == ["sweep", "claim", "snapshot/a0", "apply/a0", "settle/a0"]
    assert bench.store.applied == [("a0", "lost", EvidenceKind.NOT_RUNNING, "batch")]
    assert bench.store.settles == [("a0", "resolved", None, False)]
    assert bench.looker.asked == ["receipt", "finding"]


def test_nobody_is_asked_about_what_never_started() -> None:
    bench = Bench(one(snapshot("dispatching", "claimed")))
    assert bench.cycle().counts["lost"] == 1
    assert bench.store.applied == [("a0", "lost", EvidenceKind.PRE_START, None)]
    assert bench.looker.asked == ["receipt"]


def test_a_run_follows_its_lost_attempt_by_the_attempts_own_evidence() -> None:
    bench = Bench(one(snapshot("running", "lost"), kind=ItemKind.RUN))
    assert bench.cycle().counts["run_lost"] == 1
    assert bench.store.applied == [("a0", "lost", None, None)]
    assert bench.looker.asked == []


@pytest.mark.parametrize("found", ["running", "provider_unavailable"])
@pytest.mark.parametrize(
    ("delays", "wait_ms"),
    [(0, 5_000), (1, 10_000), (2, 20_000), (5, 160_000), (6, 300_000), (7, 300_000), (9_999, 300_000)],
)
def test_the_wait_doubles_from_one_look_to_the_next_up_to_its_bound(found: str, delays: int, wait_ms: int) -> None:
    bench = Bench(one(delays=delays), looker=Looker(Finding(ANSWERS[found])))
    assert bench.cycle().as_dict() == {"claimed": 1, f"found_{found}": 1, "retry": 1, "swept": 0}
    assert bench.store.settles == [("a0", "retry", wait_ms, False)]
    assert bench.store.applied == []


@pytest.mark.parametrize(
    ("found", "foreign", "reason"),
    [
        ("identity_unverifiable", False, "identity_unverifiable"),
        ("identity_unverifiable", True, "scope_unserved"),
        ("conflicting_evidence", True, "conflicting_evidence"),
    ],
)
def test_what_cannot_be_told_is_an_operators(found: str, foreign: bool, reason: str) -> None:  # noqa: FBT001 - pytest names it
    bench = Bench(one(foreign=foreign), looker=Looker(Finding(ANSWERS[found])))
    assert bench.cycle().counts["manual"] == 1
    assert bench.store.settles == [("a0", "manual", reason, False)]
    afar = " afar" if foreign else ""
    assert bench.looker.asked == [f"receipt{afar}", f"finding{afar}"]


@pytest.mark.parametrize(
    ("records", "settled"), [(True, ("a0", "resolved", None, False)), (False, ("a0", "retry", 5_000, False))]
)
def test_a_receipt_is_recorded_and_nobody_is_asked(records: bool, settled: tuple[object, ...]) -> None:  # noqa: FBT001 - pytest names it
    bench = Bench(one(), looker=Looker(receipt=True, records=records))
    assert bench.cycle().counts["receipt"] == int(records)
    assert bench.looker.asked == ["receipt", "record"]
    assert bench.store.settles == [settled]
    assert bench.store.applied == []


def test_a_receipt_that_appears_while_somebody_looks_is_recorded() -> None:
    bench = Bench(one(), looker=Looker(Finding(Evidence.not_running(), receipt=True)))
    assert bench.cycle().as_dict() == {"claimed": 1, "found_receipt": 1, "receipt": 1, "swept": 0}
    assert bench.looker.asked == ["receipt", "finding", "record"]


@pytest.mark.parametrize("seen", [None, snapshot("failed", "failed"), snapshot(lease_valid=True)])
def test_what_is_no_candidate_any_more_is_resolved(seen: Snapshot | None) -> None:
    bench = Bench((claim_for(item_id="a0"), seen))
    assert bench.cycle().as_dict() == {"claimed": 1, "resolved": 1, "swept": 0}
    assert bench.store.settles == [("a0", "resolved", None, False)]


def test_what_changed_meanwhile_is_looked_into_again_later() -> None:
    bench = Bench(one(delays=2))
    bench.store.answers["a0"] = RecoveryStale
    assert bench.cycle().as_dict() == {"claimed": 1, "found_not_running": 1, "stale": 1, "swept": 0}
    assert bench.store.settles == [("a0", "retry", 20_000, False)]


def test_what_changed_meanwhile_is_not_left_to_an_operator_unseen() -> None:
    unverifiable = Looker(Finding(Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)))
    bench = Bench(one(delays=2), looker=unverifiable)
    bench.store.answers["a0"] = RecoveryStale
    assert bench.cycle().as_dict() == {"claimed": 1, "found_identity_unverifiable": 1, "stale": 1, "swept": 0}
    assert bench.store.settles == [("a0", "retry", 20_000, False)]


def test_whoever_lost_its_claim_settles_nothing() -> None:
    bench = Bench(one())
    bench.store.answers["a0"] = RecoveryFenced
    assert bench.cycle().as_dict() == {"claimed": 1, "fenced": 1, "found_not_running": 1, "swept": 0}
    assert bench.store.settles == []


def test_a_settle_that_is_fenced_is_counted() -> None:
    bench = Bench(one())
    bench.store.over.add("a0")
    report = bench.cycle()
    assert (report.counts["lost"], report.counts["fenced"]) == (1, 1)


# The other purposes (R12.1, R12.2).


def test_a_stop_is_confirmed_by_proof() -> None:
    bench = Bench(one(snapshot(**ASKED), STOP), purpose=STOP)
    assert bench.cycle().as_dict() == {"claimed": 1, "found_not_running": 1, "stopped": 1}
    assert bench.store.applied == [("a0", "stopped", EvidenceKind.NOT_RUNNING, "batch")]
    assert bench.store.settles == [("a0", "resolved", None, False)]


@pytest.mark.parametrize(("records", "settled"), [(True, []), (False, [("a0", "retry", 5_000, False)])])
def test_a_stop_that_its_receipt_confirms_has_no_term_left_to_settle(
    records: bool,  # noqa: FBT001 - pytest names it
    settled: list[object],
) -> None:
    found = Finding(Evidence.not_running(), receipt=True)
    bench = Bench(one(snapshot(**ASKED), STOP), purpose=STOP, looker=Looker(found, records=records))
    bench.store.over.update({"a0"} if records else ())
    counts = bench.cycle().counts
    assert (counts["receipt"], counts["fenced"]) == (int(records), 0)
    assert bench.store.settles == settled


def test_a_stop_that_is_no_candidate_yet_waits_until_it_is() -> None:
    fresh = snapshot(lease_valid=True, dispatch_finished_at_ms=990_000, **ASKED)
    bench = Bench(one(fresh, STOP), purpose=STOP, settings=Settings(stop_report_grace_ms=15_000))
    bench.cycle()
    # The lease of the double expired at 1,000,000, which is now; it is valid by the boot's clock, for a moment.
    assert bench.store.settles == [("a0", "retry", 1, False)]
    assert bench.looker.asked == []


@pytest.mark.parametrize("after", ["retry_wait", "failed", "cancelled"])
def test_a_lost_run_is_moved_on_and_the_store_knows_when_its_retry_is_due(after: str) -> None:
    policy = RetryPolicy(max_attempts=3, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=700)
    bench = Bench(one(snapshot("lost", "lost", policy=policy), RETRY), purpose=RETRY)
    bench.store.run_status_after = after
    assert bench.cycle().as_dict() == {"claimed": 1, "moved_on": 1}
    assert bench.store.applied == [("a0", "retry", None, None)]
    assert bench.store.settles == [("a0", "resolved", None, False)]


@pytest.mark.parametrize(("due_in_ms", "wait_ms"), [(700, 700), (300_000, 300_000), (86_400_000, 300_000)])
def test_a_retry_that_is_not_due_waits_for_that_within_the_bound_of_all_waits(due_in_ms: int, wait_ms: int) -> None:
    waits = snapshot("retry_wait", "failed", retry_due_at_ms=NOW_MS + due_in_ms)
    bench = Bench(one(waits, RETRY, delays=3), purpose=RETRY)
    assert bench.cycle().as_dict() == {"claimed": 1, "retry": 1}
    assert bench.store.settles == [("a0", "retry", wait_ms, False)]


@pytest.mark.parametrize(
    ("found", "applied", "settled"),
    [("not_running", 1, "resolved"), ("running", 0, "retry"), ("identity_unverifiable", 0, "manual")],
)
def test_after_a_group_that_was_left_a_retry_needs_proof(found: str, applied: int, settled: str) -> None:
    bench = Bench(
        one(snapshot("retry_wait", "failed", group_left=True), RETRY),
        purpose=RETRY,
        looker=Looker(Finding(ANSWERS[found])),
    )
    bench.store.run_status_after = "queued"
    bench.cycle()
    assert len(bench.store.applied) == applied
    assert [state for _, state, _, _ in bench.store.settles] == [settled]


# Time (R11.2, R11.3).


def test_a_page_without_time_left_for_the_next_probe_is_given_back() -> None:
    # 30 s less a margin of 1.25 s. Looks of 9 s each: the third begins at 18 s and the fourth, at 27 s, might end late.
    bench = Bench(*items(5))
    bench.takes(9)
    assert bench.cycle().as_dict() == {"claimed": 5, "found_not_running": 3, "given_back": 2, "lost": 3, "swept": 0}
    assert bench.store.given_back == ["a3", "a4"]
    assert [item for item, *_ in bench.store.settles] == ["a0", "a1", "a2"]


def test_what_needs_no_probe_is_still_done_while_the_claim_lasts() -> None:
    never = [(claim_for(item_id=name), snapshot("dispatching", "claimed")) for name in ("a1", "a2")]
    bench = Bench(one(), *never)
    bench.takes(28)
    assert bench.cycle().counts["lost"] == 3


def test_a_look_that_outlasted_the_claim_writes_nothing_and_the_rest_is_given_back() -> None:
    bench = Bench(*items(2))
    bench.takes(60)
    assert bench.cycle().as_dict() == {"claimed": 2, "fenced": 1, "found_not_running": 1, "given_back": 1, "swept": 0}
    assert (bench.store.applied, bench.store.settles, bench.store.given_back) == ([], [], ["a1"])


def test_a_stopping_worker_gives_the_rest_back_between_two_items() -> None:
    bench = Bench(*items(3))
    asked = iter([False, True])
    assert bench.cycle(lambda: next(asked)).as_dict()["given_back"] == 2
    assert bench.store.given_back == ["a1", "a2"]


def test_a_page_that_cannot_be_given_back_expires_by_itself() -> None:
    bench = Bench(*items(2))
    bench.store.fails["give_back"] = ConnectionError("gone")
    assert bench.cycle(lambda: True).as_dict() == {"claimed": 2, "error": 1, "swept": 0}


@pytest.mark.parametrize(
    ("worst_ms", "settings", "refused"),
    [
        (5_000, {"recovery_lease_ms": 6_250}, False),
        (5_000, {"recovery_lease_ms": 6_249}, True),
        # A provider that is quicker does not make the time-out shorter.
        (0, {"recovery_lease_ms": 6_249}, True),
        (28_750, {}, False),
        (28_751, {}, True),
        (0, {"recovery_lease_ms": 1_251, "evidence_timeout_ms": 1}, False),
    ],
)
def test_a_claim_that_does_not_outlast_a_look_and_a_margin_is_refused(
    worst_ms: int,
    settings: dict[str, int],
    refused: bool,  # noqa: FBT001 - pytest names it
) -> None:
    assert MARGIN_MS == 1_250
    if not refused:
        Bench(looker=Looker(worst_ms=worst_ms), settings=Settings(**settings))
        return
    with pytest.raises(InvalidSetting, match="recovery_lease_ms"):
        Bench(looker=Looker(worst_ms=worst_ms), settings=Settings(**settings))


# Failures (R11.8).


@pytest.mark.parametrize("method", ["snapshot", "apply"])
def test_an_item_that_fails_is_tried_later_and_the_page_goes_on(method: str) -> None:
    bench = Bench(*items(3))
    bench.store.fails[f"{method}/a1"] = ConnectionError("gone")
    report = bench.cycle()
    assert (report.counts["error"], report.counts["lost"]) == (1, 2)
    assert bench.store.settles == [
        ("a0", "resolved", None, False),
        ("a1", "retry", 5_000, True),
        ("a2", "resolved", None, False),
    ]
    assert [(run_id, str(error)) for run_id, error in bench.errors] == [("r1", "gone")]


def test_an_examiner_that_fails_is_a_failure_of_its_item_only() -> None:
    bench = Bench(*items(2))

    def look(_: Snapshot) -> None:
        raise RuntimeError("broken")

    bench.looker.looks = look
    assert bench.cycle().as_dict() == {"claimed": 2, "error": 2, "swept": 0}
    assert [state for _, state, _, _ in bench.store.settles] == ["retry", "retry"]


def test_an_item_whose_failure_cannot_be_settled_does_not_stop_the_page_either() -> None:
    bench = Bench(*items(2))
    bench.store.fails["snapshot/a0"] = ConnectionError("gone")
    bench.store.fails["settle/a0"] = ConnectionError("still gone")
    assert bench.cycle().as_dict() == {"claimed": 2, "error": 2, "found_not_running": 1, "lost": 1, "swept": 0}
    assert [str(error) for _, error in bench.errors] == ["gone", "still gone"]


def test_an_item_whose_settle_fails_after_the_mutation_is_tried_later() -> None:
    # Nothing is recorded twice by that: the next holder finds that it is no candidate, or the sweep does (R11.7).
    bench = Bench(one())
    bench.store.fails["settle"] = ConnectionError("gone")
    assert bench.cycle().as_dict() == {"claimed": 1, "error": 2, "found_not_running": 1, "lost": 1, "swept": 0}


@pytest.mark.parametrize(("failures", "settled"), [(0, "retry"), (18, "retry"), (19, "manual")])
def test_an_item_that_failed_as_often_as_allowed_is_an_operators(failures: int, settled: str) -> None:
    bench = Bench(one(failures=failures, delays=failures))
    bench.store.fails["apply"] = ConnectionError("gone")
    bench.cycle()
    wait = {0: 5_000, 18: 300_000, 19: "failure_limit"}[failures]
    assert bench.store.settles == [("a0", settled, wait, True)]


def test_an_item_that_ended_its_workers_as_often_as_allowed_is_not_looked_into_once_more() -> None:
    bench = Bench(one(failures=20), *items(2)[1:])
    assert bench.cycle().as_dict() == {"claimed": 2, "found_not_running": 1, "lost": 1, "manual": 1, "swept": 0}
    assert bench.store.settles == [("a1", "resolved", None, False), ("a0", "manual", "failure_limit", False)]
    assert "snapshot/a0" not in bench.store.calls


def test_an_item_that_ends_its_workers_takes_none_of_its_page_along() -> None:
    page, ended = [claim for claim, _ in items(16)], 0

    def look(seen: Snapshot) -> None:
        if seen.run_id == "killer":
            raise KeyboardInterrupt

    snapshots = {claim.key.item_id: snapshot(run_id=claim.run_id) for claim in page}
    snapshots["a0"] = snapshot(run_id="killer")
    settled: list[tuple[str, str]] = []
    while page:
        bench = Bench(*((claim, snapshots[claim.key.item_id]) for claim in page))
        bench.looker.looks = look
        try:
            bench.cycle()
        except KeyboardInterrupt:
            ended += 1
        settled += [(item, state) for item, state, _, _ in bench.store.settles]
        done = {item for item, _ in settled}
        # What its worker had in hand is found expired by the next one.
        page = [replace(claim, failures=claim.failures + 1) for claim in page if claim.key.item_id not in done]
    assert ended == 20
    assert [item for item, state in settled if state != "resolved"] == ["a0"]
    assert len(settled) == 16


def test_what_never_failed_is_looked_into_first_and_in_the_order_of_the_page() -> None:
    bench = Bench(one(failures=1), *items(4)[1:])
    bench.cycle()
    assert [item for item, _, _, _ in bench.store.settles] == ["a1", "a2", "a3", "a0"]

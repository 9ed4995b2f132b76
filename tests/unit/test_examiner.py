"""R10.2, R11.3, R8.2: which files are opened, who is asked, and for how long. The receipts here are doubles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from evidence_doubles import Hanging, Saying
from runfacts.domain.errors import InvalidSetting
from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, RunStatus
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Unknown
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.snapshots import ExecutionSnapshot, Snapshot
from runfacts.domain.retry import RetryPolicy
from runfacts.infrastructure.evidence import EvidenceRegistry
from runfacts.infrastructure.examiner import AttemptExaminer, target_of

GONE = Evidence.not_running()
UNAVAILABLE = Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE)
UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)

EXECUTION = ExecutionSnapshot(
    executor_type="batch",
    gated=True,
    scope="here",
    worker_id="w-1",
    handle="job-1#7",
    pid=4_711,
    lease_token_digest="0" * 64,
    lease_expires_at_ms=31_000,
    callback_sequence=2,
    deadline_at_ms=None,
    receipt_path="/runs/attempt.receipt",
    seen_at_ms=1_000,
)
SNAPSHOT = Snapshot(
    run_id="run",
    run_status=RunStatus.RUNNING,
    run_version=7,
    execution_owner=ExecutionOwner.RUNTIME,
    intent_kind=None,
    intent_at_ms=None,
    retry_due_at_ms=None,
    group_left=False,
    policy=RetryPolicy(),
    unknown_types=False,
    attempt_id="attempt",
    attempt_number=1,
    attempt_status=AttemptStatus.RUNNING,
    execution=EXECUTION,
    now_ms=40_000,
    lease_valid=False,
)
WITHOUT_ATTEMPT = replace(SNAPSHOT, attempt_id=None, attempt_number=None, attempt_status=None, execution=None)
WITHOUT_PATH = replace(SNAPSHOT, execution=replace(EXECUTION, receipt_path=None))
ELSEWHERE = replace(SNAPSHOT, execution=replace(EXECUTION, scope="elsewhere"))


@dataclass
class Desk:
    """Receipts of one scope; remembers what was opened."""

    opened: list[str] = field(default_factory=list)
    probes: int = 1

    def are_ours(self, target: EvidenceTarget) -> bool:
        """See Receipts."""
        return target.scope == "here"

    def has(self, target: EvidenceTarget, path: str) -> bool:
        """See Receipts."""
        self.opened.append(f"has {target.attempt_id} {path}")
        return True

    def examine(self, target: EvidenceTarget, path: str, probe: Callable[[], Evidence]) -> Finding:
        """See Receipts."""
        self.opened.append(f"examine {target.attempt_id} {path}")
        found = [probe() for _ in range(self.probes)]
        return Finding(found[-1], receipt=True)

    def record(self, target: EvidenceTarget, path: str, probe: Callable[[], Evidence]) -> bool:
        """See Receipts."""
        self.opened.append(f"record {target.attempt_id} {path}")
        return probe() == GONE


def examiner(*providers: Saying | Hanging, desk: Desk | None = None, timeout_ms: int = 5_000) -> AttemptExaminer:
    """An examiner under claims of half a minute."""
    return AttemptExaminer(EvidenceRegistry(providers, timeout_ms=timeout_ms), desk, lease_ms=30_000)


def test_what_is_asked_about_is_what_was_recorded() -> None:
    provider = Saying(GONE)
    examiner(provider).examine(SNAPSHOT, foreign=False)
    expected = EvidenceTarget(
        "run", "attempt", AttemptStatus.RUNNING, "batch", "here", "w-1", "job-1#7", 4_711, 31_000, 1_000
    )
    assert provider.targets == [expected]
    assert target_of(WITHOUT_ATTEMPT) is None


def test_the_files_of_ones_own_scope_are_looked_at() -> None:
    desk = Desk()
    found = examiner(Saying(GONE), desk=desk)
    assert found.has_receipt(SNAPSHOT, foreign=False)
    assert found.examine(SNAPSHOT, foreign=False) == Finding(GONE, receipt=True)
    assert found.record_receipt(SNAPSHOT)
    path = "/runs/attempt.receipt"
    assert desk.opened == [f"has attempt {path}", f"examine attempt {path}", f"record attempt {path}"]


@pytest.mark.parametrize(
    ("snapshot", "foreign"), [(ELSEWHERE, True), (ELSEWHERE, False), (SNAPSHOT, True), (WITHOUT_PATH, False)]
)
def test_no_file_of_another_scope_is_opened_and_only_the_provider_is_asked(
    snapshot: Snapshot, *, foreign: bool
) -> None:
    desk = Desk()
    provider = Saying(GONE)
    found = examiner(provider, desk=desk)
    assert not found.has_receipt(snapshot, foreign=foreign)
    assert found.examine(snapshot, foreign=foreign) == Finding(GONE)
    assert desk.opened == []
    assert provider.asked == 1


def test_a_receipt_that_is_not_ours_is_not_recorded() -> None:
    desk = Desk()
    found = examiner(Saying(GONE), desk=desk)
    for snapshot in (ELSEWHERE, WITHOUT_PATH, WITHOUT_ATTEMPT):
        assert not found.record_receipt(snapshot)
    assert desk.opened == []


def test_without_the_local_executor_there_are_no_receipts() -> None:
    found = examiner(Saying(GONE))
    assert not found.has_receipt(SNAPSHOT, foreign=False)
    assert found.examine(SNAPSHOT, foreign=False) == Finding(GONE)
    assert not found.record_receipt(SNAPSHOT)


def test_without_an_attempt_nothing_can_be_proven() -> None:
    desk = Desk()
    provider = Saying(GONE)
    found = examiner(provider, desk=desk)
    assert not found.has_receipt(WITHOUT_ATTEMPT, foreign=False)
    assert found.examine(WITHOUT_ATTEMPT, foreign=False) == Finding(UNVERIFIABLE)
    assert (desk.opened, provider.asked) == ([], 0)


def test_one_look_has_one_time_limit_however_often_it_probes() -> None:
    provider = Hanging()
    try:
        found = examiner(provider, desk=Desk(probes=3), timeout_ms=20)
        assert found.examine(SNAPSHOT, foreign=False) == Finding(UNAVAILABLE, receipt=True)
        assert provider.asked == 1
    finally:
        provider.let_go.set()
    told = Saying(GONE)
    examiner(told, desk=Desk(probes=2), timeout_ms=5_000).examine(SNAPSHOT, foreign=False)
    assert told.limits_ms[1] <= told.limits_ms[0] <= 5_000


def test_the_worst_case_is_the_time_limit_where_somebody_is_asked() -> None:
    found = examiner(Saying(GONE), timeout_ms=7_000)
    assert found.worst_case_ms("batch") == 7_000
    assert found.worst_case_ms("other") == 0


def test_a_look_is_250_ms_shorter_than_the_claim_under_which_it_is_made() -> None:
    registry = EvidenceRegistry(timeout_ms=5_000)
    AttemptExaminer(registry, lease_ms=5_250)
    with pytest.raises(InvalidSetting, match="recovery_lease_ms"):
        AttemptExaminer(registry, lease_ms=5_249)

"""
R11.6, R11.7: recovering workers killed or frozen at each point, and what happens meanwhile, with real processes.

The Attempts are those of an executor type of the test's own, whose evidence is what the test writes down, except where
a receipt is what matters. The cases of one test run side by side, each on a database of its own, because each waits for
a claim to expire.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from signal import SIGKILL

import pytest

from hosted_runs import ANA, EXIT_CODE, HostedRun
from process_watch import Marked, wait_until
from real_time import FILE_FIRST, SERVER_FIRST, SOME, RealTime
from runfacts import Actor, AttemptClaim, Claimed, Ledger, Outcome
from runfacts.domain.payloads import RunStopConfirmed
from runfacts.infrastructure.database.recovery_tables import recovery_claims
from runfacts.testing.ledgers import contents_of
from workers import RecoveryJob, recovering

QUICK = {
    "evidence_timeout_ms": 1_000,
    "recovery_lease_ms": 3_000,
    "recovery_delay_ms": 200,
    "recovery_delay_max_ms": 500,
}
"""Claims that expire soon."""
PATIENT = {"evidence_timeout_ms": 25_000, "recovery_lease_ms": 60_000, "recovery_delay_ms": 200}
"""Claims that outlast everything that the test does meanwhile."""
BATCH = Actor.executor("batch")


@dataclass
class Cell:
    """A Run that an executor of the test's own has left, in a database of its own, and two workers."""

    databases: RealTime
    root: Path
    name: str
    settings: dict[str, int]
    fault: str | None = None
    call: str | None = None
    step: str | None = None
    url: str = field(init=False)
    ledger: Ledger = field(init=False)
    claim: AttemptClaim = field(init=False)

    def __post_init__(self) -> None:
        """Begin the Attempt, whose lease is over soon."""
        self.url = self.databases.create()
        self.ledger = ledger = Ledger.open(self.url)
        run_id = ledger.create(actor=ANA, task="batch").run.run_id
        claimed = ledger.claim(run_id, actor=BATCH, executor_type="batch", lease_ms=2_000, queue=True)
        assert isinstance(claimed, Claimed)
        self.claim = claimed.claim
        ledger.start(self.claim, actor=BATCH)
        ledger.running(self.claim, actor=BATCH)

    @property
    def first(self) -> RecoveryJob:
        """The worker that meets the fault."""
        name = f"first, {self.name}"
        return replace(self.second, name=name, fault=self.fault, call=self.call, step=self.step)

    @property
    def second(self) -> RecoveryJob:
        """The other one."""
        return RecoveryJob(f"second, {self.name}", self.url, settings=self.settings, answers=str(self.root))

    def answer(self, word: str = "not running") -> None:
        """Let the provider answer."""
        draft = self.root / f"{self.claim.attempt_id}.draft"
        draft.write_text(word)
        draft.rename(self.root / self.claim.attempt_id)

    def facts(self) -> list[str]:
        """The types of its facts from the Attempt's running on."""
        found = [fact.type for fact in self.ledger.history(self.claim.run_id)]
        return found[found.index("attempt.running") + 2 :]

    def ends(self) -> None:
        """Wait until the Run has ended and nothing is left over of what was claimed."""

        def ended() -> bool:
            at = list(recovery_claims.columns.keys()).index("state")
            states = {row[at] for row in contents_of(self.ledger)[recovery_claims.name]}
            return self.ledger.run(self.claim.run_id).finished_at_ms is not None and states <= {"resolved"}

        wait_until(ended, f"{self.name}: the run ends")
        report = self.ledger.verify()
        assert report.clean, (self.name, report.differences)


LOST_ONCE = ["attempt.lost", "run.lost", "run.failed"]
KILLED = {
    "claimed": ("claim_recoveries", "after"),
    "seen": ("recovery_snapshot", "after"),
    "asked": ("examine", "after"),
    "before the loss commits": ("apply_lost", "sql:before:commit"),
    "after the loss commits": ("apply_lost", "sql:after:commit"),
    "between loss and settle": ("apply_lost", "after"),
    "before the settle commits": ("settle_recovery", "sql:before:commit"),
    "after the settle commits": ("settle_recovery", "sql:after:commit"),
}
LEFT_OVER = {"after the loss commits", "between loss and settle", "before the settle commits"}


@pytest.mark.parametrize("databases", SERVER_FIRST, indirect=True)
def test_a_worker_killed_anywhere_leaves_a_loss_that_is_recorded_once(
    databases: RealTime, tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    with ExitStack() as stack:
        cells = [Cell(databases, tmp_path, name, QUICK, "kill", *at) for name, at in KILLED.items()]
        for cell in cells:
            stack.callback(cell.ledger.close)
            cell.answer()
        first = stack.enter_context(recovering(*(cell.first for cell in cells)))
        for cell in cells:
            first.first("ended", cell.first.name)
        second = stack.enter_context(recovering(*(cell.second for cell in cells)))
        for cell in cells:
            cell.ends()
            assert cell.facts() == LOST_ONCE, cell.name
        assert first.end() == {cell.first.name: -SIGKILL for cell in cells}
        assert second.end() == {cell.second.name: 0 for cell in cells}
        swept = {cell.name for cell in cells if second.counted_by(cell.second.name, "recovery", "swept")}
        assert swept == LEFT_OVER
        assert second.all("failed") == []


FROZEN = {
    "while it asks": None,
    "when it was answered": ("examine", "after"),
    "when it writes": ("apply_lost", "before"),
    "when it settles": ("settle_recovery", "before"),
}
"""Where a worker stands still until another one has taken over and is done."""


@pytest.mark.parametrize("databases", SERVER_FIRST, indirect=True)
def test_a_worker_whose_claim_is_taken_over_is_fenced_before_it_reads_the_run(
    databases: RealTime, tmp_path: Path, marked: Marked
) -> None:
    assert not marked.living()
    with ExitStack() as stack:
        cells = [
            Cell(databases, tmp_path, name, QUICK, *(("freeze", *at) if at else ())) for name, at in FROZEN.items()
        ]
        asking, answered, writing, settling = cells
        for cell in cells:
            stack.callback(cell.ledger.close)
        for cell in cells[1:]:
            cell.answer()
        first = stack.enter_context(recovering(*(cell.first for cell in cells)))
        first.first("asked", asking.first.name)
        first.freeze(asking.first.name)
        for cell in cells[1:]:
            first.first("reached", cell.first.name)
        second = stack.enter_context(recovering(*(cell.second for cell in cells)))
        second.first("asked", asking.second.name)
        asking.answer()
        for cell in cells:
            cell.ends()
        for cell in cells:
            first.thaw(cell.first.name)
            first.next_cycle(cell.first.name)
        for cell in cells:
            assert cell.facts() == LOST_ONCE, cell.name
            assert first.counted_by(cell.first.name, "recovery", "fenced") == 1, cell.name
        assert first.all("apply_lost", asking.first.name) + first.all("apply_lost", answered.first.name) == []
        (refused,) = first.all("apply_lost", writing.first.name)
        assert refused["answer"] == "RecoveryFenced"
        read = {step.removeprefix("sql:before:") for step in refused["steps"] if step.startswith("sql:before:")}
        assert read - {"now", "commit"} == {"select_recovery_claim"}
        (applied,) = first.all("apply_lost", settling.first.name)
        assert applied["answer"] == "RecoveryApplied"
        assert set(second.end().values()) | set(first.end().values()) == {0}
        assert second.all("failed") + first.all("failed") == []


@pytest.mark.parametrize("databases", SOME, indirect=True)
def test_what_changes_during_the_probe_makes_it_stale(databases: RealTime, tmp_path: Path, marked: Marked) -> None:
    assert not marked.living()
    with ExitStack() as stack:
        cells = [Cell(databases, tmp_path, name, PATIENT) for name in ("cancelled", "reported")]
        late = Cell(databases, tmp_path, "reported after", PATIENT, "freeze", "apply_lost", "before")
        cancelled, reported = cells
        for cell in (*cells, late):
            stack.callback(cell.ledger.close)
        late.answer()
        worker = stack.enter_context(recovering(*(cell.first for cell in (*cells, late))))
        for cell in cells:
            worker.first("asked", cell.first.name)
        worker.first("reached", late.first.name)
        cancelled.ledger.request_cancellation(cancelled.claim.run_id, actor=ANA)
        for cell in (reported, late):
            cell.ledger.finish(cell.claim, Outcome.succeeded(exit_code=0), actor=BATCH)
        for cell in cells:
            cell.answer()
        worker.thaw(late.first.name)
        for cell in (*cells, late):
            assert worker.first("apply_lost", cell.first.name)["answer"] == "RecoveryStale", cell.name
            cell.ends()
        assert cancelled.facts() == ["run.cancel_requested", "run.stop_confirmed", "attempt.cancelled", "run.cancelled"]
        found = [fact.payload for fact in cancelled.ledger.history(cancelled.claim.run_id)]
        assert [each.evidence for each in found if isinstance(each, RunStopConfirmed)] == ["not_running"]
        for cell in (reported, late):
            assert cell.facts() == ["attempt.succeeded", "run.succeeded"], cell.name
        assert set(worker.end().values()) == {0}
        assert worker.all("failed") == []


@pytest.mark.parametrize("databases", FILE_FIRST, indirect=True)
@pytest.mark.parametrize("call", ["recovery_snapshot", "has_receipt"])
def test_a_receipt_that_comes_while_a_worker_looks_is_what_it_finds(
    databases: RealTime, tmp_path: Path, marked: Marked, call: str
) -> None:
    assert not marked.living()
    url = databases.create()
    with Ledger.open(url) as ledger, ExitStack() as stack:
        run = HostedRun.submitted(ledger, url, tmp_path)
        host = stack.enter_context(recovering(run.job("host", {"execution_lease_ms": 2_000})))
        run.runs()
        host.kill("host")
        job = RecoveryJob("worker", url, settings=PATIENT, fault="freeze", call=call, step="after")
        worker = stack.enter_context(recovering(job))
        worker.first("reached", "worker")
        run.let_go()
        wait_until(lambda: list(ledger.places().receipts()), "the keeper leaves its receipt")
        wait_until(lambda: not run.processes(), "the command is gone")
        worker.thaw("worker")
        run.ends()
        worker.next_cycle("worker")
        assert (run.first.status, run.first.exit_code, run.ran) == ("failed", EXIT_CODE, [run.first.attempt_id])
        assert [fact for fact in run.facts if "lost" in fact] == []
        assert worker.counted_by("worker", "recovery", "receipt") == 1
        assert worker.all("apply_lost") == []
        assert worker.end() == {"worker": 0}
        assert ledger.verify().clean

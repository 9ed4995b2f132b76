"""R10.2, R6.5, R8.2: what is found of a command whose host is gone, with real keepers and a real ledger."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from another_boot import OTHER_BOOT, AnotherBoot
from left_commands import LeavingHost, LeftCommand
from process_watch import kill, state_of, wait_until
from runfacts import Actor, Ledger, Outcome
from runfacts.domain.history import History
from runfacts.domain.recovery.evidence import Evidence, EvidenceProvider, Unknown
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.snapshots import ExecutionSnapshot, Snapshot
from runfacts.infrastructure.api.core import history_of
from runfacts.infrastructure.evidence import EvidenceRegistry
from runfacts.infrastructure.examiner import AttemptExaminer, examiner_of
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.local_receipts import LocalReceipts
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import AttemptFiles
from runfacts.infrastructure.processes.procfs import ProcFs

WORKER = Actor.worker("w-1")
GONE = Evidence.not_running()
RUNNING = Evidence.running()
UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
DAYS_MS = 2 * 86_400_000


@pytest.fixture
def ledger(tmp_path: Path, marked: object) -> Iterator[Ledger]:
    """A ledger of this machine, whose commands all end with the test."""
    del marked
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", machine_id="rack-7") as found:
        yield found


@pytest.fixture
def host(ledger: Ledger, tmp_path: Path) -> LeavingHost:
    """A host that leaves its commands."""
    return LeavingHost(ledger, tmp_path)


@pytest.fixture
def examiner(ledger: Ledger) -> AttemptExaminer:
    """The examiner of a worker of this machine."""
    found, registry = examiner_of(ledger, actor=WORKER)
    assert registry.executor_types == {"local"}
    assert found.worst_case_ms("local") == 5_000
    return found


def snapshot_of(ledger: Ledger, left: LeftCommand) -> Snapshot:
    """Give what is recorded of a command."""
    with ledger.database.reading() as reading:
        history: History = history_of(reading, left.run_id)
    view = ledger.execution(left.claim.attempt_id)
    run = history.run
    return Snapshot(
        run_id=left.run_id,
        run_status=run.status,
        run_version=history.version,
        execution_owner=run.execution_owner,
        intent_kind=None if run.intent is None else run.intent.kind,
        intent_at_ms=None if run.intent is None else run.intent.requested_at_ms,
        retry_due_at_ms=None,
        group_left=False,
        policy=run.policy,
        unknown_types=False,
        attempt_id=left.claim.attempt_id,
        attempt_number=1,
        attempt_status=view.attempt_status,
        execution=ExecutionSnapshot(
            executor_type=view.executor_type,
            gated=view.gated,
            scope=view.scope,
            worker_id=view.worker_id,
            handle=view.handle,
            pid=view.pid,
            lease_token_digest="0" * 64,
            lease_expires_at_ms=view.lease_expires_at_ms,
            callback_sequence=view.callback_sequence,
            deadline_at_ms=view.deadline_at_ms,
            receipt_path=view.receipt_path,
            seen_at_ms=time.time_ns() // 1_000_000,
        ),
        now_ms=0,
        lease_valid=False,
    )


def files_of(snapshot: Snapshot) -> AttemptFiles:
    """Give where its traces lie."""
    assert snapshot.execution is not None
    assert snapshot.execution.receipt_path is not None
    return AttemptFiles.beside(snapshot.execution.receipt_path)


def end_the_leader(snapshot: Snapshot) -> None:
    """Kill the command and wait for its keeper's receipt."""
    assert snapshot.execution is not None
    assert snapshot.execution.pid is not None
    kill(snapshot.execution.pid)
    wait_until(Path(files_of(snapshot).receipt).exists, "its keeper has published")


def child_of(snapshot: Snapshot) -> int:
    """Give the number of the group's member that is not its leader."""
    assert snapshot.execution is not None
    group = snapshot.execution.pid
    assert group is not None
    (member,) = [stat for stat in ProcFs().living_members(group) if stat.pid != group]
    return member.pid


def keeper_of(snapshot: Snapshot) -> int:
    """Give the number of the command's keeper: its parent."""
    assert snapshot.execution is not None
    assert snapshot.execution.pid is not None
    leader = ProcFs().stat(snapshot.execution.pid)
    assert leader is not None
    return leader.parent


def test_a_finished_command_whose_host_is_gone_is_recorded_by_its_receipt(
    ledger: Ledger, host: LeavingHost, examiner: AttemptExaminer
) -> None:
    left = host.leave()
    snapshot = snapshot_of(ledger, left)
    assert not examiner.has_receipt(snapshot, foreign=False)
    assert examiner.examine(snapshot, foreign=False) == Finding(RUNNING)
    assert not examiner.record_receipt(snapshot)
    end_the_leader(snapshot)
    assert examiner.has_receipt(snapshot, foreign=False)
    assert examiner.examine(snapshot, foreign=False) == Finding(GONE, receipt=True)
    assert examiner.record_receipt(snapshot)
    view = ledger.run(left.run_id)
    assert (view.status, view.attempts[0].signal) == ("failed", 9)
    # Consumed once: nothing lies there any more.
    assert not Path(files_of(snapshot).receipt).exists()
    assert not examiner.has_receipt(snapshot, foreign=False)
    assert not examiner.record_receipt(snapshot)


def test_a_command_that_outlives_its_keeper_runs_and_without_both_nothing_does(
    ledger: Ledger, host: LeavingHost, examiner: AttemptExaminer
) -> None:
    snapshot = snapshot_of(ledger, host.leave())
    keeper = keeper_of(snapshot)
    kill(keeper)
    wait_until(lambda: state_of(keeper) in {None, "Z"}, "the keeper has ended")
    assert examiner.examine(snapshot, foreign=False) == Finding(RUNNING)
    assert snapshot.execution is not None
    assert snapshot.execution.pid is not None
    kill(snapshot.execution.pid)
    wait_until(lambda: examiner.examine(snapshot, foreign=False) == Finding(GONE), "it is gone")
    assert not examiner.has_receipt(snapshot, foreign=False)


def test_with_an_intent_a_receipt_waits_for_the_last_of_its_group(
    ledger: Ledger, host: LeavingHost, examiner: AttemptExaminer
) -> None:
    """R6.5."""
    left = host.leave("stays")
    snapshot = snapshot_of(ledger, left)
    member = child_of(snapshot)
    left.ask_to_stop(ledger)
    end_the_leader(snapshot)
    assert examiner.examine(snapshot, foreign=False) == Finding(RUNNING, receipt=True)
    assert not examiner.record_receipt(snapshot)
    assert ledger.run(left.run_id).status == "running"
    assert Path(files_of(snapshot).receipt).exists()
    kill(member)
    wait_until(lambda: state_of(member) in {None, "Z"}, "the last has ended")
    assert examiner.examine(snapshot, foreign=False) == Finding(GONE, receipt=True)
    assert examiner.record_receipt(snapshot)
    assert ledger.run(left.run_id).status == "cancelled"


def test_without_an_intent_the_outcome_stands_whoever_is_left(
    ledger: Ledger, host: LeavingHost, examiner: AttemptExaminer
) -> None:
    left = host.leave("stays")
    snapshot = snapshot_of(ledger, left)
    end_the_leader(snapshot)
    assert examiner.record_receipt(snapshot)
    assert ledger.run(left.run_id).status == "failed"
    # Of an Attempt that has ended the group can still be asked about, for its retry (R12.1).
    ended = replace(snapshot_of(ledger, left), execution=snapshot.execution)
    assert examiner.examine(ended, foreign=False) == Finding(RUNNING)
    kill(child_of(snapshot))
    wait_until(lambda: examiner.examine(ended, foreign=False) == Finding(GONE), "the last has ended")


def after_a_reboot(ledger: Ledger) -> AttemptExaminer:
    """An examiner of the same machine, for which it has been started again since."""
    procfs = AnotherBoot()
    machine = MachineIdentity.of_this_process("rack-7", procfs=procfs)
    provider: EvidenceProvider = LocalEvidence(
        machine, now_ms=lambda: time.time_ns() // 1_000_000 + DAYS_MS, procfs=procfs
    )
    return AttemptExaminer(EvidenceRegistry([provider]), LocalReceipts(ledger, machine, actor=WORKER), lease_ms=30_000)


def test_after_a_reboot_a_receipt_ends_even_a_run_that_was_asked_to_stop(ledger: Ledger, host: LeavingHost) -> None:
    """The reboot is faked: the worker's /proc says another boot, and the ledger's clock that it began since."""
    left = host.leave("stays")
    snapshot = snapshot_of(ledger, left)
    left.ask_to_stop(ledger)
    end_the_leader(snapshot)
    examiner = after_a_reboot(ledger)
    assert examiner.examine(snapshot, foreign=False) == Finding(GONE, receipt=True)
    assert examiner.record_receipt(snapshot)
    assert ledger.run(left.run_id).status == "cancelled"


def test_after_a_reboot_a_command_without_a_receipt_is_gone(ledger: Ledger, host: LeavingHost) -> None:
    """The reboot is faked the same way; nothing holds a lock over one, so the keeper is killed."""
    snapshot = snapshot_of(ledger, host.leave())
    kill(keeper_of(snapshot))
    examiner = after_a_reboot(ledger)
    wait_until(lambda: examiner.examine(snapshot, foreign=False) == Finding(GONE), "the lock is free")


def test_no_file_of_another_scope_is_opened(ledger: Ledger, host: LeavingHost, examiner: AttemptExaminer) -> None:
    """R8.2. What lies at the path is a stranger's: it is neither believed nor set aside, nor its lock tried."""
    snapshot = snapshot_of(ledger, host.leave())
    assert snapshot.execution is not None
    handle = ProcessHandle.decode(snapshot.execution.handle or "")
    strange = replace(handle, machine_id="rack-8", boot_id=OTHER_BOOT)
    elsewhere = replace(snapshot, execution=replace(snapshot.execution, scope=strange.scope, handle=strange.encode()))
    path = Path(files_of(snapshot).receipt)
    path.write_text("{}")
    # The keeper still holds the lock that lies there: looked at, it would say "running".
    for foreign in (True, False):
        assert examiner.examine(elsewhere, foreign=foreign) == Finding(UNVERIFIABLE)
        assert not examiner.has_receipt(elsewhere, foreign=foreign)
        assert not examiner.record_receipt(elsewhere)
    assert path.read_text() == "{}"


def test_a_receipt_that_the_ledger_does_not_accept_is_set_aside_and_the_probe_decides(
    ledger: Ledger, host: LeavingHost, examiner: AttemptExaminer
) -> None:
    one, other = snapshot_of(ledger, host.leave()), snapshot_of(ledger, host.leave())
    end_the_leader(one)
    end_the_leader(other)
    path = Path(files_of(one).receipt)
    token = json.loads(Path(files_of(other).receipt).read_text())["token"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"token": token}))
    assert examiner.has_receipt(one, foreign=False)
    assert not examiner.record_receipt(one)
    assert not path.exists()
    assert examiner.examine(one, foreign=False) == Finding(GONE)


def test_a_receipt_of_an_attempt_that_ended_otherwise_is_late_and_settles_it(
    ledger: Ledger, host: LeavingHost, examiner: AttemptExaminer
) -> None:
    left = host.leave()
    snapshot = snapshot_of(ledger, left)
    end_the_leader(snapshot)
    ledger.finish(left.claim, Outcome.succeeded(exit_code=0), actor=WORKER, sequence=3)
    assert examiner.record_receipt(snapshot)
    assert ledger.run(left.run_id).status == "succeeded"
    assert not Path(files_of(snapshot).receipt).exists()


def test_a_directory_that_cannot_be_looked_at_is_no_absence(
    ledger: Ledger, host: LeavingHost, examiner: AttemptExaminer, tmp_path: Path
) -> None:
    snapshot = snapshot_of(ledger, host.leave())
    assert snapshot.execution is not None
    (tmp_path / "file").touch()
    unreadable = replace(
        snapshot, execution=replace(snapshot.execution, receipt_path=str(tmp_path / "file" / "one.receipt"))
    )
    with pytest.raises(NotADirectoryError):
        examiner.has_receipt(unreadable, foreign=False)
    with pytest.raises(NotADirectoryError):
        examiner.examine(unreadable, foreign=False)

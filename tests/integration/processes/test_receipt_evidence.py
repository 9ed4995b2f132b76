"""R10.2: a receipt, a probe, and a second look under the keeper's lock. A finished run is never called lost."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from process_bench import Bench
from process_watch import kill, stopped_at, wait_until
from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, StopAsking, Unknown
from runfacts.infrastructure.processes.launcher import LaunchSpec
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.places import AttemptFiles
from runfacts.infrastructure.processes.prepared import PreparedProcess
from runfacts.infrastructure.processes.receipt_evidence import Inspection, inspect_with_receipt
from runfacts.infrastructure.processes.receipts import Receipt

GONE = Evidence.not_running()
RUNNING = Evidence.running()
UNVERIFIABLE = Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)


@dataclass
class Scripted:
    """A provider that does something while it looks, and answers what it was told to."""

    answers: list[Evidence]
    meanwhile: Callable[[], object] = lambda: None
    asked: int = 0
    executor_type: str = "local"
    required: frozenset[str] = field(default_factory=frozenset)

    def inspect(self, target: EvidenceTarget, *, timeout_ms: int, cancelled: StopAsking) -> Evidence:  # noqa: ARG002
        """See EvidenceProvider."""
        self.asked += 1
        self.meanwhile()
        return self.answers.pop(0)


@pytest.fixture
def spec(bench: Bench) -> LaunchSpec:
    """A launch that is never made; its files can be."""
    return bench.spec("true")


def target_of(spec: LaunchSpec, process: PreparedProcess | None = None) -> EvidenceTarget:
    """Give what is asked about."""
    handle = None if process is None else process.handle
    return EvidenceTarget(
        spec.run_id,
        spec.attempt_id,
        AttemptStatus.RUNNING,
        "local",
        "" if handle is None else handle.scope,
        None,
        None if handle is None else handle.encode(),
        None if handle is None else handle.pid,
        0,
    )


def inspect(provider: Scripted | LocalEvidence, target: EvidenceTarget, files: AttemptFiles) -> Inspection:
    """Look without being in a hurry."""
    return inspect_with_receipt(
        lambda: provider.inspect(target, timeout_ms=5_000, cancelled=threading.Event()), target, files.receipt
    )


def write_receipt(spec: LaunchSpec) -> None:
    """Publish a receipt."""
    receipt = Receipt(
        version=1,
        run_id=spec.run_id,
        attempt_id=spec.attempt_id,
        sequence=1,
        token="t",
        started_at_ms=1,
        ended_at_ms=2,
        exit_code=0,
        signal=None,
        not_executed=None,
        group_left=False,
    )
    Path(spec.files.receipt).write_text(receipt.model_dump_json())


@contextmanager
def a_keeper_holds(path: str) -> Iterator[None]:
    """Hold the lock as a keeper does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


def test_not_running_counts_when_the_lock_is_taken_and_no_receipt_is_there(spec: LaunchSpec) -> None:
    Path(spec.files.lock).touch()
    assert inspect(Scripted([GONE]), target_of(spec), spec.files) == Inspection(GONE)


def test_without_lock_and_receipt_no_keeper_will_say_anything_any_more(spec: LaunchSpec) -> None:
    assert inspect(Scripted([GONE]), target_of(spec), spec.files) == Inspection(GONE)


def test_where_the_keepers_directory_is_not_to_be_seen_nothing_is_proven(spec: LaunchSpec, bench: Bench) -> None:
    # As from another mount namespace, in which the receipt of a finished command would not be found.
    Path(spec.files.receipt).parent.rename(bench.root / "elsewhere")
    assert inspect(Scripted([GONE]), target_of(spec), spec.files) == Inspection(UNVERIFIABLE)
    assert inspect(Scripted([RUNNING]), target_of(spec), spec.files) == Inspection(RUNNING)


def test_a_directory_in_memory_that_a_reboot_has_emptied_hides_nothing(spec: LaunchSpec, bench: Bench) -> None:
    with bench.launcher.prepare(spec) as process:
        process.abandon()
        before = replace(process.handle, boot_id=str(uuid.uuid4()))
        target = replace(target_of(spec, process), handle=before.encode())
    Path(spec.files.receipt).parent.rename(bench.root / "elsewhere")
    assert inspect(Scripted([GONE]), target, spec.files) == Inspection(GONE)


def test_a_receipt_that_is_published_during_the_probe_is_found(spec: LaunchSpec) -> None:
    Path(spec.files.lock).touch()
    provider = Scripted([GONE], lambda: write_receipt(spec))
    found = inspect(provider, target_of(spec), spec.files)
    assert found.receipt is not None
    assert (found.receipt.exit_code, found.evidence, provider.asked) == (0, GONE, 1)


def test_what_ran_before_the_receipt_came_is_looked_at_again(spec: LaunchSpec) -> None:
    Path(spec.files.lock).touch()
    provider = Scripted([Evidence.running(), GONE], lambda: write_receipt(spec))
    found = inspect(provider, target_of(spec), spec.files)
    assert (found.receipt is not None, found.evidence, provider.asked) == (True, GONE, 2)


def test_beside_a_receipt_stands_what_is_left_of_the_group(spec: LaunchSpec) -> None:
    write_receipt(spec)
    found = inspect(Scripted([Evidence.running()]), target_of(spec), spec.files)
    assert (found.receipt is not None, found.evidence) == (True, Evidence.running())


@pytest.mark.parametrize("probed", [GONE, UNVERIFIABLE, Evidence.running()])
def test_a_lock_that_a_keeper_holds_means_running(spec: LaunchSpec, probed: Evidence) -> None:
    with a_keeper_holds(spec.files.lock):
        assert inspect(Scripted([probed]), target_of(spec), spec.files) == Inspection(Evidence.running())


def test_a_receipt_counts_even_while_its_keeper_still_holds_the_lock(spec: LaunchSpec) -> None:
    with a_keeper_holds(spec.files.lock):
        provider = Scripted([GONE], lambda: write_receipt(spec))
        found = inspect(provider, target_of(spec), spec.files)
    assert found.receipt is not None


def test_a_lock_that_cannot_be_tried_proves_nothing(spec: LaunchSpec) -> None:
    Path(spec.files.lock).symlink_to("/nowhere")
    assert inspect(Scripted([GONE]), target_of(spec), spec.files) == Inspection(UNVERIFIABLE)
    assert inspect(Scripted([Evidence.running()]), target_of(spec), spec.files) == Inspection(Evidence.running())


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_whoever_cannot_look_just_now_says_nothing_about_the_lock(
    spec: LaunchSpec, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    Path(spec.files.lock).touch()
    take = os.open

    def refuse(path: str, flags: int, mode: int = 0o777) -> int:
        if path == spec.files.lock:
            raise OSError(number, os.strerror(number))
        return take(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        inspect(Scripted([GONE]), target_of(spec), spec.files)


def test_two_that_look_at_once_do_not_take_each_other_for_a_keeper(spec: LaunchSpec) -> None:
    descriptor = os.open(spec.files.lock, os.O_RDONLY | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        assert inspect(Scripted([GONE]), target_of(spec), spec.files) == Inspection(GONE)
    finally:
        os.close(descriptor)


def test_a_receipt_that_cannot_be_believed_is_set_aside_and_reported(spec: LaunchSpec) -> None:
    Path(spec.files.receipt).write_text("{}")
    found = inspect(Scripted([GONE]), target_of(spec), spec.files)
    assert (found.receipt, found.evidence) == (None, GONE)
    assert [item.reason for item in found.quarantined] == ["it is malformed"]
    assert not Path(spec.files.receipt).exists()


@pytest.mark.parametrize("step", ["keeper:before:reap", "keeper:before:publish", "keeper:after:publish"])
def test_a_finished_command_is_never_called_gone_while_its_keeper_is_about_to_tell(bench: Bench, step: str) -> None:
    """With a real keeper, stopped between the end of its command and the end of its work."""
    bench = bench.with_steps(step)
    spec = bench.spec("sh", "-c", "exit 7")
    provider = LocalEvidence(bench.launcher.machine)
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        keeper = stopped_at(bench.root / "steps", step)
        found = inspect(provider, target_of(spec, process), spec.files)
        if step == "keeper:after:publish":
            assert found.receipt is not None
            assert found.receipt.exit_code == 7
        else:
            assert found == Inspection(Evidence.running())
        # Killed before it could tell: nobody will ever know, and now the probe decides.
        kill(keeper)
        assert process.wait(60)
        found = inspect(provider, target_of(spec, process), spec.files)
        assert found.evidence == GONE
        assert (found.receipt is not None) == (step == "keeper:after:publish")


def test_a_command_that_is_orphaned_by_its_keeper_is_running(bench: Bench) -> None:
    spec = bench.spec("sh", "-c", "touch up; exec sleep 600")
    provider = LocalEvidence(bench.launcher.machine)
    with bench.launcher.prepare(spec) as process:
        assert process.open_gate()
        wait_until((bench.root / "up").exists, "the command runs")
        kill(process.keeper_pid)
        assert process.wait(60)
        assert inspect(provider, target_of(spec, process), spec.files) == Inspection(Evidence.running())
        kill(process.pid)
        wait_until(lambda: inspect(provider, target_of(spec, process), spec.files) == Inspection(GONE), "it is gone")

"""R8.2, R8.3, R5.2: this machine, this boot, its namespaces, and processes that come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from process_watch import kill, state_of, wait_until
from runfacts.domain.errors import InvalidValue, UnsupportedPlatform
from runfacts.infrastructure.processes.group import group_is_gone
from runfacts.infrastructure.processes.handle import NoSuchProcess, ProcessHandle, has_pidfd_inodes
from runfacts.infrastructure.processes.machine import MachineIdentity, MachineIdSource
from runfacts.infrastructure.processes.procfs import INITIAL_PID_NAMESPACE, ProcFs
from runfacts.infrastructure.processes.proofs import proofs

MACHINE_ID = "0123456789abcdef0123456789abcdef"


class InNamespace(ProcFs):
    """A procfs that says of this process that it lives in a certain PID namespace."""

    def __init__(self, inode: int) -> None:
        super().__init__()
        self.inode = inode

    def namespace(self, kind: str, pid: int | None = None) -> int | None:
        """See ProcFs."""
        return self.inode if kind == "pid" else super().namespace(kind, pid)


@pytest.fixture
def machine_id_file(tmp_path: Path) -> Path:
    """A machine-id file as systemd writes it."""
    path = tmp_path / "machine-id"
    path.write_text(MACHINE_ID + "\n")
    return path


def test_the_machine_id_file_counts_in_the_initial_namespace(machine_id_file: Path) -> None:
    found = MachineIdentity.of_this_process(procfs=InNamespace(INITIAL_PID_NAMESPACE), machine_id_file=machine_id_file)
    assert (found.machine_id, found.source) == (MACHINE_ID, MachineIdSource.MACHINE_ID_FILE)
    assert found.scope == f"{MACHINE_ID}/{INITIAL_PID_NAMESPACE}/{found.time_namespace}"


def test_in_a_container_the_boot_id_stands_in(machine_id_file: Path) -> None:
    found = MachineIdentity.of_this_process(procfs=InNamespace(4026532001), machine_id_file=machine_id_file)
    assert (found.machine_id, found.source) == (found.boot_id, MachineIdSource.BOOT_ID)
    assert found.scope == f"{found.boot_id}/4026532001/{found.time_namespace}"


@pytest.mark.parametrize("text", ["", "uninitialized\n", "0" * 32, MACHINE_ID.upper(), MACHINE_ID[:-1], "\xff" * 32])
def test_an_unusable_machine_id_file_does_not_count(tmp_path: Path, text: str) -> None:
    path = tmp_path / "machine-id"
    path.write_text(text, "latin-1")
    found = MachineIdentity.of_this_process(procfs=InNamespace(INITIAL_PID_NAMESPACE), machine_id_file=path)
    assert found.source is MachineIdSource.BOOT_ID


def test_a_configured_machine_id_comes_first(machine_id_file: Path) -> None:
    found = MachineIdentity.of_this_process("rack-7", machine_id_file=machine_id_file)
    assert (found.machine_id, found.source) == ("rack-7", MachineIdSource.CONFIGURED)


@pytest.mark.parametrize("text", ["", "x" * 129, "a/b", "a b", "ä"])
def test_an_unusable_configured_machine_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="machine id"):
        MachineIdentity.of_this_process(text)


def test_the_boot_id_is_the_kernels() -> None:
    assert ProcFs().boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_a_boot_id_that_is_not_from_procfs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.write_text("4543e2ae-101c-49bf-b0d7-605d0636aca0\n")
    with pytest.raises(UnsupportedPlatform, match="mounted over"):
        ProcFs(tmp_path).boot_id()
    assert not ProcFs(tmp_path).is_real()
    with pytest.raises(UnsupportedPlatform, match="boot id"):
        ProcFs(tmp_path / "nowhere").boot_id()


def test_another_file_of_procfs_is_no_boot_id(tmp_path: Path) -> None:
    path = tmp_path / "sys/kernel/random/boot_id"
    path.parent.mkdir(parents=True)
    path.symlink_to("/proc/version")
    with pytest.raises(UnsupportedPlatform, match="boot id"):
        ProcFs(tmp_path).boot_id()


def test_a_process_is_known_by_its_handle_as_long_as_it_lives() -> None:
    machine = MachineIdentity.of_this_process()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        handle = ProcessHandle.of(process.pid, machine)
        assert handle == ProcessHandle.of(process.pid, machine)
        assert (handle.group, handle.boot_id) == (process.pid, machine.boot_id)
        assert handle.pidfd_inode != ProcessHandle.of(os.getpid(), machine).pidfd_inode or not has_pidfd_inodes()
        kill(process.pid)
    with pytest.raises(NoSuchProcess):
        ProcessHandle.of(process.pid, machine)


def test_a_zombie_has_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        wait_until(lambda: state_of(process.pid) == "Z", "it is a zombie")
        stat = ProcFs().stat(process.pid)
        assert stat is not None
        assert not stat.is_alive


def test_a_group_is_gone_only_when_nobody_of_it_lives(tmp_path: Path) -> None:
    machine, procfs = MachineIdentity.of_this_process(), ProcFs()
    os.mkfifo(tmp_path / "fifo")
    script = f"read line < {tmp_path}/fifo & echo begun; read line; exit 0"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as leader:
        assert leader.stdout is not None
        assert leader.stdout.readline() == b"begun\n"
        recorded = ProcessHandle.of(leader.pid, machine).encode()
        assert not group_is_gone(recorded, machine, procfs)
        assert leader.stdin is not None
        leader.stdin.close()
        leader.wait(60)
        assert not group_is_gone(recorded, machine, procfs)
        [survivor] = procfs.living_members(leader.pid)
        (tmp_path / "fifo").write_text("end\n")
        wait_until(lambda: state_of(survivor.pid) in {"Z", None}, "the survivor has ended")
    assert group_is_gone(recorded, machine, procfs)


def test_a_number_that_another_process_has_means_that_the_group_is_gone() -> None:
    machine = MachineIdentity.of_this_process()
    own = ProcessHandle.of(os.getpid(), machine)
    assert group_is_gone(replace(own, start_ticks=own.start_ticks - 1, group=own.pid).encode(), machine, ProcFs())


def test_what_is_of_another_scope_or_boot_or_unreadable_proves_nothing(tmp_path: Path) -> None:
    machine = MachineIdentity.of_this_process()
    ended = replace(ProcessHandle.of(os.getpid(), machine), pid=2**22 + 1, group=2**22 + 1)
    assert group_is_gone(ended.encode(), machine, ProcFs())
    for other in (
        replace(ended, machine_id="another"),
        replace(ended, boot_id="another"),
        replace(ended, pid_namespace=INITIAL_PID_NAMESPACE, machine_id="another"),
        replace(ended, time_namespace=1),
    ):
        assert not group_is_gone(other.encode(), machine, ProcFs())
    assert not group_is_gone(ended.encode(), machine, ProcFs(tmp_path))
    assert not group_is_gone(None, machine, ProcFs())
    assert not group_is_gone("no handle", machine, ProcFs())


def test_doctor_is_told_what_can_be_proven(tmp_path: Path) -> None:
    names = [proof.name for proof in proofs()]
    assert names == [
        *("pidfd", "pidfd inode", "group signals", "procfs", "namespaces", "machine id", "scope"),
        *("after a reboot", "ended containers"),
    ]
    assert all(proof.detail for proof in proofs())
    assert [proof.name for proof in proofs(procfs=ProcFs(tmp_path)) if not proof.ok] == ["procfs", "machine id"]
    assert [proof.name for proof in proofs("a/b") if not proof.ok] == ["machine id"]


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedPlatform, match="needs Linux"):
        MachineIdentity.of_this_process()
    assert [(proof.name, proof.ok) for proof in proofs()] == [("pidfd", False)]


def test_a_kernel_without_pidfds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _flags: int = 0) -> int:
        raise OSError(38, os.strerror(38))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(UnsupportedPlatform, match="pidfds"):
        MachineIdentity.of_this_process()


def test_a_stopped_process_is_alive() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == "T", "it is stopped")
        stat = ProcFs().stat(process.pid)
        assert stat is not None
        assert stat.is_alive
        kill(process.pid)

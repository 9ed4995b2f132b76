"""R8, R11.3: the product's own controller and evidence provider pass the contracts that users' ones must pass."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from process_watch import marked_environment, state_of
from runfacts.domain.cancellation.controllers import StopTarget
from runfacts.domain.lifecycle import AttemptStatus
from runfacts.domain.recovery.evidence import EvidenceTarget
from runfacts.infrastructure.processes.handle import ProcessHandle
from runfacts.infrastructure.processes.keeper_evidence import KeeperEvidence
from runfacts.infrastructure.processes.local_controller import LocalController
from runfacts.infrastructure.processes.local_evidence import LocalEvidence
from runfacts.infrastructure.processes.machine import MachineIdentity, MachineIdSource
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.testing.controller_contract import ControllerContract
from runfacts.testing.evidence_contract import BlindSpot, EvidenceContract
from stop_scene import StopScene


class Hiding(ProcFs):
    """A procfs that shows no other user's process."""

    def hides_processes(self) -> bool:
        """See ProcFs."""
        return True


@dataclass
class Executor:
    """Local processes by their number; the children of this one, reaped as soon as they are looked at."""

    scene: StopScene
    children: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, how: str = "ends") -> ProcessHandle:
        """Start one and give its handle."""
        child = self.scene.start_logging(f"log-{len(self.children)}", how)
        self.children[child.pid] = child
        return self.scene.handle(child)

    def runs(self, pid: int | None) -> bool:
        """Tell whether one runs."""
        assert pid is not None
        return self.children[pid].poll() is None and state_of(pid) not in {"Z", None}

    def end(self, pid: int | None) -> None:
        """End one and reap it."""
        assert pid is not None
        self.children[pid].send_signal(signal.SIGKILL)
        self.children[pid].wait()

    def replaced(self) -> tuple[ProcessHandle, ProcessHandle]:
        """Give the handle of an earlier process with the number of one that runs, and that one's."""
        stranger = self.start()
        return replace(stranger, start_ticks=stranger.start_ticks - 1, pidfd_inode=1), stranger


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    """An executor whose processes all end with the test."""
    with marked_environment() as marked:
        scene = StopScene(tmp_path, MachineIdentity.of_this_process())
        yield Executor(scene)
        marked.end()
        scene.end()


@dataclass
class LocalStops:
    """See ControllerWorkbench."""

    controller: LocalController
    executor: Executor

    def start(self, *, stubborn: bool = False) -> StopTarget:
        """See ControllerWorkbench."""
        return self.executor.scene.target(self.executor.start("stays" if stubborn else "ends"))

    def runs(self, target: StopTarget) -> bool:
        """See ControllerWorkbench."""
        return self.executor.runs(target.pid)

    def end(self, target: StopTarget) -> None:
        """See ControllerWorkbench."""
        self.executor.end(target.pid)

    def replaced(self) -> tuple[StopTarget, StopTarget]:
        """See ControllerWorkbench."""
        record, stranger = self.executor.replaced()
        return self.executor.scene.target(record), self.executor.scene.target(stranger)


class TestLocalController(ControllerContract):
    """The local controller, with the kernel's group flag and without."""

    @pytest.fixture(params=[True, False], ids=["group flag", "member by member"])
    def workbench(self, executor: Executor, request: pytest.FixtureRequest) -> LocalStops:
        """A controller with a short grace."""
        controller = LocalController(executor.scene.machine, grace_ms=200, poll_ms=5, group_signals=request.param)
        return LocalStops(controller, executor)


@dataclass
class LocalLooks:
    """See EvidenceWorkbench."""

    provider: LocalEvidence | KeeperEvidence
    executor: Executor

    def start(self) -> EvidenceTarget:
        """See EvidenceWorkbench."""
        return self._target(self.executor.start())

    def runs(self, target: EvidenceTarget) -> bool:
        """See EvidenceWorkbench."""
        return self.executor.runs(target.pid)

    def end(self, target: EvidenceTarget) -> None:
        """See EvidenceWorkbench."""
        self.executor.end(target.pid)

    def replaced(self) -> tuple[EvidenceTarget, EvidenceTarget]:
        """See EvidenceWorkbench."""
        record, stranger = self.executor.replaced()
        return self._target(record), self._target(stranger)

    def blind_spots(self) -> Sequence[BlindSpot]:
        """See EvidenceWorkbench."""
        machine = self.executor.scene.machine
        ended = self.start()
        self.end(ended)
        handle = ProcessHandle.decode(ended.handle or "")
        elsewhere = replace(handle, pid_namespace=handle.pid_namespace + 1)
        other = replace(handle, machine_id="another")
        root = self.executor.scene.root
        lasting = replace(machine, machine_id="rack-7", source=MachineIdSource.CONFIGURED)
        earlier = replace(handle, machine_id="rack-7", boot_id="00000000-0000-4000-8000-000000000000")
        return (
            BlindSpot("another namespace of this boot", LocalEvidence(replace(machine, pid_namespace=1)), ended),
            BlindSpot("a machine under another id", self.provider, self._target(other)),
            BlindSpot(
                "another boot, without a lasting machine id",
                LocalEvidence(replace(machine, machine_id=machine.boot_id)),
                self._target(replace(elsewhere, boot_id="00000000-0000-4000-8000-000000000000")),
            ),
            BlindSpot("another boot, and heard of since it began", LocalEvidence(lasting), self._target(earlier)),
            BlindSpot(
                "another boot of an id that two machines have",
                LocalEvidence(lasting, machine_is_ambiguous=lambda _: True),
                replace(self._target(earlier), last_seen_at_ms=1),
            ),
            BlindSpot("hidden processes", LocalEvidence(machine, procfs=Hiding()), ended),
            BlindSpot("a directory instead of /proc", LocalEvidence(machine, procfs=ProcFs(root)), ended),
        )

    def _target(self, handle: ProcessHandle) -> EvidenceTarget:
        scene = self.executor.scene
        return EvidenceTarget(
            "run",
            scene.attempt_id,
            AttemptStatus.RUNNING,
            "local",
            handle.scope,
            "w",
            handle.encode(),
            handle.pid,
            1 << 50,
        )


class TestLocalEvidence(EvidenceContract):
    """The local provider, on this boot."""

    @pytest.fixture
    def workbench(self, executor: Executor) -> LocalLooks:
        """The provider of this machine."""
        return LocalLooks(LocalEvidence(executor.scene.machine), executor)

    def test_it_does_prove_the_end_of_what_ran_here(self, workbench: LocalLooks) -> None:
        """More than the contract asks for."""
        target = workbench.start()
        workbench.end(target)
        assert self._ask(workbench.provider, target).liveness == "not_running"


class TestKeeperEvidence(EvidenceContract):
    """The local provider that looks at keepers' locks, too; here their keepers have gone."""

    @pytest.fixture
    def workbench(self, executor: Executor) -> LocalLooks:
        """The provider of this machine, as operators use it."""
        machine, root = executor.scene.machine, executor.scene.root
        provider = KeeperEvidence(LocalEvidence(machine), machine.scope, lambda _: str(root / "none.receipt"))
        return LocalLooks(provider, executor)

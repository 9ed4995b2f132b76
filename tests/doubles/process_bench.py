"""A launcher with its place, for tests of real local processes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from process_watch import DEADLINE_S, Marked
from runfacts.infrastructure.processes.launcher import KeeperSteps, Launcher, LaunchSpec
from runfacts.infrastructure.processes.places import AttemptFiles, Places
from runfacts.infrastructure.processes.receipts import Receipt, read_receipt


@dataclass(frozen=True)
class Bench:
    """A launcher with a directory for logs and receipts."""

    launcher: Launcher
    places: Places
    root: Path
    marked: Marked

    def spec(
        self,
        *argv: str,
        directory: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bool = False,
    ) -> LaunchSpec:
        """Make a launch of a new attempt."""
        attempt_id = str(uuid.uuid4())
        return LaunchSpec(
            run_id=str(uuid.uuid4()),
            attempt_id=attempt_id,
            argv=argv,
            directory=directory or str(self.root),
            files=self.places.of(attempt_id),
            callback_sequence=7,
            callback_token="rft_the-token",
            environment=environment,
            stdin=stdin,
        )

    def ran(self, spec: LaunchSpec) -> Receipt:
        """Run a launch to its end and give its receipt."""
        with self.launcher.prepare(spec) as process:
            assert process.open_gate()
            assert process.wait(DEADLINE_S)
        return self.receipt(spec.files, spec)

    def receipt(self, files: AttemptFiles, spec: LaunchSpec) -> Receipt:
        """Read the receipt of a launch, which must be there."""
        receipt = read_receipt(files.receipt, run_id=spec.run_id, attempt_id=spec.attempt_id)
        assert isinstance(receipt, Receipt)
        return receipt

    def with_steps(self, *stop_at: str, answer_timeout_ms: int = 60_000) -> Bench:
        """Give a bench whose keeper stops itself at these steps."""
        directory = self.root / "steps"
        directory.mkdir(exist_ok=True)
        launcher = Launcher(
            self.launcher.machine,
            gate_timeout_ms=60_000,
            answer_timeout_ms=answer_timeout_ms,
            keeper_steps=KeeperSteps(directory, frozenset(stop_at)),
        )
        return Bench(launcher, self.places, self.root, self.marked)

"""Commands that run under a ledger and whose host is gone: a keeper and a recorded handle, and nobody who looks."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from process_watch import wait_until
from runfacts import Actor, AttemptClaim, Claimed, Ledger, Recorded, Started
from runfacts.domain.cancellation.terms import CancelRequested
from runfacts.infrastructure.processes.collect import EXECUTOR_TYPE
from runfacts.infrastructure.processes.completion import FINAL_SEQUENCE
from runfacts.infrastructure.processes.launcher import COOKIE_ATTEMPT, Launcher, LaunchSpec

ANA = Actor.user("ana")
HOST = Actor.executor("local")
SIGNAL_LOG = Path(__file__).with_name("signal_log.py")
LONG_MS = 600_000

How = Literal["ends", "stays", "hides"]
"""What the command does on SIGTERM; SIGKILL ends it in any case. What hides stays, and its child has no cookie."""


@dataclass(frozen=True)
class LeftCommand:
    """A group of a leader and, where it stays, a child; each writes down every signal that it gets."""

    claim: AttemptClaim
    logs: tuple[Path, ...]

    @property
    def run_id(self) -> str:
        """Its Run."""
        return self.claim.run_id

    def signals(self) -> list[list[str]]:
        """Give what each of its processes got so far."""
        return [log.read_text().splitlines()[1:] for log in self.logs]

    def ask_to_stop(self, ledger: Ledger) -> CancelRequested:
        """Ask the Run to stop, for the first time."""
        answer = ledger.request_cancellation(self.run_id, actor=ANA)
        assert isinstance(answer, CancelRequested)
        return answer


class LeavingHost:
    """Starts commands as the product's own host does, and leaves them."""

    def __init__(self, ledger: Ledger, root: Path) -> None:
        self._ledger = ledger
        self._root = root
        self._launcher = Launcher(ledger.machine(), gate_timeout_ms=60_000, answer_timeout_ms=60_000)
        self._places = ledger.places()
        self._places.make()

    def leave(self, how: How = "ends") -> LeftCommand:
        """Run one command behind its gate, let it go and wait until it notes its signals."""
        ledger = self._ledger
        run_id = ledger.create(actor=ANA, task="left").run.run_id
        ledger.queue(run_id, actor=ANA)
        scope = self._launcher.machine.scope
        claimed = ledger.claim(
            run_id, actor=HOST, executor_type=EXECUTOR_TYPE, gated=True, scope=scope, lease_ms=LONG_MS
        )
        assert isinstance(claimed, Claimed)
        claim = claimed.claim
        files = self._places.of(claim.attempt_id)
        started = ledger.start(claim, actor=HOST, log_path=files.stdout, receipt_path=files.receipt)
        assert isinstance(started, Started)
        argv, logs = self._command(claim.attempt_id, how)
        spec = LaunchSpec(
            run_id=run_id,
            attempt_id=claim.attempt_id,
            argv=argv,
            directory=str(self._root),
            files=files,
            callback_sequence=FINAL_SEQUENCE,
            callback_token=claim.callback_token,
        )
        with self._launcher.prepare(spec) as process:
            recorded = ledger.running(claim, actor=HOST, handle=process.handle.encode(), pid=process.pid)
            assert isinstance(recorded, Recorded)
            assert process.open_gate()
            self._launcher.leave(process)
        wait_until(lambda: all(map(_is_ready, logs)), "the command notes its signals")
        return LeftCommand(claim, logs)

    def _command(self, attempt_id: str, how: How) -> tuple[tuple[str, ...], tuple[Path, ...]]:
        leader, child = (self._root / f"{attempt_id}.{name}" for name in ("leader", "child"))
        note = f"{sys.executable} -I -S {SIGNAL_LOG}"
        us = str(os.getpid())
        if how == "ends":
            return (sys.executable, "-I", "-S", str(SIGNAL_LOG), str(leader), how, us), (leader,)
        hidden = f"env -u {COOKIE_ATTEMPT} " if how == "hides" else ""
        return ("sh", "-c", f"{hidden}{note} {child} stays {us} & exec {note} {leader} stays {us}"), (leader, child)


def _is_ready(log: Path) -> bool:
    return log.exists() and log.read_text().startswith("ready\n")

"""
From a receipt to the end of its Attempt, once (R10.2).

The token in the receipt proves that it belongs to the Attempt, and its sequence makes a second consumption a repeat.
Only when the ledger has answered is the receipt removed, so a crash in between leads to a repeat and never to a loss.
With an intent on the Run the end counts only with proof that no member of the process group lives (R6.5); until then
the receipt stays where it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.answers import AttemptClaim, Finished, LateCallback, Repeated, StopNotProven
from runfacts.domain.outcomes import Outcome
from runfacts.infrastructure.processes.group import group_is_gone
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import AttemptFiles
from runfacts.infrastructure.processes.ports import CompletionLedger
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.infrastructure.processes.receipts import Receipt
from runfacts.infrastructure.steps import NO_STEPS, Steps

FINAL_SEQUENCE: Final = (1 << 31) - 1
"""The sequence of a receipt's callback: the highest there is, because nothing comes after the end (R2.7)."""

_WHY_NOT_EXECUTED: Final = {
    "command:ENOENT": ("command_not_found", "the command was not found"),
    "command:ENOTDIR": ("command_not_found", "the command was not found"),
    "command:EACCES": ("command_not_executable", "the command may not be executed"),
    "command:ENOEXEC": ("command_not_executable", "the command is no program"),
    "command:E2BIG": ("command_too_long", "the command's arguments and environment are too long"),
    "directory:ENOENT": ("directory_unusable", "the working directory is not there"),
}


class Completion:
    """Records what receipts say."""

    def __init__(
        self,
        ledger: CompletionLedger,
        machine: MachineIdentity,
        *,
        procfs: ProcFs | None = None,
        steps: Steps = NO_STEPS,
    ) -> None:
        self._ledger = ledger
        self._machine = machine
        self._procfs = procfs or ProcFs()
        self._steps = steps

    def record(
        self,
        receipt: Receipt,
        files: AttemptFiles,
        *,
        handle: str | None,
        actor: Actor,
        proven_gone: Callable[[], bool] | None = None,
    ) -> Finished | Repeated | LateCallback | StopNotProven:
        """Record the end that a receipt tells of and remove the receipt; it stays when the answer is ``StopNotProven``.

        ``proven_gone`` is asked whether the group is proven gone, where whoever calls has more proofs than a look at
        ``handle`` (R12.3). Errors of the ledger go up, and the receipt stays.
        """
        # The number and the lease's token are no part of a callback: its own token is the proof.
        claim = AttemptClaim(receipt.run_id, receipt.attempt_id, 0, "", receipt.token)
        self._steps.reached("launch:before:finish")
        answer = self._finish(claim, receipt, actor, group_left=receipt.group_left)
        if isinstance(answer, StopNotProven) and (proven_gone() if proven_gone else self.group_is_gone(handle)):
            answer = self._finish(claim, receipt, actor, group_left=False)
        self._steps.reached("launch:after:finish")
        if not isinstance(answer, StopNotProven):
            self._steps.reached("launch:before:receipt-removed")
            for path in (files.receipt, files.lock):
                _remove(path)
            self._steps.reached("launch:after:receipt-removed")
        return answer

    def group_is_gone(self, handle: str | None) -> bool:
        """Tell whether the group of a handle is proven to have no living member."""
        return group_is_gone(handle, self._machine, self._procfs)

    def _finish(
        self, claim: AttemptClaim, receipt: Receipt, actor: Actor, *, group_left: bool
    ) -> Finished | Repeated | LateCallback | StopNotProven:
        return self._ledger.finish(
            claim, outcome_of(receipt), actor=actor, sequence=receipt.sequence, group_left=group_left
        )


def outcome_of(receipt: Receipt) -> Outcome:
    """Give what a receipt reports: exit code 0 is success, everything else failure."""
    if receipt.not_executed is not None:
        code, summary = _WHY_NOT_EXECUTED.get(
            receipt.not_executed,
            ("command_not_executed", f"the command could not be executed ({receipt.not_executed})"),
        )
        return Outcome.failed(
            exit_code=receipt.exit_code, signal=receipt.signal, error_code=code, error_summary=summary
        )
    if receipt.exit_code == 0:
        return Outcome.succeeded(exit_code=0)
    return Outcome.failed(exit_code=receipt.exit_code, signal=receipt.signal)


def _remove(path: str) -> None:
    # Its end is recorded, which counts; whoever looks next finds a repeat and tries to remove it again.
    with suppress(OSError):
        os.unlink(path)

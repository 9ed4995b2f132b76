"""
Collecting receipts whose host is gone (R10.2).

Two looks, one after the other. The first is at the ledger's open executions of this scope, wherever their receipts
lie. The second is at the ledger's own directory: it finds what a host left behind that was killed between recording
the end and removing the receipt. Each receipt is consumed once; one that is malformed, or whose token the ledger does
not accept, is set aside and counted. What cannot even be set aside stays where it is and keeps no other from its turn.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.answers import Finished, LateCallback, Repeated, StopNotProven
from runfacts.domain.errors import (
    Contended,
    DatabaseCorrupt,
    IllegalTransition,
    LegacyRun,
    MalformedId,
    NotFound,
    TokenRefused,
    UnknownFactsInRun,
)
from runfacts.domain.ids import canonical_id
from runfacts.infrastructure.processes.completion import Completion
from runfacts.infrastructure.processes.machine import MachineIdentity
from runfacts.infrastructure.processes.places import RECEIPT_SUFFIX, UNFINISHED_SUFFIX, AttemptFiles, Places
from runfacts.infrastructure.processes.ports import CollectingLedger
from runfacts.infrastructure.processes.procfs import ProcFs
from runfacts.infrastructure.processes.receipts import Unbelievable, keeper_lock_held, quarantine, read_receipt
from runfacts.infrastructure.steps import NO_STEPS, Steps

EXECUTOR_TYPE: Final = "local"
"""The executor type of the product's own executor."""


@dataclass(frozen=True, slots=True)
class CollectedReceipts:
    """How many receipts were found, and what became of them."""

    found: int = 0
    recorded: int = 0
    """Ended an Attempt."""
    repeated: int = 0
    """Had been recorded before."""
    late: int = 0
    """Came after the Attempt had ended otherwise; noted."""
    quarantined: int = 0
    """Could not be believed; set aside."""
    kept: int = 0
    """Stay where they are for a later look."""

    def __add__(self, other: CollectedReceipts) -> CollectedReceipts:
        """Count both."""
        return CollectedReceipts(
            self.found + other.found,
            self.recorded + other.recorded,
            self.repeated + other.repeated,
            self.late + other.late,
            self.quarantined + other.quarantined,
            self.kept + other.kept,
        )


def collect_receipts(
    ledger: CollectingLedger,
    *,
    machine: MachineIdentity,
    places: Places,
    actor: Actor,
    procfs: ProcFs | None = None,
    steps: Steps = NO_STEPS,
) -> CollectedReceipts:
    """Record the end of every Attempt of this scope that left a receipt. Errors of the database go up."""
    completion = Completion(ledger, machine, procfs=procfs, steps=steps)
    counted = CollectedReceipts()
    seen: set[str] = set()
    cursor: str | None = None
    while True:
        page = ledger.open_executions(EXECUTOR_TYPE, machine.scope, after=cursor)
        for execution in page.items:
            if execution.receipt_path is not None:
                files = AttemptFiles.beside(execution.receipt_path)
                seen.add(files.receipt)
                counted += _collect(
                    completion, files, execution.attempt_id, actor, run_id=execution.run_id, handle=execution.handle
                )
        cursor = page.next
        if cursor is None:
            break
    for path in places.receipts():
        if path not in seen:
            name = os.path.basename(path).removesuffix(RECEIPT_SUFFIX)
            try:
                attempt_id = canonical_id("attempt id", name)
            except MalformedId:
                counted += _set_aside(path, "its name is no attempt's id")
            else:
                counted += _collect(completion, AttemptFiles.beside(path), attempt_id, actor)
    _clear_after_killed_keepers(places)
    return counted


def _clear_after_killed_keepers(places: Places) -> None:
    """Take away what keepers made room with that were killed before they published."""
    for path in places.unfinished_receipts():
        files = AttemptFiles.beside(path.removesuffix(UNFINISHED_SUFFIX) + RECEIPT_SUFFIX)
        # What is no keeper's cannot be told from its lock, or not be taken away: it costs its room and nothing else.
        with suppress(OSError):
            # A keeper takes its lock before it makes this file: without the lock nobody will ever finish it.
            if not keeper_lock_held(files.lock):
                for left in (path, files.lock):
                    with suppress(FileNotFoundError):
                        os.unlink(left)


def _set_aside(path: str, reason: str) -> CollectedReceipts:
    try:
        quarantine(path, reason)
    except OSError:
        return CollectedReceipts(found=1, kept=1)
    return CollectedReceipts(found=1, quarantined=1)


def _collect(
    completion: Completion,
    files: AttemptFiles,
    attempt_id: str,
    actor: Actor,
    *,
    run_id: str | None = None,
    handle: str | None = None,
) -> CollectedReceipts:
    try:
        receipt = read_receipt(files.receipt, run_id=run_id, attempt_id=attempt_id)
    except OSError:
        return CollectedReceipts(found=1, kept=1)
    if receipt is None:
        return CollectedReceipts()
    if isinstance(receipt, Unbelievable):
        return CollectedReceipts(found=1, quarantined=1)
    try:
        answer = completion.record(receipt, files, handle=handle, actor=actor)
    except (NotFound, TokenRefused, MalformedId, IllegalTransition) as error:
        return _set_aside(files.receipt, str(error))
    except (Contended, LegacyRun, UnknownFactsInRun, DatabaseCorrupt):
        # Not now, or not by this release, or not before what is recorded of this Run is mended: a later look may.
        return CollectedReceipts(found=1, kept=1)
    match answer:
        case Finished():
            return CollectedReceipts(found=1, recorded=1)
        case Repeated():
            return CollectedReceipts(found=1, repeated=1)
        case LateCallback():
            return CollectedReceipts(found=1, late=1)
        case StopNotProven():
            return CollectedReceipts(found=1, kept=1)

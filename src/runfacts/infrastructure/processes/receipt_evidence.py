"""
Looking for a receipt, probing, and looking again under the keeper's lock (R10.2).

::

    receipt? ─> probe ─> lock? ─> receipt?

A command that ends between the first look and the probe leaves a receipt a moment later, and must never be called
lost. So "not running" counts only while the keeper's lock is in our hands, which says that no keeper is about to
publish, and with no receipt there. A lock that a keeper holds means that its command is not over.

The lock is shared by those who look: they keep a keeper out for a moment, and never one another. A lock that is not
there was taken away with its receipt, or by a keeper whose command never ran. But where its whole directory is not
there, this process looks elsewhere than the keeper did, or somebody took the receipts away: nothing is proven then.
Only a reboot explains it, after which a directory in memory is gone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from runfacts.domain.errors import UnsupportedPlatform
from runfacts.domain.recovery.evidence import Evidence, EvidenceTarget, Liveness, Unknown
from runfacts.infrastructure.processes.handle import InvalidHandle, ProcessHandle
from runfacts.infrastructure.processes.places import AttemptFiles
from runfacts.infrastructure.processes.procfs import ProcFs, raise_want
from runfacts.infrastructure.processes.receipts import Receipt, Unbelievable, read_receipt


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found of one Attempt."""

    evidence: Evidence
    """Whether anything of it runs; beside a receipt, whether anything of the command's group is left (R6.5)."""
    receipt: Receipt | None = None
    """How the command ended, where it left a receipt."""
    quarantined: tuple[Unbelievable, ...] = ()
    """Receipts that could not be believed and were set aside."""


class KeeperLock(Enum):
    """What became of an attempt to take a keeper's lock."""

    TAKEN = "taken"
    HELD = "held"
    """By a keeper."""
    ABSENT = "absent"
    UNREADABLE = "unreadable"


@contextmanager
def keeper_lock(path: str) -> Iterator[KeeperLock]:
    """Try to take a keeper's lock for the length of the block, without waiting (``OSError``: not just now)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield KeeperLock.ABSENT
        return
    except OSError as error:
        raise_want(error)
        yield KeeperLock.UNREADABLE
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            answer = KeeperLock.HELD
        else:
            answer = KeeperLock.TAKEN
        yield answer
    finally:
        os.close(descriptor)


def inspect_with_receipt(probe: Callable[[], Evidence], target: EvidenceTarget, receipt_path: str) -> Inspection:
    """Say what is known of an Attempt; ``probe`` asks its provider, once or twice. Errors of the disk go up."""
    files = AttemptFiles.beside(receipt_path)
    first = find_receipt(files, target)
    evidence = probe()
    if isinstance(first, Receipt):
        return Inspection(evidence, first)
    with keeper_lock(files.lock) as lock:
        second = find_receipt(files, target)
    aside = tuple(found for found in (first, second) if isinstance(found, Unbelievable))
    if isinstance(second, Receipt):
        # Probed before the receipt was there: of what was running then, nothing is known now.
        if evidence.liveness is not Liveness.NOT_RUNNING:
            evidence = probe()
        return Inspection(evidence, second, aside)
    return Inspection(weighed(evidence, lock, files, target), None, aside)


def weighed(evidence: Evidence, lock: KeeperLock, files: AttemptFiles, target: EvidenceTarget) -> Evidence:
    """Say what evidence is worth beside the keeper's lock, where there is no receipt."""
    if lock is KeeperLock.HELD:
        return Evidence.running()
    if evidence.liveness is Liveness.NOT_RUNNING and (
        lock is KeeperLock.UNREADABLE or (lock is KeeperLock.ABSENT and _is_elsewhere(files, target))
    ):
        return Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE)
    return evidence


def _is_elsewhere(files: AttemptFiles, target: EvidenceTarget) -> bool:
    """Whether the directory is not to be seen in which the keeper of this boot works."""
    try:
        os.stat(os.path.dirname(files.lock))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise_want(error)
    else:
        return False
    try:
        return target.handle is None or ProcessHandle.decode(target.handle).boot_id == ProcFs().boot_id()
    except (InvalidHandle, UnsupportedPlatform):
        return True


def find_receipt(files: AttemptFiles, target: EvidenceTarget) -> Receipt | Unbelievable | None:
    """Look for the receipt of an Attempt; one that cannot be believed is set aside (``OSError``: not just now)."""
    return read_receipt(files.receipt, run_id=target.run_id, attempt_id=target.attempt_id)

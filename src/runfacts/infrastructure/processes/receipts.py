"""
Receipts: what a keeper leaves when its command has ended (R10.2).

A receipt is read with suspicion. It must be a regular file of ours, at most 4,096 bytes, hold exactly the known
fields, and name the run and the attempt that it is read for. Everything else is set aside under another name, where
an operator finds it, and reported: it is never half believed, and never met again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from runfacts.domain.limits import RECEIPT_MAX

QUARANTINED_SUFFIX: Final = ".quarantined"
"""What is appended to the name of a receipt that cannot be believed."""

# A link, a socket, somebody else's: what no keeper of this user leaves, however often it is looked at.
_OF_NO_RECEIPT: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM})

_Moment = Annotated[int, Field(ge=0, lt=1 << 53)]


class Receipt(BaseModel):
    """How a command ended. Field names are stored in files that outlive a release: rename none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: Annotated[int, Field(ge=1, le=1)]
    run_id: Annotated[str, Field(max_length=36)]
    attempt_id: Annotated[str, Field(max_length=36)]
    sequence: Annotated[int, Field(ge=1, lt=1 << 31)]
    """The callback's sequence, given at the launch (R2.7)."""
    token: Annotated[str, Field(max_length=256, repr=False)]
    """The callback's token: what makes the receipt a proof."""
    started_at_ms: _Moment
    ended_at_ms: _Moment
    exit_code: Annotated[int, Field(ge=0, le=255)] | None
    signal: Annotated[int, Field(ge=1, le=64)] | None
    """The signal that ended the command; without one, ``exit_code`` stands."""
    not_executed: Annotated[str, Field(max_length=64)] | None
    """Why the command could not be executed, as ``command:ENOENT``; the exit code is then the keeper's."""
    group_left: bool
    """Whether another member of the command's group was alive at its end (R6.5)."""

    @model_validator(mode="after")
    def _ended_one_way(self) -> Receipt:
        if (self.exit_code is None) == (self.signal is None):
            raise ValueError("either an exit code or a signal")
        return self


@dataclass(frozen=True, slots=True)
class Unbelievable:
    """A receipt was there and was set aside."""

    path: str
    """Where it lies now."""
    reason: str


def read_receipt(path: str, *, run_id: str | None = None, attempt_id: str) -> Receipt | Unbelievable | None:
    """Read the receipt of an attempt; ``None`` when there is none. One that cannot be believed is quarantined.

    Without ``run_id`` any run is believed; the token still has to fit. One that cannot be read just now, for want of
    descriptors or memory or because the disk fails, stays where it is (``OSError``).
    """
    try:
        text = _read_ours(path)
    except FileNotFoundError:
        return None
    except _NotOurs as error:
        return quarantine(path, str(error))
    try:
        receipt = Receipt.model_validate_json(text)
    except ValidationError:
        return quarantine(path, "it is malformed")
    if receipt.attempt_id != attempt_id or (run_id is not None and receipt.run_id != run_id):
        return quarantine(path, "it is of another attempt")
    return receipt


def quarantine(path: str, reason: str) -> Unbelievable:
    """Set a receipt aside under another name (``OSError`` when that cannot be done)."""
    aside = path + QUARANTINED_SUFFIX
    with suppress(FileNotFoundError):  # somebody else was faster
        os.rename(path, aside)
    return Unbelievable(aside, reason)


def keeper_lock_held(path: str) -> bool:
    """Tell whether a keeper holds the lock at ``path``, that is whether it will still publish a receipt (R10.2).

    Raises ``OSError`` where that cannot be told: it is somebody else's, or descriptors are out.
    """
    try:
        # Neither follows a link nor waits for a pipe's writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class _NotOurs(Exception):
    """What lies there is no receipt that a keeper of this directory's user wrote."""


def _read_ours(path: str) -> bytes:
    try:
        # Neither follows a link nor waits for a pipe's writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _OF_NO_RECEIPT:
            raise _NotOurs("it cannot be read") from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _NotOurs("it is no regular file")
        # The keeper's user owns the directory, too. Not "this process's user": root may look after others' receipts.
        if found.st_uid != os.stat(os.path.dirname(path)).st_uid:
            raise _NotOurs("it belongs to another user")
        text = os.read(descriptor, RECEIPT_MAX + 1)
        if len(text) > RECEIPT_MAX:
            raise _NotOurs("it is too long")
        return text
    finally:
        os.close(descriptor)

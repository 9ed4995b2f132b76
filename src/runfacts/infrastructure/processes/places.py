"""
Where the files of local attempts live: logs, locks and receipts (R10.2, R10.5).

A SQLite ledger has its directory beside the file (``ledger.db.runs/``), so that moving one without the other is hard
to do by accident. For a ledger on a server it is in the user's state directory, under a digest of what names the
ledger. Directories are 0700 and ours, files 0600: a receipt holds the token with which its attempt ends.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from runfacts.domain.errors import RunfactsError
from runfacts.domain.ids import canonical_id

RECEIPT_SUFFIX: Final = ".receipt"
"""How the name of a receipt ends; the attempt's id is in front."""
UNFINISHED_SUFFIX: Final = f"{RECEIPT_SUFFIX}.new"
"""How the name of a receipt ends that its keeper has not published yet."""


class UnsafePlace(RunfactsError):
    """The directory for logs and receipts cannot be made, or is not only ours."""

    def __init__(self, directory: str, reason: str) -> None:
        """Name the directory and what is wrong with it."""
        self.directory = directory
        self.reason = reason
        super().__init__(f"the directory {directory} for logs and receipts {reason}")


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    """The files of one attempt, as absolute paths."""

    stdout: str
    stderr: str
    receipt: str
    lock: str

    @classmethod
    def beside(cls, receipt: str) -> AttemptFiles:
        """The files that belong to a receipt's path."""
        stem = receipt.removesuffix(RECEIPT_SUFFIX)
        return cls(stdout=f"{stem}.out", stderr=f"{stem}.err", receipt=receipt, lock=f"{stem}.lock")


@dataclass(frozen=True, slots=True)
class Places:
    """The directory of one ledger's attempts."""

    directory: str

    @classmethod
    def beside_file(cls, file: str | os.PathLike[str]) -> Places:
        """The place of a SQLite ledger: ``<file>.runs`` beside it."""
        return cls(os.path.realpath(file) + ".runs")

    @classmethod
    def in_state_directory(cls, ledger: str, environment: Mapping[str, str] | None = None) -> Places:
        """The place of a ledger on a server; ``ledger`` is any text that always names it, without secrets."""
        name = sha256(ledger.encode()).hexdigest()[:32]
        return cls(os.path.join(state_directory(os.environ if environment is None else environment), "runs", name))

    def make(self) -> None:
        """Make the directory, 0700, or check that it is ours alone (``UnsafePlace``)."""
        try:
            os.makedirs(os.path.dirname(self.directory), mode=0o700, exist_ok=True)
            with suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
            found = os.lstat(self.directory)
            if not stat.S_ISDIR(found.st_mode):
                raise UnsafePlace(self.directory, "is something else")
            if found.st_uid != os.geteuid():
                raise UnsafePlace(self.directory, "belongs to another user")
            if stat.S_IMODE(found.st_mode) != 0o700:  # noqa: PLR2004 - rwx------
                os.chmod(self.directory, 0o700)
        except OSError as error:
            raise UnsafePlace(self.directory, f"cannot be made: {error.strerror}") from error

    def of(self, attempt_id: str) -> AttemptFiles:
        """The files of an attempt (``MalformedId``)."""
        name = canonical_id("attempt id", attempt_id)
        return AttemptFiles.beside(os.path.join(self.directory, name + RECEIPT_SUFFIX))

    def receipts(self) -> Iterator[str]:
        """The paths of all receipts that lie here, oldest id first; nothing when there is no directory."""
        return self._ending_with(RECEIPT_SUFFIX)

    def unfinished_receipts(self) -> Iterator[str]:
        """The paths of what keepers made room with and have not published, or never will."""
        return self._ending_with(UNFINISHED_SUFFIX)

    def _ending_with(self, suffix: str) -> Iterator[str]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return
        for name in sorted(names):
            if name.endswith(suffix):
                yield os.path.join(self.directory, name)


def state_directory(environment: Mapping[str, str]) -> str:
    """Give the user's state directory for this product (XDG base directories)."""
    configured = environment.get("XDG_STATE_HOME", "")
    # A relative one is to be ignored, says the standard.
    base = configured if os.path.isabs(configured) else str(Path.home() / ".local/state")
    return os.path.join(base, "runfacts")

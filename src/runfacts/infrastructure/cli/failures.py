"""
From an error to its stable code and exit code: one table (``error.code`` is API).

A code stands for one exit code everywhere, but in ``exec``, whose failures all end with 125 because every other code
belongs to the command that it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import click

from runfacts.domain import errors

if TYPE_CHECKING:
    from runfacts.domain.archives import NotImported
    from runfacts.domain.cancellation.supervisor import Diagnostic

REFUSED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
DATABASE: Final = 5
SCHEMA: Final = 6
EXEC_FAILED: Final = 125
"""What ``exec`` ends with when it is ``runfacts`` that failed, not the command."""


class WaitTimeout(errors.RunfactsError):
    """A Run has not ended within the time that somebody wanted to wait for it."""

    def __init__(self, run_id: str, status: str) -> None:
        """Name the Run and where it stands."""
        super().__init__(f"run {run_id} has not ended in time; it is {status}")


class ImportRefused(errors.RunfactsError):
    """Runs of an archive were not taken in (R14.2)."""

    def __init__(self, first: NotImported, refused: int) -> None:
        """Name the first of them, and say how many there are."""
        what = "a line" if first.run_id is None else f"run {first.run_id}"
        more = f"; {refused - 1} more refused" if refused > 1 else ""
        super().__init__(f"{what} was refused at line {first.line}: {first.reason}{more}")


class WorkerTrouble(errors.RunfactsError):
    """The database was in a worker's way; ``kind`` is the error that says how."""

    def __init__(self, kind: type[errors.DatabaseError], diagnostic: Diagnostic) -> None:
        """Name the part of the cycle and what its error said."""
        self.kind = kind
        super().__init__(f"not all was done: {diagnostic.part} failed: {diagnostic.detail or diagnostic.error}")


class ReasonRequired(click.UsageError):
    """An operator's verb has no reason (R13.2)."""

    def __init__(self) -> None:
        """Say so."""
        super().__init__("An operator's verb needs a reason: --because TEXT")


class VersionRequired(click.UsageError):
    """An operator's verb does not name the version that was looked at (R13.2)."""

    def __init__(self, where: str) -> None:
        """Say ``where`` the version stands."""
        super().__init__(f"An operator's verb needs the version that you have seen: --version N, from {where}")


CODES: Final[Mapping[type[BaseException], tuple[str, int]]] = MappingProxyType(
    {
        click.ClickException: ("usage", USAGE),
        ReasonRequired: ("reason_required", USAGE),
        VersionRequired: ("version_required", USAGE),
        errors.InvalidInput: ("usage", USAGE),
        errors.InvalidSetting: ("invalid_setting", USAGE),
        errors.NotFound: ("not_found", NOT_FOUND),
        errors.RunVersionConflict: ("version_conflict", CONFLICT),
        errors.DispatchVersionConflict: ("version_conflict", CONFLICT),
        errors.RecoveryVersionConflict: ("version_conflict", CONFLICT),
        errors.IdempotencyConflict: ("idempotency_conflict", CONFLICT),
        errors.DedupeConflict: ("idempotency_conflict", CONFLICT),
        errors.Contended: ("busy", DATABASE),
        errors.IllegalTransition: ("illegal_transition", REFUSED),
        errors.NotAllowed: ("not_allowed", REFUSED),
        errors.StillRunning: ("still_running", REFUSED),
        errors.LegacyRun: ("legacy_run", REFUSED),
        errors.UnsupportedPlatform: ("unsupported_platform", REFUSED),
        errors.DatabaseError: ("database_unreachable", DATABASE),
        errors.DatabaseReadOnly: ("database_read_only", DATABASE),
        # Nothing can be written there now, whatever the reason; the message says which.
        errors.DatabaseFull: ("database_read_only", DATABASE),
        errors.DatabaseBusy: ("busy", DATABASE),
        errors.ForeignMachine: ("foreign_machine", DATABASE),
        errors.SchemaTooOld: ("schema_too_old", SCHEMA),
        errors.SchemaTooNew: ("schema_too_new", SCHEMA),
        WaitTimeout: ("wait_timeout", REFUSED),
        ImportRefused: ("import_refused", REFUSED),
        errors.RunfactsError: ("not_allowed", REFUSED),
        BaseException: ("internal", REFUSED),
    }
)
"""Code and exit code of every kind of error; the closest ancestor of a type counts."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What a user hears of an error."""

    code: str
    exit_code: int
    message: str
    """One line."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Look an error up in the table."""
        told = error.kind if isinstance(error, WorkerTrouble) else type(error)
        code, exit_code = next(CODES[kind] for kind in told.__mro__ if kind in CODES)
        return cls(code, exit_code, " ".join(_words(error).split()))


def _words(error: BaseException) -> str:
    match error:
        case click.UsageError():
            words = error.format_message().rstrip(".")
            where = "runfacts" if error.ctx is None else error.ctx.command_path
            return f"{words} (see `{where} --help`)"
        case click.ClickException():
            return error.format_message()
        case errors.RunfactsError():
            return str(error)
        case ModuleNotFoundError(name="click" | "rich"):
            return "the command needs its extra: pip install 'runfacts[cli]'"
        case OSError():
            return f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}"
        case _:
            return f"this is a defect of runfacts ({type(error).__name__}); --debug shows where it is"

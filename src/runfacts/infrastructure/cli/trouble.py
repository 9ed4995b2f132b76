"""
What went wrong in a single cycle, for the exit code: a worker that goes on only logs it (R9.3).

A part that fails ends no cycle, so its error is gone when the cycle ends. Whoever ran just one has to hear of a
database that cannot be reached or written as from any other command: by the exit code for that.
"""

from __future__ import annotations

from runfacts.domain import errors
from runfacts.domain.cancellation.supervisor import Diagnostic
from runfacts.infrastructure.cli.failures import WorkerTrouble
from runfacts.infrastructure.supervision import log_diagnostic


class Troubles:
    """Logs what a worker tells of, and keeps the first trouble with the database."""

    def __init__(self) -> None:
        """Nothing has been told."""
        self._first: WorkerTrouble | None = None

    def __call__(self, diagnostic: Diagnostic) -> None:
        """Be told of one failure."""
        log_diagnostic(diagnostic)
        kind = getattr(errors, diagnostic.error, None)
        # What is corrupt may be one run's; the others go on.
        if isinstance(kind, type) and issubclass(kind, errors.DatabaseError) and kind is not errors.DatabaseCorrupt:
            self._first = self._first or WorkerTrouble(kind, diagnostic)

    def raise_the_first(self) -> None:
        """Raise the trouble with the database, where there was one (``WorkerTrouble``)."""
        if self._first is not None:
            raise self._first

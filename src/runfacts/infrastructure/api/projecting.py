"""
Projections: views made of facts, brought up to date, read and rebuilt (R1.4, R14.1).

Whoever reads a view brings it up to date first, for as long as ``catch_up_ms`` at most, and is told how far behind it
still is. Supervisors do the same over and over, so that there is little left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from runfacts.domain.errors import (
    DatabaseBusy,
    DatabaseFull,
    DatabaseReadOnly,
    ForeignMachine,
    InvalidCursor,
    InvalidValue,
    ReaderRefused,
)
from runfacts.domain.limits import TIME_MAX
from runfacts.domain.projecting import (
    Grouping,
    Projected,
    ProjectionHealth,
    ProjectionName,
    Rebuilt,
    Retried,
    SetAsideFact,
    Statistics,
    StopProofs,
)
from runfacts.domain.views import Page
from runfacts.infrastructure.api.reads import Reads
from runfacts.infrastructure.stores.projection_reports import (
    all_are_up_to_date,
    read_projection_health,
    read_projection_lag,
    read_set_aside,
    read_statistics,
    read_stop_proofs,
)
from runfacts.infrastructure.stores.projector import Projector, Stopping, never

_CANNOT_NOW: Final = (DatabaseBusy, DatabaseReadOnly, DatabaseFull, ForeignMachine, ReaderRefused)
"""Why a view stays as it is, while it can still be read."""
_POSITION_DIGITS: Final = 18


class Projecting(Reads):
    """Project facts, and read what has become of them."""

    def statistics(self, *, by: Grouping | str = Grouping.DAY, since_ms: int = 0) -> Statistics:
        """Give outcomes, lengths of time and retries by day (UTC), project or task, and how far they are behind.

        Whole days count: from the one on in which ``since_ms`` lies.
        """
        try:
            grouping = Grouping(by)
        except ValueError:
            raise InvalidValue("by", f"is none of {', '.join(Grouping)}") from None
        _check_moment(since_ms)
        self._catch_up((ProjectionName.STATISTICS,))
        with self._database.reading() as reading:
            lag = read_projection_lag(reading, ProjectionName.STATISTICS)
            return Statistics(read_statistics(reading, grouping, since_ms), lag)

    def stop_proofs(
        self, *, since_ms: int = 0, unfinished: bool = False, limit: int | None = None, after: str | None = None
    ) -> StopProofs:
        """Give a page of the stop-proof report: requests to stop, oldest first, and what became of each.

        ``unfinished`` leaves out Runs that have ended; ``after`` is the cursor that the page before gave as ``next``.
        """
        _check_moment(since_ms)
        self._catch_up((ProjectionName.STOP_PROOF,))
        with self._database.reading() as reading:
            lag = read_projection_lag(reading, ProjectionName.STOP_PROOF)
            items, following = read_stop_proofs(
                reading, since_ms=since_ms, unfinished=unfinished, limit=self._page(limit), after=after
            )
        return StopProofs(items, following, lag)

    def projections(self) -> tuple[ProjectionHealth, ...]:
        """Say how each projection stands, as it is: nothing is brought up to date."""
        with self._database.reading() as reading:
            return tuple(read_projection_health(reading, name) for name in ProjectionName)

    def project(self, stopping: Stopping = never) -> Mapping[ProjectionName, Projected]:
        """Bring every projection up to date; ``stopping`` ends it between two pages.

        Raises ``CheckpointLost`` where the database is not the one that a view was made from: rebuild it then.
        """
        with self._database.reading() as reading:
            if all_are_up_to_date(reading):
                return {name: Projected() for name in ProjectionName}
        found = {name: self._projector(name).catch_up(stopping) for name in ProjectionName}
        for name in ProjectionName:
            self._projector(name).sweep()
        return found

    def rebuild(self, projection: ProjectionName | str, *, progress: Callable[[int], None] | None = None) -> Rebuilt:
        """Make a projection anew beside the live one while others write and read, then put it in its place.

        ``progress`` is told how many facts were taken in. Of two rebuilds at once the later one goes on; the earlier
        one is told so (``RebuildOvertaken``).
        """
        return self._projector(_named(projection)).rebuild(progress)

    def set_aside(
        self, projection: ProjectionName | str, *, limit: int | None = None, after: str | None = None
    ) -> Page[SetAsideFact]:
        """Give a page of the facts that a projection has set aside, by position."""
        if after is not None and not (after.isascii() and after.isdigit() and len(after) <= _POSITION_DIGITS):
            raise InvalidCursor
        with self._database.reading() as reading:
            items, following = read_set_aside(
                reading, _named(projection), limit=self._page(limit), after=int(after or 0)
            )
        return Page(items, None if following is None else str(following))

    def retry_set_aside(self, projection: ProjectionName | str) -> Retried:
        """Try again what a projection has set aside, each Run's facts in order."""
        return self._projector(_named(projection)).retry()

    def _catch_up(self, names: Iterable[ProjectionName]) -> None:
        if not self._settings.catch_up_ms:
            return
        deadline_s = time.monotonic() + self._settings.catch_up_ms / 1_000
        for name in names:
            try:
                self._projector(name).catch_up(lambda: time.monotonic() >= deadline_s)
            except _CANNOT_NOW:
                # The answer says how far behind it is.
                continue

    def _projector(self, name: ProjectionName) -> Projector:
        return Projector(self._database, self._ordered, name)


def _named(projection: ProjectionName | str) -> ProjectionName:
    try:
        return ProjectionName(projection)
    except ValueError:
        raise InvalidValue("projection", f"is none of {', '.join(ProjectionName)}") from None


def _check_moment(since_ms: int) -> None:
    if type(since_ms) is not int or not -TIME_MAX < since_ms < TIME_MAX:
        raise InvalidValue("since_ms", "is no moment in milliseconds")

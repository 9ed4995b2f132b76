"""Recovery of Runs whose owner vanished: the ledger as ``RecoveryClaims`` (R11, R12)."""

from __future__ import annotations

from runfacts.domain.limits import Settings
from runfacts.domain.measures import NO_MEASURES, Measures
from runfacts.infrastructure.api.recovery_pages import RecoveryPages, Walks, WallClock
from runfacts.infrastructure.api.recovery_settle import RecoverySettle, SweepPlace
from runfacts.infrastructure.database.connections import Database


class Recovery(RecoveryPages, RecoverySettle):
    """Claim what nobody looks after, record what is found out, and end the claims."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        machine_id: str | None = None,
        measures: Measures = NO_MEASURES,
    ) -> None:
        """Begin every walk and the sweep at the beginning."""
        super().__init__(database, settings, machine_id, measures)
        self._walks = Walks()
        self._wall = WallClock()
        self._sweep = SweepPlace()

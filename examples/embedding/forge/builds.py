"""What Forge records itself: builds, as aggregates of ``eventsourcing``, in its own table of events."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import InfrastructureFactory
from eventsourcing.utils import Environment

from runfacts import Ledger
from runfacts.infrastructure.persistence import LedgerFactory


class Build(Aggregate):
    """One revision of one repository, to be built."""

    @event("Requested")
    def __init__(self, repository: str, revision: str) -> None:
        self.repository = repository
        self.revision = revision
        self.run_id: str | None = None
        self.artifact: str | None = None

    @event("Scheduled")
    def schedule(self, run_id: str) -> None:
        """Say which Run of the ledger builds it."""
        self.run_id = run_id

    @event("Published")
    def publish(self, artifact: str) -> None:
        """Say what came of it."""
        self.artifact = artifact


class Builds(Application[UUID]):
    """All builds: the table ``builds_events``, through the connections of a ledger that is open."""

    name = "builds"

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger  # first: the constructor below asks for the factory
        super().__init__()

    def construct_factory(self, env: Environment) -> InfrastructureFactory[Any]:
        """Share the ledger's connections instead of opening others."""
        return LedgerFactory(env, self._ledger.database)

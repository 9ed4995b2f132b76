"""
What Forge does: each thing it does is one transaction over its own tables, its own events and the ledger's facts.

A push is dealt with in a SQLAlchemy ``Session``, the end of a build on a ``Connection``. In both, ``connection=`` is
all that the ledger and the application need to be told.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import sessionmaker

from forge.builds import Build, Builds
from forge.deliveries import Delivery, Tables
from runfacts import Actor, AttemptClaim, Claimed, Finished, Ledger, Outcome, Started

PROJECT: Final = "forge"
WEBHOOK: Final = Actor.system("webhook")


class DeliveredBefore(Exception):
    """The push was dealt with already; nothing was written."""


class BuildFailed(Exception):
    """Raised by whoever builds, with the exit code of what went wrong."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code = exit_code


class Forge:
    """The platform on one database. Close it, or use it as a context manager."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger.open(url)
        # The ledger's own engine begins transactions in the way that both databases want. One of your own does as well.
        engine = self.ledger.database.engine
        Tables.metadata.create_all(engine)
        self.sessions = sessionmaker(engine)
        self.builds = Builds(self.ledger)

    def push(self, delivery_id: str, repository: str, revision: str) -> Build:
        """Deal with a push: its build, the build's Run and the delivery, or none of them (``DeliveredBefore``)."""
        build = Build(repository, revision)
        try:
            with self.sessions.begin() as session:
                # The ORM writes this at the commit. It fails there, after everything else, if there is one already.
                session.add(Delivery(delivery_id=delivery_id, build_id=str(build.id)))
                run = self.ledger.create(
                    actor=WEBHOOK,
                    task=f"build {repository} {revision}",
                    project=PROJECT,
                    correlation_id=str(build.id),
                    connection=session,
                ).run
                self.ledger.queue(run.run_id, actor=WEBHOOK, connection=session)
                build.schedule(run.run_id)
                self.builds.save(build, connection=session)
        except IntegrityError as error:
            raise DeliveredBefore(delivery_id) from error
        return build

    def work(self, build_id: UUID, worker: str, make: Callable[[Build], str]) -> bool:
        """Make a build, and say whether this worker's report ended it: of any number of workers one's does."""
        build: Build = self.builds.repository.get(build_id)
        if build.run_id is None:
            return False
        actor = Actor.worker(worker)
        claimed = self.ledger.claim(build.run_id, actor=actor, executor_type=PROJECT)
        if not isinstance(claimed, Claimed) or not isinstance(self.ledger.start(claimed.claim, actor=actor), Started):
            return False
        self.ledger.running(claimed.claim, actor=actor)
        try:
            # What takes long renews its lease meanwhile: Ledger.renew.
            artifact = make(build)
        except BuildFailed as failure:
            answer = self.ledger.finish(claimed.claim, Outcome.failed(exit_code=failure.exit_code), actor=actor)
            return isinstance(answer, Finished)
        return self.publish(build, artifact, claimed.claim, actor)

    def publish(self, build: Build, artifact: str, claim: AttemptClaim, actor: Actor) -> bool:
        """Record an artifact together with the end of its Run; a report that comes too late publishes nothing."""
        with self.ledger.database.engine.begin() as connection:
            answer = self.ledger.finish(claim, Outcome.succeeded(exit_code=0), actor=actor, connection=connection)
            if isinstance(answer, Finished):
                build.publish(artifact)
                self.builds.save(build, connection=connection)
        return isinstance(answer, Finished)

    def close(self) -> None:
        """Give the connections back."""
        self.builds.close()
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

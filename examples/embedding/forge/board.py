"""
What Forge makes of the ledger's facts: a board of all builds, and a notice for each one that failed.

Both are tables of Forge. What a fact changes in them is committed together with the fact's position, so each fact
counts once, whatever happens to the process that follows: after a crash it goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

from eventsourcing.persistence import Tracking
from eventsourcing.projection import Projection, ProjectionRunner
from sqlalchemy import Column, Integer, MetaData, Table, Text, select

from forge.ci import PROJECT
from runfacts import Fact, RunStatus
from runfacts.domain.payloads import RunCreated, RunFailed
from runfacts.infrastructure.persistence import LedgerFacts, SqlTrackingRecorder

TABLES: Final = MetaData()
BOARD: Final = Table(
    "board",
    TABLES,
    Column("run_id", Text, primary_key=True),
    Column("build_id", Text, nullable=False),
    Column("task", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("facts", Integer, nullable=False),
)
NOTICES: Final = Table(
    "notices",
    TABLES,
    Column("number", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("text", Text, nullable=False),
)
STATUSES: Final = frozenset(RunStatus)


@dataclass(frozen=True)
class Line:
    """A build on the board."""

    run_id: str
    build_id: str
    task: str
    status: str
    facts: int
    """How many facts of its Run the board has seen."""


class Board(SqlTrackingRecorder):
    """The two tables, and the position up to which they are right."""

    def tables(self) -> Sequence[Table]:
        """Give the tables that are made where they are missing."""
        return (*super().tables(), BOARD, NOTICES)

    def note(self, fact: Fact, tracking: Tracking) -> None:
        """Apply a fact, and record its position in the same transaction."""
        line = BOARD.c.run_id == fact.run_id
        with self.tracked(tracking) as connection:
            if isinstance(fact.payload, RunCreated):
                connection.execute(
                    BOARD.insert().values(
                        run_id=fact.run_id,
                        build_id=fact.correlation_id,
                        task=fact.payload.task,
                        status=RunStatus.CREATED,
                        facts=0,
                    )
                )
            connection.execute(BOARD.update().where(line).values(facts=BOARD.c.facts + 1))
            # A Run's facts are named after the status that they lead to; some lead to none.
            kind, _, word = fact.type.partition(".")
            if kind == "run" and word in STATUSES:
                connection.execute(BOARD.update().where(line).values(status=word))
            if isinstance(fact.payload, RunFailed):
                text = f"failed with exit code {fact.payload.exit_code}"
                connection.execute(NOTICES.insert().values(run_id=fact.run_id, text=text))

    def lines(self) -> Sequence[Line]:
        """Give the board, in the order in which builds were requested."""
        with self.engine.connect() as connection:
            # Run ids begin with the time at which they were made.
            return [Line(*row) for row in connection.execute(select(BOARD).order_by(BOARD.c.run_id))]

    def notices(self) -> Sequence[tuple[str, str]]:
        """Give the notices, as ids of Runs and texts."""
        with self.engine.connect() as connection:
            found = connection.execute(select(NOTICES.c.run_id, NOTICES.c.text).order_by(NOTICES.c.number))
            return [(row[0], row[1]) for row in found]


class FollowRuns(Projection[Board]):
    """Brings the board up to date, fact by fact."""

    name = "board"

    def process_event(self, domain_event: Fact, tracking: Tracking) -> None:
        """Note a fact of ours; of others only that it was seen."""
        if domain_event.project == PROJECT:
            self.view.note(domain_event, tracking)
        else:
            self.view.insert_tracking(tracking)


@contextmanager
def following(url: str) -> Iterator[ProjectionRunner[LedgerFacts, Board]]:
    """Keep the board up to date in a thread, from where it was left, as long as the block lasts."""
    runner = ProjectionRunner(
        application_class=LedgerFacts,
        projection_class=FollowRuns,
        view_class=Board,
        env={"PERSISTENCE_MODULE": "runfacts.infrastructure.persistence", "RUNFACTS_URL": url},
    )
    with closing(runner.view), runner:
        yield runner

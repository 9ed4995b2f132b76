"""The product's own sides: one-fact commands, and whole lives of Runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from runfacts.domain.actors import Actor
from runfacts.domain.answers import AttemptClaim, Claimed, Finished, Recorded, Started
from runfacts.domain.outcomes import Outcome
from runfacts.infrastructure.commands import Caller
from runfacts.infrastructure.ledger import Ledger
from runfacts.infrastructure.stores.kept import KeptHistories

ACTOR: Final = Actor.worker("bench")
BUSY_TIMEOUT_MS: Final = 30_000
"""How long every side waits for another writer of a SQLite file: none of them is fair to its waiters."""
STEPS_PER_RUN: Final = 40
"""Commands on one Run, which then has 47 facts."""
STEPS_PER_COLD_RUN: Final = 6
"""Commands on one Run whose facts are read again for each of them: 7 to 12 facts."""


def open_ledger(url: str) -> Ledger:
    """Open the ledger as an executor has it, patient on SQLite."""
    return Ledger.open(url, busy_timeout_ms=BUSY_TIMEOUT_MS)


def begin_run(ledger: Ledger, connection: Caller | None = None) -> AttemptClaim:
    """Record a Run up to its running Attempt: 7 facts in 5 commands."""
    run_id = ledger.create(actor=ACTOR, task="bench", connection=connection).run.run_id
    ledger.queue(run_id, actor=ACTOR, connection=connection)
    claimed = ledger.claim(run_id, actor=ACTOR, executor_type="bench", connection=connection)
    if not isinstance(claimed, Claimed):
        raise TypeError(f"claimed is {claimed}")
    started = ledger.start(claimed.claim, actor=ACTOR, connection=connection)
    running = ledger.running(claimed.claim, actor=ACTOR, connection=connection)
    if not isinstance(started, Started) or not isinstance(running, Recorded):
        raise TypeError(f"started is {started}, running is {running}")
    return claimed.claim


def begin_runs(ledger: Ledger, steps: int, steps_per_run: int) -> list[AttemptClaim]:
    """Begin enough Runs for ``steps`` commands, in one transaction."""
    with ledger.database.engine.begin() as connection:
        return [begin_run(ledger, connection) for _ in range(-(-steps // steps_per_run))]


@dataclass(slots=True)
class OneFact:
    """A one-fact command of the real ledger: a running Run waits for an approval, and goes on."""

    ledger: Ledger
    steps_per_run: int

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``. Each Run has its commands one after the other; its first one is not measured."""
        claims = begin_runs(self.ledger, steps, self.steps_per_run)
        return self._steps(claims)

    def _steps(self, claims: list[AttemptClaim]) -> Iterator[int]:
        ledger = self.ledger
        for claim in claims:
            for _ in range(self.steps_per_run // 2):
                _expect(ledger.wait_for_approval(claim, actor=ACTOR))
                yield 1
                _expect(ledger.go_on(claim, actor=ACTOR))
                yield 1

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()


def one_fact(url: str) -> OneFact:
    """Open the side whose process wrote the Run's facts before and has kept its history."""
    return OneFact(open_ledger(url), STEPS_PER_RUN)


def one_fact_cold(url: str) -> OneFact:
    """Open the side that reads and replays the Run's facts for every command, as after somebody else's writes."""
    ledger = open_ledger(url)
    ledger._commands._kept = KeptHistories(0)  # noqa: SLF001 - nobody else has a reason to switch it off
    return OneFact(ledger, STEPS_PER_COLD_RUN)


@dataclass(slots=True)
class Lives:
    """The whole life of a Run: created, queued, claimed, started, running, ended; 9 facts in 6 transactions."""

    ledger: Ledger

    def prepare(self, steps: int) -> Iterator[int]:
        """See ``Side``."""
        for _ in range(steps):
            claim = begin_run(self.ledger)
            finished = self.ledger.finish(claim, Outcome.succeeded(), actor=ACTOR)
            if not isinstance(finished, Finished):
                raise TypeError(f"finished is {finished}")
            yield 1

    def close(self) -> None:
        """See ``Side``."""
        self.ledger.close()


def lives(url: str) -> Lives:
    """Open the side."""
    return Lives(open_ledger(url))


def _expect(answer: object) -> None:
    if type(answer) is not Recorded:
        raise TypeError(f"a command of the bench was answered by {answer}")

"""``python -m jobrunner``: run a batch, and show what it did."""

from __future__ import annotations

import argparse
import getpass
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from jobrunner.batch import Batch, describe, has_ended
from jobrunner.plan import BadPlan, Plan
from runfacts import Actor, Ledger, RunfactsError, RunStatus

NOT_ALL_SUCCEEDED = 1
BAD_INPUT = 2
CANCELLED = 130


class Interrupts:
    """Counts Ctrl-C: the first one cancels the batch, the second one leaves without waiting."""

    def __init__(self) -> None:
        self.count = 0
        signal.signal(signal.SIGINT, self._heard)

    def cancels(self) -> bool:
        """Whether somebody wants the batch to stop."""
        return self.count > 0

    def leaves(self) -> bool:
        """Whether somebody does not want to wait for that."""
        return self.count > 1

    def _heard(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


def run(ledger: Ledger, plan: Plan, name: str, concurrency: int) -> int:
    """Run a batch, or go on with it, and give the exit code."""
    interrupts = Interrupts()
    batch = Batch(ledger, plan, name, tell)
    # As a context manager it would wait for what runs, also where somebody leaves.
    working = ledger.work(concurrency=concurrency, interval_ms=250)
    working.start()
    try:
        batch.go_on(interrupts.cancels)
        if interrupts.cancels():
            batch.cancel(Actor.user(getpass.getuser()))
            batch.go_on(interrupts.leaves)
    finally:
        working.leave()
        working.stop()
    for job, found in batch.runs.items():
        print(f"{job:<20} {describe(found)}")
    unproven = [job for job, found in batch.runs.items() if not has_ended(found)]
    if unproven:
        print(f"asked to stop, and not proven to have stopped: {', '.join(unproven)}")
    if interrupts.cancels():
        return CANCELLED
    return NOT_ALL_SUCCEEDED if any(each.status is not RunStatus.SUCCEEDED for each in batch.runs.values()) else 0


def audit(ledger: Ledger, plan: Plan, name: str) -> int:
    """Print every fact of a batch in the order of recording, a line each."""
    jobs: dict[str, str] = {}
    after = None
    while True:
        page = ledger.facts(project=plan.project, after=after)
        for fact in page.items:
            if fact.type == "run.created" and fact.correlation_id == name:
                jobs[fact.run_id] = ledger.run(fact.run_id).task
            if fact.run_id in jobs:
                actor = f"{fact.actor.type} {fact.actor.id or ''}".rstrip()
                print(f"{fact.timestamp:%Y-%m-%d %H:%M:%S} {jobs[fact.run_id]:<20} {fact.type:<32} {actor}")
        after = page.next
        if after is None:
            return 0


def output(ledger: Ledger, plan: Plan, name: str) -> int:
    """Print what each attempt of a batch has written, job by job."""
    after = None
    while True:
        page = ledger.facts(project=plan.project, types="run.created", after=after)
        for run_id in (fact.run_id for fact in page.items if fact.correlation_id == name):
            found = ledger.run(run_id)
            for attempt in found.attempts:
                print(f"== {found.task}, attempt {attempt.number}")
                files = ledger.places().of(attempt.attempt_id)
                for log in (Path(files.stdout), Path(files.stderr)):
                    print(log.read_text(errors="replace") if log.exists() else "", end="")
        after = page.next
        if after is None:
            return 0


def tell(line: str) -> None:
    """Say what happens while it does."""
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments say, and give the exit code."""
    parser = argparse.ArgumentParser(prog="jobrunner", description="Runs the jobs of a file, each once for a batch.")
    parser.add_argument("verb", choices=("run", "audit", "output"))
    parser.add_argument("file", type=Path, help="the jobs, as TOML")
    parser.add_argument("batch", help="a name for this go, such as a date; the same name goes on with the same batch")
    parser.add_argument("--db", metavar="URL", default="sqlite:///jobs.db", help="the database (%(default)s)")
    parser.add_argument("--concurrency", type=int, default=2, help="how many jobs run at a time (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        plan = Plan.read(given.file)
        with Ledger.open(given.db) as ledger:
            if given.verb == "run":
                return run(ledger, plan, given.batch, given.concurrency)
            return (audit if given.verb == "audit" else output)(ledger, plan, given.batch)
    except BadPlan as error:
        print(f"jobrunner: {error}", file=sys.stderr)
        return BAD_INPUT
    except RunfactsError as error:
        # Jobs that run have keepers, and run on. The same command goes on with the batch.
        print(f"jobrunner: {error}", file=sys.stderr)
        return NOT_ALL_SUCCEEDED


if __name__ == "__main__":
    sys.exit(main())

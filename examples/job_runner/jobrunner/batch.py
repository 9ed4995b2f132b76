"""
A batch: one go through the jobs of a file.

Every job is a Run under an idempotency key made of batch and name. That is all that the runner has to remember: after
any crash it asks for the same Runs again, gets the ones that are there, and goes on from what the ledger says of
them. The commands themselves outlive the runner under their keepers, which leave receipts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from jobrunner.plan import Job, Plan
from runfacts import Actor, IntentKind, Ledger, RunStatus, RunView

RUNNER: Final = Actor.scheduler("jobrunner")
_LOOK_S: Final = 0.1


class Batch:
    """The Runs of one batch, as far as they exist. ``tell`` is told each change of a job's status."""

    def __init__(self, ledger: Ledger, plan: Plan, name: str, tell: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._plan = plan
        self._name = name
        self._tell = tell
        self.runs: dict[str, RunView] = {}
        """The Runs by the names of their jobs."""

    @property
    def ended(self) -> bool:
        """Whether every job has come to its end."""
        return len(self.runs) == len(self._plan.jobs) and all(has_ended(run) for run in self.runs.values())

    def step(self) -> None:
        """Look where the jobs stand, and record those whose turn has come."""
        for name, run in self.runs.items():
            if not has_ended(run):
                self._note(name, self._ledger.run(run.run_id))
        # Needed jobs come first, so one that is skipped here is seen by those after it.
        for job in self._plan.jobs.values():
            needed = [self.runs.get(name) for name in job.after]
            if job.name in self.runs or any(run is None or not has_ended(run) for run in needed):
                continue
            failed = [name for name in job.after if self.runs[name].status is not RunStatus.SUCCEEDED]
            if failed:
                self._end(job, RUNNER, IntentKind.POLICY, f"needs {', '.join(failed)}")
            else:
                self._submit(job)

    def go_on(self, asked_to_stop: Callable[[], bool]) -> None:
        """Step until every job has ended, or somebody asks to stop."""
        while not asked_to_stop():
            self.step()
            if self.ended:
                return
            time.sleep(_LOOK_S)

    def cancel(self, actor: Actor) -> None:
        """Ask every job to stop, and end those that have not begun. Asking ends none that runs (R6.2)."""
        for job in self._plan.jobs.values():
            run = self.runs.get(job.name)
            if run is None:
                self._end(job, actor, IntentKind.USER, "the batch was cancelled")
            elif not has_ended(run):
                self._ledger.request_cancellation(run.run_id, actor=actor, reason="the batch was cancelled")
                self._tell(f"{job.name}: asked to stop")

    def _submit(self, job: Job) -> None:
        # Found again after a crash, or made now: what matters is the Run.
        answer = self._ledger.submit(
            job.command,
            actor=RUNNER,
            cwd=str(self._plan.folder),
            task=job.name,
            project=self._plan.project,
            policy=job.policy,
            timeout_ms=job.timeout_ms,
            idempotency_key=self._key(job),
            correlation_id=self._name,
        )
        self._note(job.name, answer.run)

    def _end(self, job: Job, actor: Actor, kind: IntentKind, reason: str) -> None:
        """Record a job that will not run: its Run and its end, or neither."""
        with self._ledger.database.engine.begin() as connection:
            run_id = self._ledger.create(
                actor=RUNNER,
                task=job.name,
                project=self._plan.project,
                policy=job.policy,
                timeout_ms=job.timeout_ms,
                idempotency_key=self._key(job),
                correlation_id=self._name,
                connection=connection,
            ).run.run_id
            self._ledger.request_cancellation(run_id, actor=actor, kind=kind, reason=reason, connection=connection)
        self._note(job.name, self._ledger.run(run_id))

    def _key(self, job: Job) -> str:
        return f"{self._name}/{job.name}"

    def _note(self, name: str, run: RunView) -> None:
        before = self.runs.get(name)
        self.runs[name] = run
        if before is None or before.status is not run.status:
            self._tell(f"{name}: {describe(run)}")


def has_ended(run: RunView) -> bool:
    """Whether nothing will happen to a Run any more. A lost one may be tried again."""
    return run.finished_at_ms is not None


def describe(run: RunView) -> str:
    """Say where a Run stands, and how it came to that."""
    parts: list[str] = [run.status.value]
    if run.attempts:
        last = run.attempts[-1]
        if last.exit_code is not None:
            parts.append(f"exit code {last.exit_code}")
        if last.signal is not None:
            parts.append(f"signal {last.signal}")
        if len(run.attempts) > 1:
            parts.append(f"attempt {last.number} of {run.policy.max_attempts}")
    elif run.cancellation is not None:
        parts.append(f"never ran: {run.cancellation.reason}")
    return ", ".join(parts)

"""
Runs that hosts in processes of their own look after, and what is left of them when those are killed.

The command of each takes a lock that belongs to its Run and that every process of it holds while it lives: whoever
finds it taken notes ``twice``. So two living processes of one Run that are not of one Attempt cannot go unnoticed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from process_watch import kill, wait_until
from runfacts import Actor, AttemptView, Ledger, RetryPolicy, RunView
from runfacts.domain.payloads import RunFailed
from runfacts.domain.retry import Safety
from runfacts.infrastructure.processes.launcher import COOKIE_ATTEMPT
from workers import RecoveryJob

ANA = Actor.user("ana")
EXIT_CODE = 7
"""What the command ends with when it is let go."""
AGAIN = RetryPolicy(max_attempts=2, retry_on_lost=True, safety=Safety.IDEMPOTENT, backoff_ms=1)
"""Declared to be safe to run twice."""
ALONE = """
cd {root} || exit 1
exec 9>"$RUNFACTS_RUN_ID.lock"
flock -n 9 || echo twice >> "$RUNFACTS_RUN_ID.ran"
echo "$RUNFACTS_ATTEMPT_ID" >> "$RUNFACTS_RUN_ID.ran"
"""
WAITS = 'until test -e "$RUNFACTS_RUN_ID.go"; do sleep 0.05; done; exit 7'
STAYS = "trap '' TERM; " + WAITS
CHILD_STAYS = f"({STAYS}) & exec sleep 600"
"""A leader, and a child of its group that ignores TERM."""


@dataclass(frozen=True)
class HostedRun:
    """One submitted Run, whose command waits until it is let go."""

    ledger: Ledger
    url: str
    root: Path
    run_id: str
    argv: tuple[str, ...]

    @classmethod
    def submitted(
        cls, ledger: Ledger, url: str, root: Path, *, policy: RetryPolicy | None = None, script: str = WAITS
    ) -> HostedRun:
        """Submit it. Nobody hosts it yet."""
        argv = ("sh", "-c", ALONE.format(root=root) + script)
        run_id = ledger.submit(argv, actor=ANA, cwd=str(root), policy=policy).run.run_id
        return cls(ledger, url, root, run_id, argv)

    def job(self, name: str, settings: dict[str, int], **other: str | None) -> RecoveryJob:
        """Give the job of a host of it; ``other`` are fields of the job."""
        job = RecoveryJob(name, self.url, "host", settings, run_id=self.run_id, argv=self.argv)
        return replace(job, **other)  # type: ignore[arg-type]  # by name

    @property
    def view(self) -> RunView:
        """How it stands."""
        return self.ledger.run(self.run_id)

    @property
    def first(self) -> AttemptView:
        """How its first Attempt stands."""
        return self.view.attempts[0]

    @property
    def facts(self) -> list[str]:
        """The types of its facts, oldest first."""
        return [fact.type for fact in self.ledger.history(self.run_id)]

    @property
    def error_code(self) -> str | None:
        """The code with which it failed."""
        found = [fact.payload for fact in self.ledger.history(self.run_id) if isinstance(fact.payload, RunFailed)]
        return found[0].error_code if found else None

    def ends(self) -> None:
        """Wait until it has ended."""
        wait_until(lambda: self.view.finished_at_ms is not None, f"run {self.run_id} ends")

    @property
    def ran(self) -> list[str]:
        """The Attempts whose command has begun, and ``twice`` wherever another one's still lived."""
        file = self.root / f"{self.run_id}.ran"
        return file.read_text().splitlines() if file.exists() else []

    def runs(self) -> None:
        """Wait until its first command runs and that is recorded."""
        wait_until(lambda: self.ran and self.first.status == "running", f"run {self.run_id} runs")

    def let_go(self) -> None:
        """Let every command of it end by itself."""
        (self.root / f"{self.run_id}.go").touch()

    def processes(self) -> list[int]:
        """Give the numbers of the living processes of its first Attempt."""
        return with_cookie(self.first.attempt_id)

    def kill_command(self) -> None:
        """Kill all of them, and wait until they are gone."""

        def gone() -> bool:
            found = self.processes()
            for pid in found:
                kill(pid)
            return not found

        wait_until(gone, f"the command of run {self.run_id} is gone")

    def kill_keeper(self, host: int) -> None:
        """Kill the keeper that a living host has, and wait until it is gone."""
        leader = self.leader
        keeper = parent_of(leader)
        assert keeper is not None
        assert parent_of(keeper) == host
        kill(keeper)
        wait_until(lambda: parent_of(leader) != keeper, "the keeper is gone")

    @property
    def leader(self) -> int:
        """The number that is recorded of its first Attempt's process."""
        pid = self.ledger.execution(self.first.attempt_id).pid
        assert pid is not None
        return pid


def with_cookie(attempt_id: str) -> list[int]:
    """Give the numbers of the living processes that have an Attempt's cookie in their environment."""
    cookie = f"{COOKIE_ATTEMPT}={attempt_id}".encode()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is needed
        try:
            # Of a zombie there is none.
            if name.isdigit() and cookie in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def parent_of(pid: int) -> int | None:
    """Give the number of a process's parent, ``None`` when it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None

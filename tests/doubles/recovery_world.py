"""Runs, hosts, processes and their receipts in memory, over real histories.

The processes are the truth that nothing but an examiner may see. Time is a number that somebody moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from typing import ParamSpec, TypeVar

from runfacts.domain import decisions
from runfacts.domain.actors import Actor
from runfacts.domain.decisions import Decision
from runfacts.domain.history import History, RecordedBy
from runfacts.domain.lifecycle import IntentKind
from runfacts.domain.limits import Settings
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payloads import AttemptClaimed, RunCreated
from runfacts.domain.recovery.claims import (
    ClaimState,
    ItemKind,
    Purpose,
    RecoveryKey,
)
from runfacts.domain.recovery.evidence import Evidence, Unknown
from runfacts.domain.recovery.ports import Finding
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.retry import RetryPolicy

SERVED = frozenset({("local", "here")})
SETTINGS = Settings(failure_limit=4, stop_report_grace_ms=10_000)
LEASE_MS = SETTINGS.execution_lease_ms
BY = Actor.system("world")


Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def a_step(method: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Let the world be told before and after a method of a worker's: whoever listens may act, or end the worker."""

    @wraps(method)
    def step(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        world = args[0] if isinstance(args[0], World) else getattr(args[0], "world")  # noqa: B009 - of any class
        world.between()
        answer = method(*args, **kwargs)
        world.between()
        return answer

    return step


@dataclass
class Process:
    """What there is of an Attempt on its machine."""

    host_lives: bool = True
    keeper_lives: bool = False
    state: str = "none"
    """``none``, ``waiting`` at the gate, ``running``, ``left`` (its leader ended, a child lives) or ``dead``."""
    outcome: Outcome | None = None
    """How the leader ended."""
    receipt: bool = False

    @property
    def lives(self) -> bool:
        """Whether anything of the command runs; what waits at the gate has not begun."""
        return self.state in {"running", "left"}


@dataclass
class Execution:
    """The row of an Attempt."""

    gated: bool
    lease_expires_at_ms: int
    handle: str | None = None
    seen_at_ms: int = 0


@dataclass
class Row:
    """The row of an item."""

    state: ClaimState = ClaimState.AVAILABLE
    version: int = 0
    token: str = ""
    expires_at_ms: int = 0
    next_at_ms: int = 0
    delays: int = 0
    failures: int = 0
    seen: object = None
    """What an operator was called for."""


@dataclass
class Dispatch:
    """The delivery of a Run's cancellation."""

    leased_until_ms: int = 0
    finished_at_ms: int | None = None


@dataclass
class World:
    """Everything there is."""

    now_ms: int = 1_000_000
    histories: dict[str, History] = field(default_factory=dict)
    executions: dict[str, Execution] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    dispatches: dict[str, Dispatch] = field(default_factory=dict)
    rows: dict[RecoveryKey, Row] = field(default_factory=dict)
    ids: count[int] = field(default_factory=lambda: count(1))
    between: Callable[[], None] = lambda: None
    """Called between any two steps of a worker."""

    def record(self, history: History, decision: Decision) -> Decision:
        """Write what was decided."""
        history.record(decision.drafts, RecordedBy(BY, self.now_ms))
        return decision

    def create(self, policy: RetryPolicy) -> History:
        """Create a Run and queue it."""
        history = History(f"01890000-0000-7000-8000-{next(self.ids):012}", "shop")
        self.record(history, decisions.create(RunCreated(task="t", policy=policy)))
        self.record(history, decisions.queue(history, self.now_ms))
        self.histories[history.run_id] = history
        return history

    def claim(self, history: History, *, gated: bool) -> bool:
        """Let a host claim the Run's next Attempt."""
        attempt_id = f"01890000-0000-7000-9000-{next(self.ids):012}"
        number = decisions.next_number(history)
        claimed = AttemptClaimed(number=number, executor_type="local", gated=gated)
        if not self.record(history, decisions.claim(history, attempt_id, claimed)).drafts:
            return False
        self.executions[attempt_id] = Execution(gated, self.now_ms + LEASE_MS, seen_at_ms=self.now_ms)
        self.processes[attempt_id] = Process()
        return True

    def renew(self, history: History, attempt_id: str) -> None:
        """Let a host renew its lease, unless recovery holds the Attempt (R10.3)."""
        row = self.rows.get(RecoveryKey(Purpose.RECOVERY, ItemKind.ATTEMPT, attempt_id))
        held = row is not None and row.state is ClaimState.CLAIMED and self.now_ms < row.expires_at_ms
        if held or not history.attempts[attempt_id].active:
            return
        if row is not None:
            row.state = ClaimState.RESOLVED
        execution = self.executions[attempt_id]
        execution.lease_expires_at_ms = self.now_ms + LEASE_MS
        execution.seen_at_ms = self.now_ms

    def finish(self, history: History, attempt_id: str) -> bool:
        """Record how the leader ended, as the host or whoever has the receipt does (R6.5); tell whether it is over."""
        process = self.processes[attempt_id]
        if process.outcome is None:
            return not history.attempts[attempt_id].active
        decision = decisions.finish(history, attempt_id, process.outcome, self.now_ms, group_left=process.lives)
        self.record(history, decision)
        process.receipt = process.receipt and history.attempts[attempt_id].active
        return not history.attempts[attempt_id].active

    def cancel(self, history: History, kind: IntentKind) -> None:
        """Let somebody ask the Run to stop."""
        self.record(history, decisions.request_cancellation(history, kind, None))
        self.dispatches.setdefault(history.run_id, Dispatch())


@dataclass
class Sight:
    """Sees the processes of a world as a provider may, under the keeper's lock. See ``Examiner``."""

    world: World
    mode: str = "clear"
    """``clear``, ``away`` (nobody can be asked) or ``broken`` (asking raises)."""

    def worst_case_ms(self, executor_type: str) -> int:
        """See ``Examiner``."""
        assert executor_type == "local"
        return SETTINGS.evidence_timeout_ms

    @a_step
    def has_receipt(self, snapshot: Snapshot, *, foreign: bool) -> bool:
        """See ``Examiner``."""
        assert not foreign
        return self.world.processes[snapshot.attempt_id or ""].receipt

    @a_step
    def examine(self, snapshot: Snapshot, *, foreign: bool) -> Finding:
        """See ``Examiner``."""
        assert not foreign
        process = self.world.processes[snapshot.attempt_id or ""]
        if self.mode == "broken":
            msg = "the provider is broken"
            raise RuntimeError(msg)
        if self.mode == "away":
            return Finding(Evidence.unknown(Unknown.PROVIDER_UNAVAILABLE), process.receipt)
        if snapshot.execution is None or snapshot.execution.handle is None:
            return Finding(Evidence.unknown(Unknown.IDENTITY_UNVERIFIABLE), process.receipt)
        locked = process.keeper_lives and not process.receipt
        seen = Evidence.running() if locked or process.lives or process.state == "waiting" else Evidence.not_running()
        return Finding(seen, process.receipt)

    @a_step
    def record_receipt(self, snapshot: Snapshot) -> bool:
        """See ``Examiner``."""
        return self.world.finish(self.world.histories[snapshot.run_id], snapshot.attempt_id or "")

"""
The places in which a worker hosts queued Runs: so many at a time, a thread each (R12.1).

::

    take ─> queued Runs, oldest first ─> per free place a thread: claim, host, end ─> the place is free again

The queue is only read; who hosts a Run is decided by the ledger's claim. Whoever loses a claim takes the next Run, by
a list that is read anew. So any number of workers share a queue, and none is in the way of another.

Some trouble is the worker's own: its machine starts no process, its database is away. Then it waits, longer each
time, before it takes anything else, or it would spoil the whole queue. Other trouble is a Run's: that one is set
aside for a while, and the others go on.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol

from runfacts.domain.actors import Actor
from runfacts.domain.answers import LateCallback, Repeated
from runfacts.domain.cancellation.supervisor import FAILED, Diagnostic, Diagnostics, Stopping
from runfacts.domain.errors import DatabaseCorrupt, DatabaseError, UnsupportedPlatform
from runfacts.domain.stored_commands import StoredCommand
from runfacts.domain.views import Page
from runfacts.infrastructure.processes.hosted import (
    Command,
    Detached,
    Ended,
    HostedOutcome,
    KeeperLost,
    NeverRan,
    NotHosted,
    NotStarted,
)
from runfacts.infrastructure.processes.places import UnsafePlace

if TYPE_CHECKING:
    from runfacts.infrastructure.ledger import Ledger
    from runfacts.infrastructure.processes.held import HeldPidfds
    from runfacts.infrastructure.processes.host import LocalHost
    from runfacts.infrastructure.processes.ports import Stops
    from runfacts.infrastructure.processes.tail import ByteSink

PART: Final = "hosted"
"""The name of this part in reports."""
TAKEN: Final = "taken"
"""The counter of Runs that another worker was faster to claim, or that had been ended."""

_SPARE: Final = 2
_ASIDE_S: Final = 30.0
_TROUBLE_MAX_S: Final = 60.0
_LOOK_S: Final = 0.02
_OWN_TROUBLE: Final = (DatabaseError, OSError, UnsafePlace, UnsupportedPlatform)
_WORDS: Final[Mapping[type[HostedOutcome], str]] = MappingProxyType(
    {
        NotHosted: TAKEN,
        NotStarted: "not_started",
        NeverRan: "never_ran",
        KeeperLost: "keeper_lost",
        Detached: "detached",
    }
)


class Queue(Protocol):
    """Where Runs wait. ``Ledger`` is one."""

    def queued_runs(self, *, limit: int | None = None, after: str | None = None) -> Page[str]:
        """Give a page of the queued Runs whose command is kept, oldest first."""
        ...

    def command_of(self, run_id: str) -> StoredCommand | None:
        """Give what a Run is to run; None where nothing is kept."""
        ...


class Host(Protocol):
    """Who hosts one Run, several at a time. ``LocalHost`` is one."""

    def run(self, run_id: str, command: Command, *, actor: Actor) -> HostedOutcome:
        """Claim the Run's next Attempt and host it to its end."""
        ...

    def detach(self) -> None:
        """Leave every command to its keeper."""
        ...


def local_host(
    ledger: Ledger,
    *,
    worker_id: str,
    held: HeldPidfds,
    stops: Stops,
    stdout: ByteSink | None = None,
    stderr: ByteSink | None = None,
) -> LocalHost:
    """Make this machine's host within the ledger's settings (``UnsupportedPlatform``)."""
    from runfacts.infrastructure.processes.host import LocalHost
    from runfacts.infrastructure.processes.launcher import Launcher

    settings, steps = ledger.settings, ledger.database.steps
    return LocalHost(
        ledger,
        Launcher(ledger.machine(), gate_timeout_ms=settings.gate_timeout_ms, steps=steps),
        ledger.places(),
        worker_id=worker_id,
        lease_ms=settings.execution_lease_ms,
        poll_ms=settings.poll_ms,
        stdout=stdout,
        stderr=stderr,
        held=held,
        stops=stops,
        steps=steps,
    )


class HostingPlaces:
    """Hosts queued Runs, at most ``concurrency`` at a time. ``take`` is called by one thread at a time."""

    def __init__(
        self,
        queue: Queue,
        host: Host,
        *,
        actor: Actor,
        concurrency: int,
        interval_ms: int,
        diagnostics: Diagnostics,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_free`` is called whenever a place is free again, by the thread that had it."""
        self._queue = queue
        self._host = host
        self._actor = actor
        self._concurrency = concurrency
        self._interval_s = interval_ms / 1_000
        self._diagnostics = diagnostics
        self._on_free = on_free
        self._lock = threading.Lock()
        self._hosting: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._waiting: deque[str] = deque()
        self._read_at_s = 0.0
        self._aside: dict[str, float] = {}
        self._troubles = 0
        self._not_before_s = 0.0
        self.ended = 0
        """How many Runs have left their place."""

    @property
    def hosting(self) -> int:
        """How many places are taken."""
        with self._lock:
            return len(self._hosting)

    @property
    def in_trouble(self) -> bool:
        """Whether a Run could not be hosted for the worker's own reasons, and none has been since."""
        return self._troubles > 0

    def take(self, stopping: Stopping) -> int:
        """Begin to host what is queued until every place is taken or none is left; give how many were begun."""
        begun = 0
        while not stopping() and time.monotonic() >= self._not_before_s and self.hosting < self._concurrency:
            run_id = self._next()
            if run_id is None:
                break
            self._begin(run_id)
            begun += 1
        return begun

    def pause_ms(self) -> int:
        """Give how long to wait for the next look where no place becomes free."""
        trouble_s = self._not_before_s - time.monotonic()
        return int(max(self._interval_s, trouble_s) * 1_000)

    def counted(self) -> Mapping[str, int]:
        """Give what was counted since the last time."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return {"seen": 0, "claimed": 0} | counts

    def wait_until_free(self, timeout_s: float, giving_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until no place is taken, at most so long, and tell whether it is so."""
        deadline = time.monotonic() + timeout_s
        # Looking again and again: a signal handler may end this wait, and must not need any lock to do so.
        while self.hosting:
            if giving_up() or time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        return True

    def wait_for_change(self, ended: int, giving_up: Callable[[], bool]) -> None:
        """Wait until more than ``ended`` Runs have left their place."""
        while self.ended == ended and self.hosting and not giving_up():
            time.sleep(_LOOK_S)

    def leave(self) -> None:
        """Leave every command to its keeper; their places become free. Safe in a signal handler."""
        self._host.detach()

    def _next(self) -> str | None:
        # A list of some time ago is not in order any more, and others have taken from it.
        if not self._waiting or time.monotonic() - self._read_at_s >= self._interval_s:
            self._waiting = deque(self._read(self._concurrency * _SPARE))
            self._read_at_s = time.monotonic()
        return self._waiting.popleft() if self._waiting else None

    def _read(self, wanted: int) -> list[str]:
        """Read as many as wanted of those that can be tried now, past those that cannot."""
        now_s = time.monotonic()
        with self._lock:
            self._aside = {run_id: until_s for run_id, until_s in self._aside.items() if until_s > now_s}
        found: list[str] = []
        cursor: str | None = None
        while len(found) < wanted:
            page = self._queue.queued_runs(after=cursor)
            with self._lock:
                found += [item for item in page.items if item not in self._hosting and item not in self._aside]
            cursor = page.next
            if cursor is None:
                break
        return found[:wanted]

    def _begin(self, run_id: str) -> None:
        with self._lock:
            if run_id in self._hosting:
                return
            self._hosting.add(run_id)
            self._counts["seen"] += 1
        try:
            # A daemon: whoever ends must not wait for commands, which outlive their host anyhow.
            threading.Thread(target=self._occupy, args=(run_id,), name="runfacts-host", daemon=True).start()
        except BaseException:
            with self._lock:
                self._hosting.discard(run_id)
            self._own_trouble()
            raise

    def _occupy(self, run_id: str) -> None:
        word = FAILED
        try:
            word = self._host_one(run_id)
        except Exception as error:  # noqa: BLE001 - one Run's trouble must not keep the others from being hosted (R9.3)
            self._diagnostics.report(PART, error, run_id)
            if isinstance(error, _OWN_TROUBLE) and not isinstance(error, DatabaseCorrupt):
                self._own_trouble()
            else:
                self._set_aside(run_id, _ASIDE_S)
        finally:
            with self._lock:
                self._counts[word] += 1
                self._hosting.discard(run_id)
                self.ended += 1
            self._on_free()

    def _host_one(self, run_id: str) -> str:
        """Host one Run, and give the counter of what became of it."""
        command = self._queue.command_of(run_id)
        if command is None:
            self._set_aside(run_id, self._interval_s)
            return TAKEN
        outcome = self._host.run(run_id, Command(command.argv, cwd=command.cwd), actor=self._actor)
        if isinstance(outcome, NotHosted):
            # Others take from the same list: what follows is likely to be theirs, too.
            self._read_at_s = 0.0
            self._set_aside(run_id, self._interval_s)
            return TAKEN
        with self._lock:
            self._counts["claimed"] += 1
        if isinstance(outcome, NeverRan) and outcome.reason != "attempt_ended":
            self._diagnostics.tell(Diagnostic(PART, outcome.reason, outcome.detail, run_id))
            self._own_trouble()
        elif isinstance(outcome, Ended):
            self._troubles = 0
        return word_of(outcome)

    def _set_aside(self, run_id: str, length_s: float) -> None:
        with self._lock:
            self._aside[run_id] = time.monotonic() + length_s

    def _own_trouble(self) -> None:
        self._troubles += 1
        wait_s = min(_TROUBLE_MAX_S, self._interval_s * 2.0 ** min(self._troubles, 16))
        self._not_before_s = time.monotonic() + wait_s


def word_of(outcome: HostedOutcome) -> str:
    """Give the counter of what became of a Run that was hosted: where it is known, the status that it has now."""
    if not isinstance(outcome, Ended):
        return _WORDS[type(outcome)]
    answer = outcome.answer
    if isinstance(answer, LateCallback):
        return "late"
    return (answer.status if isinstance(answer, Repeated) else answer.run_status).value

"""
Cancellation of the Runs that this process hosts itself (R9.5).

Nobody needs a second process for a time-out or a cancel to work: a host looks after its own Runs, by the same claims
as any supervisor, so that the two never act at once. A cycle records what was asked for at the host itself, asks Runs
to stop whose time is over, and delivers what is due. It runs in a thread of its own, because a delivery lasts as long
as the command is given to end, and the host must go on looking at its command meanwhile.

The host is woken by a committed request, where the database can tell; else it finds it by looking.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from runfacts.domain.actors import Actor
from runfacts.domain.cancellation.dispatcher import MARGIN_MS, CycleReport, Dispatcher
from runfacts.domain.cancellation.supervisor import FAILED, Counters, Diagnostics, Stopping
from runfacts.domain.cancellation.terms import AlreadyRequested, AlreadyTerminal, CancelRequested, DispatchCandidate
from runfacts.domain.errors import NotAllowed, NotFound, RunfactsError
from runfacts.domain.lifecycle import IntentKind
from runfacts.infrastructure.database.forks import ForkedLock
from runfacts.infrastructure.lifecycle import Bell, LifecycleRunner
from runfacts.infrastructure.stores.stop_states import StopState

_PART: Final = "own_runs"
_SOON_MS: Final = 20
_TRIED_MS: Final = 1_000


class OwnRunLedger(Protocol):
    """What looking after one's own Runs takes. ``Ledger`` is one."""

    def request_cancellation(
        self, run_id: str, *, actor: Actor, kind: IntentKind = ..., reason: str | None = None
    ) -> CancelRequested | AlreadyRequested | AlreadyTerminal:
        """Record that somebody wants the Run to stop (R6.1)."""
        ...

    def stop_state(self, attempt_id: str) -> StopState | None:
        """Read whether an Attempt is to stop."""
        ...


class Presence(Protocol):
    """Says that a host is there (R8.3)."""

    def beat(self) -> bool:
        """Say so, not too often; tell whether that was written (``RunfactsError``)."""
        ...


@dataclass(frozen=True, slots=True)
class _Wish:
    """A cancellation that somebody asked for at the host, until it is recorded."""

    run_id: str
    actor: Actor
    kind: IntentKind
    reason: str


class OwnRuns:
    """Looks after the Runs that this process hosts, from ``start`` to ``stop``."""

    def __init__(
        self,
        ledger: OwnRunLedger,
        dispatcher: Dispatcher,
        *,
        actor: Actor,
        interval_ms: int,
        drain_ms: int,
        bell: Callable[[], Bell],
        diagnostics: Diagnostics,
        presence: Presence | None = None,
    ) -> None:
        """``actor`` is who asks a Run to stop whose time is over; ``interval_ms`` how often to look unwoken."""
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._actor = actor
        self._interval_ms = interval_ms
        self._diagnostics = diagnostics
        self._presence = presence
        self._wishes: deque[_Wish] = deque()
        self._lock = ForkedLock()
        self._hosted: set[str] = set()
        self._next_at_s: float | None = None
        self._runner = LifecycleRunner(
            self.cycle,
            pause_ms=self._pause_ms,
            drain_ms=drain_ms,
            diagnostics=diagnostics,
            bell=bell,
            name="runfacts-own-runs",
        )

    def start(self) -> None:
        """Begin to look after them (``AlreadyStarted``)."""
        self._say_it_is_there()
        self._runner.start()

    def stop(self, drain_ms: int | None = None) -> bool:
        """End it; wait for a delivery under way, at most ``drain_ms``, and tell whether all has ended.

        What was asked for here and is not recorded yet is recorded then, if the database takes it (R10.5).
        """
        ended = self._runner.stop(drain_ms)
        if ended:
            # Stopped between the wish and the cycle that was to record it.
            self._record_wishes(Counter())
        return ended

    def wake(self) -> None:
        """Look now: something about a Run has changed. Safe in a signal handler."""
        self._runner.wake()

    def ask_to_stop(self, run_id: str, *, actor: Actor, kind: IntentKind, reason: str) -> None:
        """Have a cancellation recorded that was asked for here, as soon as the database takes it.

        Safe in a signal handler.
        """
        self._wishes.append(_Wish(run_id, actor, kind, reason))
        self._runner.wake()

    @contextmanager
    def hosting(self, attempt_id: str) -> Iterator[None]:
        """Look after this Attempt within the block."""
        with self._lock:
            self._hosted.add(attempt_id)
        self._runner.wake()
        try:
            yield
        finally:
            with self._lock:
                self._hosted.discard(attempt_id)

    def cycle(self, stopping: Stopping = lambda: False) -> Counters:
        """Record what was asked for, ask what is overdue, deliver what is due."""
        self._say_it_is_there()
        report = CycleReport()
        counts: Counter[str] = report.counts
        self._next_at_s = None
        self._record_wishes(counts)
        with self._lock:
            hosted = tuple(self._hosted)
        for attempt_id in hosted:
            if stopping():
                break
            # One Run's trouble must not keep the others from being stopped (R9.3).
            try:
                self._look_after(attempt_id, report)
            except Exception as error:  # noqa: BLE001 - see above
                counts[FAILED] += 1
                self._diagnostics.report(_PART, error)
        return report.as_dict()

    def _say_it_is_there(self) -> None:
        if self._presence is not None:
            try:
                self._presence.beat()
            except RunfactsError as error:
                self._diagnostics.report(_PART, error)

    def _record_wishes(self, counts: Counter[str]) -> None:
        for _ in range(len(self._wishes)):
            wish = self._wishes[0]
            try:
                self._ledger.request_cancellation(wish.run_id, actor=wish.actor, kind=wish.kind, reason=wish.reason)
            except (NotAllowed, NotFound) as error:
                self._diagnostics.report(_PART, error, wish.run_id)
            except Exception as error:  # noqa: BLE001 - it is kept and tried again: somebody asked for it
                counts[FAILED] += 1
                self._diagnostics.report(_PART, error, wish.run_id)
                return
            counts["requested"] += 1
            self._wishes.popleft()

    def _look_after(self, attempt_id: str, report: CycleReport) -> None:
        state = self._ledger.stop_state(attempt_id)
        if state is not None and state.deadline_passed:
            self._ledger.request_cancellation(state.run_id, actor=self._actor, kind=IntentKind.TIMEOUT)
            report.counts["timed_out"] += 1
            state = self._ledger.stop_state(attempt_id)
        if state is not None and state.delivery_due and state.intent_at_ms is not None:
            report.seen += 1
            self._dispatcher.deliver(
                DispatchCandidate(state.run_id, attempt_id, state.intent_at_ms, state.dispatch_due_at_ms or 0), report
            )
            state = self._ledger.stop_state(attempt_id)
        if state is None or state.ended:
            return
        if state.delivery_due:
            # Tried in vain just now, and not even its wait is recorded: the database may be away.
            self._look_again_in(_TRIED_MS)
        elif state.intent_at_ms is None and state.deadline_at_ms is not None:
            self._look_again_in(state.deadline_at_ms - state.now_ms)
        elif state.dispatch_due_at_ms is not None:
            self._look_again_in(state.dispatch_due_at_ms - state.now_ms)

    def _look_again_in(self, ms: int) -> None:
        at_s = time.monotonic() + ms / 1_000
        self._next_at_s = at_s if self._next_at_s is None else min(self._next_at_s, at_s)

    def _pause_ms(self) -> int:
        """Give the time to the next look: when something is due, but no later than the interval says."""
        if self._next_at_s is None:
            return self._interval_ms
        left_ms = int((self._next_at_s - time.monotonic()) * 1_000) + 1
        return max(_SOON_MS, min(left_ms, self._interval_ms))


def drain_of(worst_case_ms: int) -> int:
    """Give how long a delivery under way may take to its settle, in milliseconds."""
    return worst_case_ms + MARGIN_MS

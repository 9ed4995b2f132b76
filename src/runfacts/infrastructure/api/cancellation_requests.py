"""Ask a Run to stop, by hand or because its deadline has passed, and say so to its host (R6, R10.4)."""

from __future__ import annotations

from collections.abc import Callable

from runfacts.domain import decisions
from runfacts.domain.actors import Actor
from runfacts.domain.cancellation.terms import AlreadyRequested, AlreadyTerminal, CancelRequested
from runfacts.domain.decisions import Refusal
from runfacts.domain.errors import (
    Conflict,
    DatabaseCorrupt,
    DedupeConflict,
    InvalidValue,
    NotAllowed,
)
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import IntentKind
from runfacts.domain.payloads import RunCancelled, RunCancelRequested, RunTimedOut
from runfacts.infrastructure.api.claim_changes import end_of_retry, to_be_stopped
from runfacts.infrastructure.api.core import LedgerCore, log
from runfacts.infrastructure.commands import Caller, Command, Moment, Plan
from runfacts.infrastructure.database.wakeups import Listener
from runfacts.infrastructure.stores.deadlines import read_passed
from runfacts.infrastructure.stores.stop_states import StopState, read_stop_state

RequestAnswer = CancelRequested | AlreadyRequested | AlreadyTerminal


class CancellationRequests(LedgerCore):
    """Ask Runs to stop."""

    def request_cancellation(
        self,
        run_id: str,
        *,
        actor: Actor,
        kind: IntentKind = IntentKind.USER,
        reason: str | None = None,
        expected_version: int | None = None,
        dedupe_key: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> RequestAnswer:
        """Record that somebody wants the Run to stop (R6.1).

        The status does not change: nothing is cancelled because somebody asked (R6.2). Where no Attempt is active
        there is nothing to stop, and the Run ends with the request (R6.3). Otherwise the delivery waits for a worker
        of the Attempt's scope (R7.1), and the confirmation that it has stopped until its host is overdue (R12.2).

        Raises ``RunNotFound``, ``LegacyRun``, ``UnknownFactsInRun``, ``InvalidValue``, and where the caller names a
        version or a key ``RunVersionConflict`` or ``DedupeConflict``.
        """
        try:
            kind = IntentKind(kind)
        except ValueError:
            raise InvalidValue("kind", f"is none of {', '.join(IntentKind)}") from None
        call = self._call(
            run_id,
            actor,
            expected_version=expected_version,
            dedupe_key=dedupe_key,
            correlation_id=correlation_id,
            causation_id=causation_id,
            connection=connection,
        )

        def decide(moment: Moment, history: History) -> Plan[RequestAnswer]:
            if history.run.terminal:
                return Plan(_terminal)
            decisions.require_runtime(history)
            decision = decisions.request_cancellation(history, kind, reason)
            if decision.refusal is Refusal.REPEATED:
                return Plan(_requested_before)
            attempt = history.active_attempt
            if attempt is None:
                return Plan(_requested, decision.drafts, end_of_retry(moment, history))
            changes = to_be_stopped(moment, history, attempt.id)
            return Plan(_requested, decision.drafts, changes, wakes=self._cancellations)

        again = _again(decisions.cancel_requested(kind, reason), dedupe_key or "")
        return self._commands.run(call, Command(decide, again, _of_a_request))

    def stop_state(self, attempt_id: str) -> StopState | None:
        """Read whether an Attempt is to stop, for its host, which looks often (R9.5); None where there is none."""
        with self._database.reading() as reading:
            return read_stop_state(reading, canonical_id("attempt id", attempt_id))

    def cancellation_bell(self) -> Listener:
        """Give what a committed cancellation request rings, here and on PostgreSQL everywhere (R9.4).

        It connects when it is first waited at. Close it in the thread that waits.
        """
        return self._cancellations.listen()

    def request_due_deadlines(self, *, actor: Actor, limit: int | None = None) -> int:
        """Ask every Run to stop whose deadline has passed, a page of them, and say how many that were (R10.4).

        Deadlines are judged by the database's time (R5.1); on SQLite by the wall clock, which is what they were given
        in. ``limit`` is how many Runs a page has, ``fact_page`` of the settings where it is None. Calls that find full
        pages go on behind one another, and begin anew after the last page.
        """
        limit = self._within("fact_page", limit)
        with self._database.reading() as reading:
            passed = read_passed(reading, limit, self._overdue_from_ms)
        requested = 0
        for run_id in passed:
            try:
                answer = self.request_cancellation(run_id, actor=actor, kind=IntentKind.TIMEOUT)
            except (Conflict, NotAllowed, DatabaseCorrupt) as error:
                # One Run that nobody here may stop, or that is damaged, must not keep the others running.
                log.warning("run %s is over its time and is not asked to stop: %s", run_id, error)
                continue
            requested += isinstance(answer, CancelRequested)
        # Nor may a page full of them: the next call goes on behind it, and begins anew after the last page.
        behind_ms = max((*passed.values(), self._overdue_from_ms + 1))
        self._overdue_from_ms = behind_ms if len(passed) == limit else 0
        return requested


def _requested(history: History, _: tuple[Fact, ...]) -> RequestAnswer:
    return CancelRequested(history.run_id, history.run.status, history.version, _intent_at(history))


def _requested_before(history: History, _: tuple[Fact, ...]) -> RequestAnswer:
    return AlreadyRequested(history.run_id, history.run.status, _intent_at(history))


def _terminal(history: History, _: tuple[Fact, ...]) -> RequestAnswer:
    return AlreadyTerminal(history.run_id, history.run.status)


def _again(asked: RunCancelRequested, dedupe_key: str) -> Callable[[History], RequestAnswer]:
    """Say how to answer a request that comes again by its key, if it asks for the same (R3.4)."""

    def answer(history: History) -> RequestAnswer:
        intent = history.run.intent
        if intent is None or (intent.kind, intent.reason) != (asked.kind, asked.reason):
            raise DedupeConflict(history.run_id, dedupe_key)
        return _terminal(history, ()) if history.run.terminal else _requested_before(history, ())

    return answer


def _of_a_request(fact: Fact) -> bool:
    """Whether a fact is the last one of a request: where nothing was to be stopped, that of the Run's end (R6.3)."""
    return isinstance(fact.payload, RunCancelRequested | RunCancelled | RunTimedOut)


def _intent_at(history: History) -> int:
    intent = history.run.intent
    return 0 if intent is None else intent.requested_at_ms

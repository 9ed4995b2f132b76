"""
Reports: what an executor says of its Attempt (R2.7).

A report names the callback token that was given at the claim and a sequence, 1, 2, 3 …; one at or below the recorded
sequence is a repetition and writes nothing. Where the caller names no sequence the next one is taken, which is right
for an executor that reports in one thread and hears the answers. A report on an Attempt that has ended is noted once
as late and changes no status.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from runfacts.domain import decisions
from runfacts.domain.actors import Actor
from runfacts.domain.answers import (
    AttemptClaim,
    Finished,
    LateCallback,
    Recorded,
    Repeated,
    StartRefused,
    StopNotProven,
)
from runfacts.domain.attempt import Attempt
from runfacts.domain.decisions import Decision, Refusal
from runfacts.domain.errors import AttemptNotFound, InvalidValue, TokenRefused
from runfacts.domain.history import History
from runfacts.domain.ids import canonical_id
from runfacts.domain.leases import TokenPurpose, matches
from runfacts.domain.limits import HANDLE_MAX
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payloads import RunRetryWait
from runfacts.infrastructure.api.attempt_commands import start_refused
from runfacts.infrastructure.api.claim_changes import closing, end_of_cancellation
from runfacts.infrastructure.api.core import LedgerCore, plain, repeated
from runfacts.infrastructure.api.run_commands import recorded
from runfacts.infrastructure.commands import Call, Caller, Command, Moment, Plan
from runfacts.infrastructure.database.transactions import Change
from runfacts.infrastructure.stores.dispatches import read_target
from runfacts.infrastructure.stores.executions import (
    COUNT_CALLBACK,
    END_EXECUTION,
    STORE_HANDLE,
    Execution,
)
from runfacts.infrastructure.stores.recovery_rows import to_be_retried

_SEQUENCE_MAX = 1 << 52
_PID_MAX = (1 << 31) - 1
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Report:
    """A report whose token is good and whose sequence is new."""

    attempt_id: str
    execution: Execution
    sequence: int
    said_late: frozenset[tuple[str, int | None, int | None]] = frozenset()
    """Late reports that are noted already, where the caller names no sequence to tell a new one by."""

    def key(self) -> dict[str, int | str]:
        """Give the parameters that count this report, if no other was faster."""
        return {
            "key_attempt_id": self.attempt_id,
            "expected_sequence": self.execution.callback_sequence,
            "callback_sequence": self.sequence,
        }


class Reports(LedgerCore):
    """Take in what executors report."""

    def running(
        self,
        claim: AttemptClaim,
        *,
        actor: Actor,
        handle: str | None = None,
        pid: int | None = None,
        sequence: int | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Recorded | Repeated | StartRefused | LateCallback:
        """Confirm the Attempt's process; its handle is kept beside the lease, never in facts (R8.2).

        Refused once a cancellation was requested: Attempt and Run are ended and the process must not be let through
        its gate (R6.4). A gated executor must give a handle.
        """
        if handle is not None and len(plain("handle", handle, HANDLE_MAX).encode()) > HANDLE_MAX:
            raise InvalidValue("handle", f"is longer than {HANDLE_MAX} bytes")
        if pid is not None and not 0 < pid <= _PID_MAX:
            raise InvalidValue("pid", "is not a process id")

        def plan(
            moment: Moment, history: History, report: _Report
        ) -> Plan[Recorded | Repeated | StartRefused | LateCallback]:
            if report.execution.gated and handle is None:
                raise InvalidValue("handle", "must be given by a gated executor")
            decision = decisions.confirm_running(history, report.attempt_id)
            if decision.refusal is Refusal.CANCELLATION_REQUESTED:
                return Plan(
                    lambda history, _: start_refused(history, report.attempt_id, Refusal.CANCELLATION_REQUESTED),
                    decision.drafts,
                    (*end_of_cancellation(moment, history), _end(moment, history, report)),
                )
            if decision.refusal is not None:
                return _not_done(decision, report, "running")
            stored = {"handle": handle, "pid": pid, "seen_at_ms": moment.now_ms} | report.key()
            return Plan(recorded, decision.drafts, (Change(STORE_HANDLE, stored),))

        call = self._call_on(claim, actor, correlation_id, causation_id, connection)
        return self._report(claim, call, sequence, plan)

    def wait_for_approval(
        self,
        claim: AttemptClaim,
        *,
        actor: Actor,
        reason: str | None = None,
        sequence: int | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Recorded | Repeated | LateCallback:
        """Let a running Run wait for somebody's approval; its Attempt stays active (R2.3)."""

        def plan(moment: Moment, history: History, report: _Report) -> Plan[Recorded | Repeated | LateCallback]:
            del moment
            decision = decisions.wait_for_approval(history, report.attempt_id, reason)
            return _counted(decision, report, "waiting_approval")

        call = self._call_on(claim, actor, correlation_id, causation_id, connection)
        return self._report(claim, call, sequence, plan)

    def go_on(
        self,
        claim: AttemptClaim,
        *,
        actor: Actor,
        sequence: int | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Recorded | Repeated | LateCallback:
        """Let a Run go on that waited for an approval (R2.3)."""

        def plan(moment: Moment, history: History, report: _Report) -> Plan[Recorded | Repeated | LateCallback]:
            del moment
            return _counted(decisions.go_on(history, report.attempt_id), report, "going_on")

        call = self._call_on(claim, actor, correlation_id, causation_id, connection)
        return self._report(claim, call, sequence, plan)

    def finish(
        self,
        claim: AttemptClaim,
        outcome: Outcome,
        *,
        actor: Actor,
        sequence: int | None = None,
        group_left: bool = False,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Finished | Repeated | LateCallback | StopNotProven:
        """End the Attempt with its outcome, and move its Run with it (R2.7).

        A failed Attempt becomes a retry where the Run's policy allows one (R12.1). ``group_left`` says that members
        of the command's process group are not proven gone: the outcome is recorded with that note, but a Run that is
        being cancelled does not end by it (``StopNotProven``, R6.5).
        """

        def plan(
            moment: Moment, history: History, report: _Report
        ) -> Plan[Finished | Repeated | LateCallback | StopNotProven]:
            if sequence is None and _reported_before(history.attempts.get(report.attempt_id), outcome):
                return Plan(lambda history, _: repeated(history))
            decision = decisions.finish(history, report.attempt_id, outcome, moment.now_ms, group_left=group_left)
            if decision.refusal is Refusal.GROUP_LIVES:
                answer = StopNotProven(history.run.status, history.attempts[report.attempt_id].status)
                return Plan(lambda _, __: answer)
            if decision.refusal is not None:
                return _not_done(decision, report, outcome.kind.value, outcome)
            return Plan(
                lambda history, _: Finished(
                    history.run.status,
                    history.attempts[report.attempt_id].status,
                    history.version,
                    history.run.retry_due_at_ms,
                ),
                decision.drafts,
                (
                    *end_of_cancellation(moment, history),
                    *_retry(moment, decision),
                    _end(moment, history, report),
                ),
            )

        call = self._call_on(claim, actor, correlation_id, causation_id, connection)
        return self._report(claim, call, sequence, plan)

    def _report(
        self,
        claim: AttemptClaim,
        call: Call,
        sequence: int | None,
        plan: Callable[[Moment, History, _Report], Plan[Answer | Repeated]],
    ) -> Answer | Repeated:
        """Check token and sequence, then let the report be planned."""
        if sequence is not None and not 0 < sequence < _SEQUENCE_MAX:
            raise InvalidValue("sequence", "is not 1, 2, 3 …")
        attempt_id = canonical_id("attempt id", claim.attempt_id)

        def decide(moment: Moment, history: History) -> Plan[Answer | Repeated]:
            decisions.require_runtime(history)
            execution = moment.execution
            if execution is None or execution.run_id != call.run_id:
                raise AttemptNotFound(attempt_id)
            if not matches(TokenPurpose.CALLBACK, claim.callback_token, execution.callback_token_digest):
                self._count_refused("token", attempt_id)
                raise TokenRefused(attempt_id)
            if sequence is not None and sequence <= execution.callback_sequence:
                return Plan(lambda history, _: repeated(history))
            number = execution.callback_sequence + 1 if sequence is None else sequence
            attempt = history.attempts.get(attempt_id)
            said = frozenset() if attempt is None or sequence is not None else attempt.late_reports
            return plan(moment, history, _Report(attempt_id, execution, number, said))

        command: Command[Answer | Repeated] = Command(decide)
        return self._commands.run(call, command)


def _counted(decision: Decision, report: _Report, what: str) -> Plan[Recorded | Repeated | LateCallback]:
    """Plan a report that changes the Run and counts itself."""
    if decision.refusal is not None:
        return _not_done(decision, report, what)
    return Plan(recorded, decision.drafts, (Change(COUNT_CALLBACK, report.key()),))


def _not_done(decision: Decision, report: _Report, what: str, outcome: Outcome | None = None) -> Plan[Any]:
    """Plan the answer to a report that came again, or too late."""
    if decision.refusal is Refusal.REPEATED:
        return Plan(lambda history, _: repeated(history))
    numbers = (None, None) if outcome is None else (outcome.exit_code, outcome.signal)
    if (what, *numbers) in report.said_late:
        return Plan(lambda history, _: repeated(history))
    late = decisions.late_callback(report.attempt_id, report.sequence, what, outcome)
    return Plan(
        lambda history, _: LateCallback(
            history.run.status, history.attempts[report.attempt_id].status, history.version
        ),
        (late,),
        (Change(COUNT_CALLBACK, report.key()),),
    )


def _end(moment: Moment, history: History, report: _Report) -> Change:
    """Close the execution with its Attempt."""
    return Change(END_EXECUTION, report.key() | closing(moment, history))


def _retry(moment: Moment, decision: Decision) -> tuple[Change, ...]:
    """Let the retry authority queue the Run when its retry is due, if there is to be one (R12.1)."""
    last = decision.drafts[-1]
    if not isinstance(last.payload, RunRetryWait) or last.attempt_id is None or moment.execution is None:
        return ()
    target = read_target(moment.reading, moment.execution.run_id, last.attempt_id)
    if target is None:
        return ()
    due_at_ms, left = last.payload.due_at_ms, last.payload.group_left is True
    return (to_be_retried(target, due_at_ms, moment.now_ms, group_left=left),)


def _reported_before(attempt: Attempt | None, outcome: Outcome) -> bool:
    """Whether the Attempt ended with just this outcome: the same report again, from somebody who names no sequence."""
    if attempt is None or attempt.active:
        return False
    # Where an intent ended it, what was reported is what was observed (R6.5).
    return ((attempt.observed or attempt.status).value, attempt.exit_code, attempt.signal) == (
        outcome.kind.value,
        outcome.exit_code,
        outcome.signal,
    )

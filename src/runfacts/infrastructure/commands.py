"""
How every command runs: read, decide, write, in one short transaction, and again if somebody was faster (R4.1, R4.3).

``Commands.run`` reads the Run's history, answers a recorded dedupe key before it looks at any version (R3.4), asks
the command to decide on what it read, and writes what was decided. A lost race ends the transaction without a trace
and the command is decided anew on what is recorded then, at most ``decide_retries`` times; a decision is never
written onto a state that it was not made for.

When the connection breaks while COMMIT is under way, the next reading tells what became of it (R4.6): the fact that
ends the command's chain is there, or it is not. If it commits after that reading after all, the compare-and-set of
the second try fails, and the next reading finds it. So what is committed once is recorded once, and the caller hears
the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Never, TypeAlias, TypeVar

from sqlalchemy import Connection

from runfacts.domain.actors import Actor
from runfacts.domain.errors import (
    Contended,
    DatabaseError,
    DedupeConflict,
    InvalidValue,
    OutcomeUnknown,
    RunNotFound,
    RunVersionConflict,
)
from runfacts.domain.facts import Fact
from runfacts.domain.history import Draft, History, RecordedBy
from runfacts.domain.texts import KEY_MAX, is_plain_name
from runfacts.infrastructure.database.connections import Database
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.transactions import Change, Reading, Transaction
from runfacts.infrastructure.database.wakeups import FACTS, Wakeups
from runfacts.infrastructure.stores.executions import Execution
from runfacts.infrastructure.stores.facts import INSERT_FACT, read_facts
from runfacts.infrastructure.stores.ground import Ground, brought_up_to, read_ground
from runfacts.infrastructure.stores.kept import KeptHistories
from runfacts.infrastructure.stores.writes import Before, write

if TYPE_CHECKING:
    # The ORM is slow to load, and only a caller who has loaded it can have a session.
    from sqlalchemy.orm import Session

Answer = TypeVar("Answer")
Committed: TypeAlias = Callable[[History, tuple[Fact, ...]], None]
Caller: TypeAlias = "Connection | Session"
"""A connection or session of the caller, whose transaction our writes join (R4.5)."""


@dataclass(frozen=True, slots=True)
class Call:
    """What every command is given, whatever it does."""

    run_id: str
    actor: Actor
    expected_version: int | None = None
    dedupe_key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    connection: Caller | None = None
    attempt_id: str | None = None
    """The Attempt that the command is about, whose execution it must know."""

    def __post_init__(self) -> None:
        """Refuse keys that cannot be stored (``InvalidValue``)."""
        for name in ("dedupe_key", "correlation_id", "causation_id"):
            value = getattr(self, name)
            if value is not None and not is_plain_name(value, KEY_MAX):
                raise InvalidValue(name, f"is not a text of 1 to {KEY_MAX} printable characters")


@dataclass(frozen=True, slots=True)
class Moment:
    """What a decision is made on besides the history."""

    reading: Reading
    now_ms: int
    execution: Execution | None
    """Of the Attempt that the call names; None where there is none."""


@dataclass(frozen=True, slots=True)
class Plan(Generic[Answer]):
    """What a command wants written, and what it then answers."""

    answer: Callable[[History, tuple[Fact, ...]], Answer]
    drafts: tuple[Draft, ...] = ()
    changes: tuple[Change, ...] = ()
    """Rows of claims and executions, in the order in which they are locked (R4.4)."""
    wakes: Wakeups | None = None
    """Who waits for this besides the followers of facts, where something is recorded (R9.4)."""


def takes_no_key(history: History) -> Never:
    """Answer no repetition: the command knows its own, and nobody can give it a dedupe key."""
    msg = f"this command on run {history.run_id} takes no dedupe key"
    raise LookupError(msg)


@dataclass(frozen=True, slots=True)
class Command(Generic[Answer]):
    """One command: how it decides, and how it knows and answers its own repetition."""

    decide: Callable[[Moment, History], Plan[Answer]]
    repeated: Callable[[History], Answer] = takes_no_key
    """The answer where the dedupe key is recorded."""
    same: Callable[[Fact], bool] = lambda _: False
    """Whether the fact that is recorded with the dedupe key is what this command would record (R3.4)."""
    begin: str | None = None
    """The project of a Run that is not there yet; None where the Run must exist."""
    fence: Callable[[Reading], Answer | None] | None = None
    """The answer where the right to run it is over, looked for before the Run is read (R11.6); None where it lasts."""


@dataclass(slots=True)
class _Try(Generic[Answer]):
    """What one try has in hand when its transaction ends."""

    history: History | None = None
    facts: tuple[Fact, ...] = ()
    plan: Plan[Answer] | None = None
    answer: list[Answer] = field(default_factory=list)


class Commands:
    """Runs commands on one database."""

    def __init__(self, database: Database, decide_retries: int, committed: Committed | None = None) -> None:
        """Decide each command at most ``decide_retries`` times after a lost race.

        ``committed`` is told the facts of each commit of ours, and their Run as it is then.
        """
        self._database = database
        self._tries = decide_retries + 1
        self._told = committed
        self._kept = KeptHistories()
        self._wakeups = database.wakeups(FACTS)

    def run(self, call: Call, command: Command[Answer]) -> Answer:
        """Run a command to its answer.

        Raises ``RunNotFound``, ``RunVersionConflict`` (only where the call names a version), ``DedupeConflict``,
        ``Contended``, ``OutcomeUnknown``, what the decision raises, and ``DatabaseError`` where the database cannot be
        used.
        """
        # Every try that may have been committed: the first may arrive after the second was sent.
        sent: list[_Try[Answer]] = []
        unanswered: OutcomeUnknown | None = None
        for _ in range(self._tries):
            attempt: _Try[Answer] = _Try()
            try:
                with self._transaction(call) as transaction:
                    self._one_try(transaction, call, command, attempt, sent)
            except LostRace:
                continue
            except OutcomeUnknown as error:
                if attempt.facts:
                    sent.append(attempt)
                    unanswered = error
                continue
            except DatabaseError as error:
                # Whatever it is that keeps this try from an answer, what became of an earlier one is not known by it.
                if unanswered is not None:
                    raise unanswered from error
                raise
            if call.connection is None:
                self._committed(attempt)
            return attempt.answer[0]
        raise unanswered or Contended(call.run_id, self._tries)

    def _committed(self, attempt: _Try[Answer]) -> None:
        if attempt.history is not None:
            self._kept.put(attempt.history)
        if attempt.facts:
            self._wakeups.announce()
            if self._told is not None and attempt.history is not None:
                self._told(attempt.history, attempt.facts)
        if attempt.plan is not None and attempt.plan.wakes is not None:
            attempt.plan.wakes.announce()

    def _transaction(self, call: Call) -> AbstractContextManager[Transaction]:
        if call.connection is None:
            return self._database.command()
        return self._database.joined(call.connection)

    def _one_try(
        self,
        transaction: Transaction,
        call: Call,
        command: Command[Answer],
        attempt: _Try[Answer],
        sent: Sequence[_Try[Answer]],
    ) -> None:
        # What was sent may be recorded although the right to send it is over by now.
        if not sent and _fenced(transaction, command, attempt):
            return
        history, ground = self._read(transaction, call, command)
        for earlier, answer in _landed(transaction, history, sent):
            attempt.plan = earlier.plan
            attempt.answer.append(answer)
            return
        if sent and _fenced(transaction, command, attempt):
            return
        if _repeated(call, command, history, attempt):
            return
        if call.expected_version is not None and call.expected_version != history.version:
            raise RunVersionConflict(call.run_id, call.expected_version, history.version)
        before = Before.of(history)
        moment = _moment(transaction, ground)
        plan = command.decide(moment, history)
        facts: tuple[Fact, ...] = ()
        if plan.drafts:
            by = RecordedBy(call.actor, moment.now_ms, call.correlation_id, call.causation_id)
            facts = history.record(_keyed(plan.drafts, call.dedupe_key), by)
            attempt.plan = plan
            attempt.facts = facts
            write(transaction, before, history, facts, plan.changes)
            self._announce_within(transaction, call, plan)
        elif plan.changes:
            transaction.write(plan.changes, INSERT_FACT, [])
        attempt.answer.append(plan.answer(history, facts))
        if history.version:
            attempt.history = history

    def _announce_within(self, transaction: Transaction, call: Call, plan: Plan[Answer]) -> None:
        if call.connection is not None:
            # That commit is the caller's, who alone knows when it is: the database must tell (R4.5).
            for waiting in filter(None, (self._wakeups, plan.wakes)):
                waiting.announce_within(transaction, call.connection)

    def _read(self, transaction: Transaction, call: Call, command: Command[Answer]) -> tuple[History, Ground | None]:
        """Read the Run as it is, or begin it (``RunNotFound``)."""
        ground = read_ground(transaction, call.run_id, call.attempt_id)
        if ground is not None:
            # In a caller's transaction there may be facts of this Run that are never committed: nothing is kept from
            # there.
            kept = self._kept.take(call.run_id) if call.connection is None else None
            return brought_up_to(transaction, call.run_id, ground, kept), ground
        if command.begin is None:
            raise RunNotFound(call.run_id)
        return History(call.run_id, command.begin), None


def _fenced(transaction: Transaction, command: Command[Answer], attempt: _Try[Answer]) -> bool:
    """Answer a command whose right is over; whether it is."""
    answer = None if command.fence is None else command.fence(transaction)
    if answer is None:
        return False
    attempt.answer.append(answer)
    return True


def _repeated(call: Call, command: Command[Answer], history: History, attempt: _Try[Answer]) -> bool:
    """Answer a command whose dedupe key is recorded (``DedupeConflict``, R3.4); whether it is."""
    recorded = None if call.dedupe_key is None else history.recorded_with(call.dedupe_key)
    if recorded is None:
        return False
    if not command.same(recorded):
        raise DedupeConflict(call.run_id, recorded.dedupe_key or "")
    attempt.answer.append(command.repeated(history))
    attempt.history = history
    return True


def _moment(transaction: Transaction, ground: Ground | None) -> Moment:
    if ground is None:
        return Moment(transaction, transaction.now_ms(), None)
    return Moment(transaction, ground.now_ms, ground.execution)


def _keyed(drafts: tuple[Draft, ...], dedupe_key: str | None) -> tuple[Draft, ...]:
    """Put the caller's dedupe key onto the command's last fact: once per Run, like the command (R3.3, R3.4)."""
    if dedupe_key is None:
        return drafts
    return (*drafts[:-1], replace(drafts[-1], dedupe_key=dedupe_key))


def _landed(
    transaction: Transaction, history: History, sent: Sequence[_Try[Answer]]
) -> Iterator[tuple[_Try[Answer], Answer]]:
    """Give the try that is recorded after all, and its answer, if one of those that were sent is."""
    for earlier in sent:
        last = earlier.facts[-1]
        if earlier.plan is None or history.version < last.sequence:
            continue
        recorded = read_facts(transaction, history.run_id)[: last.sequence]
        if recorded[-1].hash == last.hash:
            yield earlier, earlier.plan.answer(History.of(recorded), recorded[-len(earlier.facts) :])
            return

"""Commands on a Run as a whole: create it, queue it (R2.6)."""

from __future__ import annotations

from runfacts.domain import decisions
from runfacts.domain.actors import Actor
from runfacts.domain.answers import AlreadyCreated, Created, NotQueued, Recorded, Repeated
from runfacts.domain.decisions import Refusal
from runfacts.domain.errors import IdempotencyConflict, InvalidValue, RunNotFound
from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.domain.ids import canonical_id
from runfacts.domain.lifecycle import ExecutionOwner
from runfacts.domain.limits import TIME_MAX
from runfacts.domain.payloads import RunCreated, RunQueued
from runfacts.domain.retry import RetryPolicy
from runfacts.domain.stored_commands import StoredCommand
from runfacts.domain.texts import NAME_MAX
from runfacts.infrastructure.api.claim_changes import end_of_retry
from runfacts.infrastructure.api.core import LedgerCore, history_of, plain, repeated
from runfacts.infrastructure.commands import Caller, Command, Moment, Plan
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.board import find_by_key
from runfacts.infrastructure.stores.facts import read_history
from runfacts.infrastructure.stores.run_commands import insert_command, read_command
from runfacts.infrastructure.stores.view import view_of
from runfacts.infrastructure.tokens import new_id


class RunCommands(LedgerCore):
    """Create and queue Runs."""

    def create(
        self,
        *,
        actor: Actor,
        task: str,
        project: str = "default",
        policy: RetryPolicy | None = None,
        idempotency_key: str | None = None,
        retry_of_run_id: str | None = None,
        timeout_ms: int | None = None,
        deadline_at_ms: int | None = None,
        execution_owner: ExecutionOwner = ExecutionOwner.RUNTIME,
        command: StoredCommand | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Created | AlreadyCreated:
        """Record a new Run; its status is ``created``.

        With an ``idempotency_key`` that a Run of the project has, that Run is the answer and nothing is written; with
        another task or policy it is an ``IdempotencyConflict`` (R2.11); another ``command`` is not kept, and the answer
        says so (``differs``). ``retry_of_run_id`` names the Run that this
        one repeats by hand (R2.9; ``RunNotFound`` where there is none). ``timeout_ms`` bounds each Attempt from its
        start barrier, ``deadline_at_ms`` the Run as a whole (R10.4); both are kept for whoever enforces them.
        ``command`` is kept until the Run ends, for the workers that may host it once it is queued (R12.1).
        """
        return self._create(
            actor=actor,
            task=task,
            project=project,
            policy=policy,
            idempotency_key=idempotency_key,
            retry_of_run_id=retry_of_run_id,
            timeout_ms=timeout_ms,
            deadline_at_ms=deadline_at_ms,
            execution_owner=execution_owner,
            command=command,
            correlation_id=correlation_id,
            causation_id=causation_id,
            connection=connection,
        )

    def _create(
        self,
        *,
        actor: Actor,
        task: str,
        project: str,
        policy: RetryPolicy | None,
        idempotency_key: str | None,
        retry_of_run_id: str | None,
        timeout_ms: int | None,
        deadline_at_ms: int | None,
        execution_owner: ExecutionOwner = ExecutionOwner.RUNTIME,
        command: StoredCommand | None,
        queued: bool = False,
        correlation_id: str | None,
        causation_id: str | None,
        connection: Caller | None,
    ) -> Created | AlreadyCreated:
        """Create a Run, with its command and queued where that is asked for, in one transaction."""
        payload = RunCreated(
            task=plain("task", task, NAME_MAX),
            policy=policy or RetryPolicy(),
            execution_owner=ExecutionOwner(execution_owner),
            idempotency_key=None if idempotency_key is None else plain("idempotency_key", idempotency_key, NAME_MAX),
            retry_of_run_id=None if retry_of_run_id is None else canonical_id("retry_of_run_id", retry_of_run_id),
            timeout_ms=_time("timeout_ms", timeout_ms),
            deadline_at_ms=_time("deadline_at_ms", deadline_at_ms),
        )
        plain("project", project, NAME_MAX)
        if command is not None and payload.execution_owner is not ExecutionOwner.RUNTIME:
            raise InvalidValue("command", "is of no use to a run that another system executes")
        call = self._call(
            new_id(), actor, correlation_id=correlation_id, causation_id=causation_id, connection=connection
        )

        def decide(moment: Moment, history: History) -> Plan[Created | AlreadyCreated]:
            if payload.idempotency_key is not None:
                found = find_by_key(moment.reading, project, payload.idempotency_key)
                if found is not None:
                    existing = _existing(moment.reading, found, payload, command)
                    return Plan(lambda _, __: existing)
            if payload.retry_of_run_id is not None and read_history(moment.reading, payload.retry_of_run_id) is None:
                raise RunNotFound(payload.retry_of_run_id)
            return Plan(
                lambda history, _: Created(view_of(moment.reading, history, new=True)),
                decisions.create(payload, queued=queued).drafts,
                () if command is None else (insert_command(history.run_id, command),),
            )

        return self._commands.run(call, Command(decide, _never, lambda _: False, project))

    def queue(
        self,
        run_id: str,
        *,
        actor: Actor,
        expected_version: int | None = None,
        dedupe_key: str | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
        connection: Caller | None = None,
    ) -> Recorded | Repeated | NotQueued:
        """Let a Run wait to be claimed: a created one, or one whose retry is due (R2.3, R12.1)."""
        call = self._call(
            run_id,
            actor,
            expected_version=expected_version,
            dedupe_key=dedupe_key,
            correlation_id=correlation_id,
            causation_id=causation_id,
            connection=connection,
        )

        def decide(moment: Moment, history: History) -> Plan[Recorded | Repeated | NotQueued]:
            decisions.require_runtime(history)
            decision = decisions.queue(history, moment.now_ms)
            if decision.refusal is Refusal.REPEATED:
                return Plan(lambda history, _: repeated(history))
            if decision.refusal is not None:
                answer = NotQueued(history.run_id, history.run.status, decision.refusal)
                return Plan(lambda _, __: answer)
            return Plan(recorded, decision.drafts, end_of_retry(moment, history))

        return self._commands.run(call, Command(decide, repeated, lambda fact: isinstance(fact.payload, RunQueued)))


def recorded(history: History, facts: tuple[Fact, ...]) -> Recorded:
    """Answer what was recorded."""
    return Recorded(history.run_id, history.run.status, history.version, facts)


def _existing(reading: Reading, run_id: str, payload: RunCreated, command: StoredCommand | None) -> AlreadyCreated:
    """Answer with the Run that has the idempotency key, if it was created with the same task and policy (R2.11).

    Another command is no conflict, but it is said: whoever gave it would think that it runs.
    """
    history = history_of(reading, run_id)
    for field, there, asked in (
        ("task", history.run.task, payload.task),
        ("policy", history.run.policy, payload.policy),
    ):
        if there != asked:
            raise IdempotencyConflict(run_id, field)
    kept = None if command is None else read_command(reading, run_id)
    differs = None if kept is None or command is None else kept.differs_from(command)
    return AlreadyCreated(view_of(reading, history), differs)


def _never(history: History) -> Created | AlreadyCreated:
    msg = f"run {history.run_id} was created without a dedupe key"
    raise LookupError(msg)


def _time(name: str, value: int | None) -> int | None:
    if value is not None and (type(value) is not int or not 0 < value < TIME_MAX):
        raise InvalidValue(name, f"is not a whole number between 1 and {TIME_MAX}, in milliseconds")
    return value

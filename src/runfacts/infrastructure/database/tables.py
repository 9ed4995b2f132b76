"""
The tables, once for both databases, with every constraint that the rules name.

Facts are append-only (R1.1); triggers beside these tables refuse everything but INSERT (``sql/append_only.*.sql``).
``runs`` and ``attempts`` are current state, written in the same transaction as the facts (R1.3). ``executions`` holds
claims and what is needed to find a process again; it is never rebuilt from facts (R1.2).

Constraints stand here and not only in the domain because other programs reach a database, too. No condition can
become NULL and so slip through (a CHECK lets NULL pass): every one compares NOT NULL columns, ``IS NULL`` tests, or
says what NULL means.

Times are UTC milliseconds (``*_at_ms``); a length of time ends in ``_ms``. Ids are canonical UUID text. Flags are 0
or 1.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    Table,
    UniqueConstraint,
    and_,
    func,
    literal_column,
    not_,
    or_,
)

from runfacts.domain.actors import ACTOR_ID_MAX, ActorType
from runfacts.domain.lifecycle import (
    ACTIVE_ATTEMPT,
    RUN_WITH_ATTEMPT,
    TERMINAL_RUN,
    AttemptStatus,
    ExecutionOwner,
    IntentKind,
    RunStatus,
)
from runfacts.domain.limits import HANDLE_MAX, PAYLOAD_MAX
from runfacts.domain.texts import ERROR_CODE_MAX, ERROR_SUMMARY_MAX, KEY_MAX, NAME_MAX
from runfacts.infrastructure.database.columns import (
    among,
    at_least,
    boot_times,
    both_or_neither,
    check,
    exactly_when,
    lengths,
    number,
    optional,
    optional_number,
    or_null,
    required,
    texts,
)
from runfacts.infrastructure.database.dialects import big_integer, identifier, octets

metadata: Final = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)
"""All tables of a ledger. The names of constraints are part of the schema: errors are recognised by them."""

UUID_LENGTH: Final = 36
DIGEST_LENGTH: Final = 64
PATH_MAX: Final = 4_096
POLICY_MAX: Final = 4_096
SIGNAL_MAX: Final = 64


def run_has_attempt(status: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether a Run of that status normally has an active Attempt: the condition of ``ix_runs_ownerless``."""
    return among(status, RUN_WITH_ATTEMPT)


def attempt_is_active(status: ColumnElement[str]) -> ColumnElement[bool]:
    """Whether an Attempt of that status is active: the condition of ``uq_attempts_active``."""
    return among(status, ACTIVE_ATTEMPT)


def _table(name: str, *columns: Column[Any]) -> Table:
    # Strict: without it SQLite stores a text in an INTEGER column and says nothing.
    return Table(name, metadata, *columns, sqlite_strict=True)


def _partial(name: str, condition: ColumnElement[bool], *columns: Column[Any], unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


facts: Final = _table(
    "facts",
    # PostgreSQL: an identity with CACHE 1 that only the INSERT itself can draw from; reading in order without a lock
    # stands on it (R3.9). SQLite: the row number, one more than the highest one. AUTOINCREMENT would only add a
    # second write per fact: it keeps the number of a deleted row from being used again, and no fact is ever deleted.
    Column(
        "position", big_integer(), Identity(always=True, start=1, increment=1, cache=1, cycle=False), primary_key=True
    ),
    required("run_id"),
    number("sequence"),
    required("type"),
    number("schema_version"),
    required("project"),
    optional("attempt_id"),
    required("actor_type"),
    optional("actor_id"),
    optional("dedupe_key"),
    optional("correlation_id"),
    optional("causation_id"),
    number("recorded_at_ms"),
    required("payload"),
    required("aggregate_id"),
    number("aggregate_version"),
    required("hash"),
)
"""The log (R3.1). Only ever inserted into."""
facts.append_constraint(UniqueConstraint(facts.c.run_id, facts.c.sequence))
facts.append_constraint(UniqueConstraint(facts.c.aggregate_id, facts.c.aggregate_version))
_partial("uq_facts_run_id_dedupe_key", facts.c.dedupe_key.is_not(None), facts.c.run_id, facts.c.dedupe_key, unique=True)
_partial("ix_facts_attempt_id_position", facts.c.attempt_id.is_not(None), facts.c.attempt_id, facts.c.position)
_partial("ix_facts_actor_id_position", facts.c.actor_id.is_not(None), facts.c.actor_id, facts.c.position)
Index(None, facts.c.type, facts.c.position)
# Facts of later versions of their types are few or none, and somebody asks for them (R3.7).
_partial(
    "ix_facts_later_versions",
    facts.c.schema_version > literal_column("1"),
    facts.c.type,
    facts.c.schema_version,
)
Index(None, facts.c.project, facts.c.position)
Index(None, facts.c.recorded_at_ms, facts.c.position)
lengths(facts, UUID_LENGTH, "run_id", "attempt_id", "aggregate_id")
lengths(facts, DIGEST_LENGTH, "hash")
texts(
    facts,
    type=NAME_MAX,
    project=NAME_MAX,
    actor_id=ACTOR_ID_MAX,
    dedupe_key=KEY_MAX,
    correlation_id=KEY_MAX,
    causation_id=KEY_MAX,
)
at_least(facts, 1, "position", "sequence", "schema_version", "aggregate_version")
at_least(facts, 0, "recorded_at_ms")
check(
    facts,
    actor_type=among(facts.c.actor_type, ActorType),
    payload=octets(facts.c.payload).between(2, PAYLOAD_MAX),
)

runs: Final = _table(
    "runs",
    Column("run_id", identifier(), primary_key=True),
    required("project"),
    required("task"),
    required("status"),
    number("version"),
    required("head_hash"),
    required("execution_owner"),
    required("policy"),
    optional("idempotency_key"),
    optional("retry_of_run_id"),
    optional("active_attempt_id"),
    number("attempt_count"),
    optional_number("intent_at_ms"),
    optional("intent_kind"),
    optional_number("deadline_at_ms"),
    optional_number("retry_due_at_ms"),
    number("attested"),
    number("created_at_ms"),
    number("updated_at_ms"),
    optional_number("finished_at_ms"),
)
"""Every Run as it is now; the row that every command compares and sets by ``version``."""
_partial(
    "uq_runs_project_idempotency_key",
    runs.c.idempotency_key.is_not(None),
    runs.c.project,
    runs.c.idempotency_key,
    unique=True,
)
Index("ix_runs_board", runs.c.created_at_ms, runs.c.run_id)
Index("ix_runs_board_status", runs.c.status, runs.c.created_at_ms, runs.c.run_id)
Index("ix_runs_board_project", runs.c.project, runs.c.created_at_ms, runs.c.run_id)
_partial(
    "ix_runs_ownerless",
    and_(runs.c.active_attempt_id.is_(None), run_has_attempt(runs.c.status)),
    runs.c.updated_at_ms,
    runs.c.run_id,
)
_partial(
    "ix_runs_deadline",
    and_(runs.c.deadline_at_ms.is_not(None), runs.c.finished_at_ms.is_(None), runs.c.intent_at_ms.is_(None)),
    runs.c.deadline_at_ms,
    runs.c.run_id,
)
# Runs whose stop is not proven (R6.2).
_partial(
    "ix_runs_intended",
    and_(runs.c.intent_at_ms.is_not(None), runs.c.finished_at_ms.is_(None)),
    runs.c.intent_at_ms,
    runs.c.run_id,
)
_partial("ix_runs_attested", runs.c.attested == literal_column("1"), runs.c.updated_at_ms, runs.c.run_id)
lengths(runs, UUID_LENGTH, "run_id", "retry_of_run_id", "active_attempt_id")
lengths(runs, DIGEST_LENGTH, "head_hash")
texts(runs, project=NAME_MAX, task=NAME_MAX, idempotency_key=KEY_MAX)
at_least(runs, 1, "version")
at_least(runs, 0, "attempt_count", "created_at_ms", "intent_at_ms", "deadline_at_ms")
check(
    runs,
    status=among(runs.c.status, RunStatus),
    execution_owner=among(runs.c.execution_owner, ExecutionOwner),
    attested=runs.c.attested.between(0, 1),
    intent_kind=or_null(runs.c.intent_kind, among(runs.c.intent_kind, IntentKind)),
    policy=octets(runs.c.policy).between(2, POLICY_MAX),
    intent=both_or_neither(runs.c.intent_at_ms, runs.c.intent_kind),
    active_attempt=or_null(runs.c.active_attempt_id, and_(run_has_attempt(runs.c.status), runs.c.attempt_count >= 1)),
    finished=exactly_when(among(runs.c.status, TERMINAL_RUN), runs.c.finished_at_ms),
    retry_due=exactly_when(among(runs.c.status, [RunStatus.RETRY_WAIT]), runs.c.retry_due_at_ms),
    updated=runs.c.updated_at_ms >= runs.c.created_at_ms,
)

executions: Final = _table(
    "executions",
    Column("attempt_id", identifier(), primary_key=True),
    Column("run_id", identifier(), ForeignKey(runs.c.run_id), nullable=False),
    required("executor_type"),
    number("gated"),
    required("scope"),
    optional("worker_id"),
    optional("handle"),
    optional_number("pid"),
    required("lease_token_digest"),
    number("lease_expires_at_ms"),
    optional("lease_boot_id"),
    optional_number("lease_expires_boot_ms"),
    number("callback_sequence"),
    required("callback_token_digest"),
    optional_number("deadline_at_ms"),
    optional("log_path"),
    optional("receipt_path"),
    optional_number("recover_at_ms"),
    optional_number("seen_at_ms"),
    optional_number("closed_at_ms"),
)
"""
Who executes an Attempt, until when, and how its process can be proven (R1.2, R5.2). The scope may be empty.

``recover_at_ms`` is when recovery may look next; null when it is an operator's, when the Attempt has ended, and once
somebody asked the Run to stop (R12.2). ``seen_at_ms`` is when its executor was heard of last; ``closed_at_ms`` when the
Attempt ended.
"""
_partial(
    "ix_executions_recovery",
    executions.c.recover_at_ms.is_not(None),
    executions.c.executor_type,
    executions.c.scope,
    executions.c.recover_at_ms,
    executions.c.attempt_id,
)
_partial(
    "ix_executions_deadline",
    and_(executions.c.deadline_at_ms.is_not(None), executions.c.closed_at_ms.is_(None)),
    executions.c.deadline_at_ms,
    executions.c.attempt_id,
)
# Where receipts may lie (R10.2): also of Runs that recovery does not look at, because they were asked to stop.
_partial(
    "ix_executions_open",
    executions.c.closed_at_ms.is_(None),
    executions.c.executor_type,
    executions.c.scope,
    executions.c.attempt_id,
)
Index(None, executions.c.run_id)
lengths(executions, UUID_LENGTH, "attempt_id", "lease_boot_id")
lengths(executions, DIGEST_LENGTH, "lease_token_digest", "callback_token_digest")
texts(executions, executor_type=NAME_MAX, worker_id=NAME_MAX, log_path=PATH_MAX, receipt_path=PATH_MAX)
at_least(executions, 1, "pid")
at_least(executions, 0, "callback_sequence", "lease_expires_at_ms", "lease_expires_boot_ms", "deadline_at_ms")
check(
    executions,
    gated=executions.c.gated.between(0, 1),
    scope=func.length(executions.c.scope) <= KEY_MAX,
    handle=or_null(executions.c.handle, octets(executions.c.handle).between(1, HANDLE_MAX)),
)
boot_times(executions, "boot_lease", "lease_boot_id", "lease_expires_boot_ms")

attempts: Final = _table(
    "attempts",
    Column(
        "attempt_id",
        identifier(),
        # Deferred, so that the rows of one claim may be written in the order in which rows are locked (R4.4, R11.1).
        ForeignKey(executions.c.attempt_id, deferrable=True, initially="DEFERRED"),
        primary_key=True,
    ),
    Column("run_id", identifier(), ForeignKey(runs.c.run_id), nullable=False),
    number("number"),
    required("status"),
    required("executor_type"),
    optional("worker_id"),
    optional_number("exit_code"),
    optional_number("signal"),
    optional("error_code"),
    optional("error_summary"),
    number("claimed_at_ms"),
    optional_number("started_at_ms"),
    optional_number("running_at_ms"),
    optional_number("finished_at_ms"),
)
"""Every Attempt as it is now."""
attempts.append_constraint(UniqueConstraint(attempts.c.run_id, attempts.c.number))
_partial("uq_attempts_active", attempt_is_active(attempts.c.status), attempts.c.run_id, unique=True)
lengths(attempts, UUID_LENGTH, "attempt_id")
texts(
    attempts,
    executor_type=NAME_MAX,
    worker_id=NAME_MAX,
    error_code=ERROR_CODE_MAX,
    error_summary=ERROR_SUMMARY_MAX,
)
at_least(attempts, 1, "number")
at_least(attempts, 0, "claimed_at_ms")
check(
    attempts,
    status=among(attempts.c.status, AttemptStatus),
    signal=or_null(attempts.c.signal, attempts.c.signal.between(1, SIGNAL_MAX)),
    finished=exactly_when(not_(attempt_is_active(attempts.c.status)), attempts.c.finished_at_ms),
    outcome=or_(
        and_(attempts.c.exit_code.is_(None), attempts.c.signal.is_(None)),
        and_(
            attempts.c.finished_at_ms.is_not(None),
            or_(attempts.c.exit_code.is_(None), attempts.c.signal.is_(None)),
        ),
    ),
    error=or_(
        attempts.c.finished_at_ms.is_not(None),
        and_(attempts.c.error_code.is_(None), attempts.c.error_summary.is_(None)),
    ),
    # A claimed Attempt has not started, a starting one is not running yet, and nothing runs that did not start.
    phase=or_(
        and_(
            among(attempts.c.status, ["claimed"]),
            attempts.c.started_at_ms.is_(None),
            attempts.c.running_at_ms.is_(None),
        ),
        and_(
            among(attempts.c.status, ["starting"]),
            attempts.c.started_at_ms.is_not(None),
            attempts.c.running_at_ms.is_(None),
        ),
        and_(
            among(attempts.c.status, ["running"]),
            attempts.c.started_at_ms.is_not(None),
            attempts.c.running_at_ms.is_not(None),
        ),
        and_(
            not_(attempt_is_active(attempts.c.status)),
            or_(attempts.c.running_at_ms.is_(None), attempts.c.started_at_ms.is_not(None)),
        ),
    ),
)

ledger_meta: Final = _table(
    "ledger_meta",
    Column("key", identifier(), primary_key=True),
    required("value"),
)
"""What a ledger knows about itself: its own id, and the machine that a SQLite file belongs to (R5.2)."""
texts(ledger_meta, key=NAME_MAX, value=KEY_MAX)

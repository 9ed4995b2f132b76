"""
What the ledger's methods take: one table, looked into before any of them begins.

Without it a wrong type fails somewhere inside, as an ``AttributeError`` about something that the caller has never seen,
or not at all. An argument of one name is of one kind in all methods; the exceptions are listed. Every argument of every
public method must be here, or the class cannot be made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any, Final, TypeVar

from runfacts.domain.actors import Actor
from runfacts.domain.answers import AttemptClaim
from runfacts.domain.cancellation.results import DispatchResult
from runfacts.domain.cancellation.terms import Cursor, DispatchClaimed
from runfacts.domain.feeds import Checkpoint
from runfacts.domain.lifecycle import ExecutionOwner, IntentKind
from runfacts.domain.limits import Settings
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payload_parts import Evidence
from runfacts.domain.payloads import Escalation
from runfacts.domain.projecting import Grouping, ProjectionName
from runfacts.domain.recovery.claims import ManualReason, Purpose, RecoveryClaimed
from runfacts.domain.recovery.snapshots import Snapshot
from runfacts.domain.retry import RetryPolicy
from runfacts.domain.stored_commands import StoredCommand
from runfacts.domain.views import Head
from runfacts.infrastructure.api.kinds import (
    Kind,
    a_connection,
    a_flag,
    a_function,
    a_number,
    a_text,
    a_url,
    all_of,
    an_archive,
    an_id,
    an_object,
    each_of,
    one_of,
    one_that_has,
    pairs,
    some_of,
)

Checked = TypeVar("Checked", bound=type)
Method = TypeVar("Method", bound=Callable[..., Any])

_PROVIDER: Final = one_that_has("EvidenceProvider", "executor_type", "required", "inspect")


def _a_duty(name: str, value: object) -> object:
    # Supervision is loaded by those who supervise.
    from runfacts.infrastructure.supervision import Duty

    return one_of(Duty)(name, value)


def _arguments(name: str, value: object) -> object:
    """Take a command; one that is a single text is refused in its own words."""
    return value if isinstance(value, str) else all_of(a_text)(name, value)


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "actor": an_object(Actor, "an"),
        "after": a_text,
        "archive": an_archive,
        "argv": _arguments,
        "as_archive": a_flag,
        "at_ms": a_number,
        "attempt_id": an_id,
        "actor_id": a_text,
        "because": a_text,
        "by": one_of(Grouping),
        "causation_id": a_text,
        "claim": an_object(AttemptClaim, "an"),
        "claims": all_of(an_object(RecoveryClaimed)),
        "clock": one_that_has("Clock", "wall_ms", "boot_ms", "boot_id"),
        "command": an_object(StoredCommand),
        "concurrency": a_number,
        "connection": a_connection,
        "controllers": all_of(
            one_that_has("ExecutionController", "executor_type", "scopes", "worst_case_ms", "stop"),
        ),
        "correlation_id": a_text,
        "create": a_flag,
        "create_directory": a_flag,
        "cutoff_ms": a_number,
        "cwd": a_text,
        "deadline_at_ms": a_number,
        "dedupe_key": a_text,
        "delay_ms": a_number,
        "duties": all_of(_a_duty),
        "escalation": one_of(Escalation),
        "evidence": one_of(Evidence),
        "execution_owner": one_of(ExecutionOwner),
        "executor_type": a_text,
        "expected_version": a_number,
        "failed": a_flag,
        "force": a_flag,
        "gate": a_flag,
        "gated": a_flag,
        "group_left": a_flag,
        "handle": a_text,
        "heads": each_of(an_object(Head)),
        "idempotency_key": a_text,
        "interval_ms": a_number,
        "kind": one_of(IntentKind),
        "lease_ms": a_number,
        "limit": a_number,
        "local": a_flag,
        "log_path": a_text,
        "machine_id": a_text,
        "manual": one_of(ManualReason),
        "measures": one_that_has("Measures", "record", "watch"),
        "on_cycle": a_function,
        "on_diagnostic": a_function,
        "outcome": an_object(Outcome, "an"),
        "owner": a_text,
        "pid": a_number,
        "policy": an_object(RetryPolicy),
        "progress": a_function,
        "project": a_text,
        "projection": one_of(ProjectionName),
        "provider": _PROVIDER,
        "provider_type": a_text,
        "providers": all_of(_PROVIDER),
        "purpose": one_of(Purpose),
        "queue": a_flag,
        "reason": a_text,
        "receipt_path": a_text,
        "requested_at_ms": a_number,
        "result": one_of(DispatchResult),
        "retry_in_ms": a_number,
        "retry_of_run_id": an_id,
        "run_id": an_id,
        "run_ids": each_of(an_id),
        "scope": a_text,
        "sequence": a_number,
        "served": pairs,
        "settings": an_object(Settings),
        "since_ms": a_number,
        "snapshot": an_object(Snapshot),
        "status": some_of(a_text),
        "steps": one_that_has("Steps", "reached"),
        "stopping": a_function,
        "task": a_text,
        "timeout_ms": a_number,
        "types": some_of(a_text),
        "unfinished": a_flag,
        "until_ms": a_number,
        "url": a_url,
        "version": a_number,
        "worker_id": a_text,
    }
)
"""What an argument of this name is."""

KINDS_OF_ONE_METHOD: Final[Mapping[tuple[str, str], Kind]] = MappingProxyType(
    {
        ("apply_lost", "claim"): an_object(RecoveryClaimed),
        ("apply_retry", "claim"): an_object(RecoveryClaimed),
        ("apply_stopped", "claim"): an_object(RecoveryClaimed),
        ("due_dispatches", "after"): an_object(Cursor),
        ("feed", "after"): an_object(Checkpoint),
        ("feed_health", "after"): an_object(Checkpoint),
        ("follow", "after"): an_object(Checkpoint),
        ("recovery_snapshot", "claim"): an_object(RecoveryClaimed),
        ("settle_dispatch", "claim"): an_object(DispatchClaimed),
        ("settle_recovery", "claim"): an_object(RecoveryClaimed),
    }
)
"""What an argument of a method is where others of its name are something else."""


def checks_arguments(made: Checked) -> Checked:
    """Let every public method of a class look at the types of its arguments first (``InvalidValue``)."""
    for name in dir(made):
        if name.startswith("_"):
            continue
        found = _definition(made, name)
        if isinstance(found, classmethod):
            setattr(made, name, classmethod(_checking(name, found.__func__)))
        elif callable(found):
            setattr(made, name, _checking(name, found))
    return made


def _definition(made: type, name: str) -> object:
    """Give what a class or the nearest of its ancestors has under a name, as it is written there."""
    return next(vars(one)[name] for one in made.__mro__ if name in vars(one))


def _checking(method_name: str, method: Method) -> Method:
    # The object itself comes first and is what it is.
    parameters = list(signature(method).parameters.values())[1:]
    names = [parameter.name for parameter in parameters]
    kinds = {
        parameter.name: _or_none(_kind(method_name, parameter.name))
        if _may_be_none(parameter)
        else _kind(method_name, parameter.name)
        for parameter in parameters
        if parameter.kind is not Parameter.VAR_KEYWORD
    }

    @wraps(method)
    def checked(itself: object, *arguments: Any, **given: Any) -> Any:  # noqa: ANN401 - whatever the method takes
        if arguments:
            # What is too much goes on to the method, which says so.
            known = zip(names, arguments, strict=False)
            arguments = (*(kinds[name](name, value) for name, value in known), *arguments[len(names) :])
        for name, value in given.items():
            # A setting of ``open``, or nothing that the method knows, is not there: the method says so itself.
            if name in kinds:
                given[name] = kinds[name](name, value)
        return method(itself, *arguments, **given)

    return checked  # type: ignore[return-value] # it takes and gives what the method does


def _or_none(kind: Kind) -> Kind:
    return lambda name, value: None if value is None else kind(name, value)


def _kind(method: str, name: str) -> Kind:
    return KINDS_OF_ONE_METHOD.get((method, name)) or KINDS[name]


def _may_be_none(parameter: Parameter) -> bool:
    # Annotations are kept as they are written.
    return "None" in str(parameter.annotation).split(" | ")

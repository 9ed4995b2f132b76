"""What facts say: closed, bounded, documented models, one for each type (R3.6, R3.8)."""

from __future__ import annotations

import json
import re
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import StringConstraints, ValidationError
from pydantic.fields import FieldInfo

from runfacts.domain.attempt import ATTEMPT_STATUS_AFTER
from runfacts.domain.facts import decode_payload, encode_payload
from runfacts.domain.lifecycle import AttemptStatus, ExecutionOwner, IntentKind, RunStatus
from runfacts.domain.outcomes import Outcome
from runfacts.domain.payload_parts import Evidence, OutcomeKind
from runfacts.domain.payloads import (
    FACT_TYPES,
    AttemptFailed,
    AttemptLateCallbackIgnored,
    AttemptPayload,
    Payload,
    RunCancelled,
    RunCreated,
    RunLost,
    RunPayload,
    RunQueued,
    RunStopConfirmed,
)
from runfacts.domain.retry import RetryPolicy, Safety
from runfacts.domain.run import RUN_STATUS_AFTER

# R3.8, as it stands there.
TYPES = [
    "run.created",
    "run.imported",
    "run.queued",
    "run.dispatching",
    "run.running",
    "run.waiting_approval",
    "run.retry_wait",
    "run.succeeded",
    "run.failed",
    "run.cancelled",
    "run.timed_out",
    "run.lost",
    "run.cancel_requested",
    "run.cancel_dispatched",
    "run.cancel_dispatch_failed",
    "run.cancel_dispatch_blocked",
    "run.cancel_dispatch_taken_over",
    "run.cancel_dispatch_rearmed",
    "run.cancel_dispatch_abandoned",
    "run.stop_confirmed",
    "run.recovery_manual",
    "run.recovery_released",
    "run.recovery_attested",
    "attempt.claimed",
    "attempt.starting",
    "attempt.running",
    "attempt.succeeded",
    "attempt.failed",
    "attempt.cancelled",
    "attempt.timed_out",
    "attempt.lost",
    "attempt.late_callback_ignored",
]

ID = "01890000-0000-7000-8000-000000000001"
FORBIDDEN = re.compile(r"handle|pid|command|argv|cmd|environ|env|token|secret|password|path|cwd|host", re.IGNORECASE)
MODELS = list(FACT_TYPES.values())


def by_name(model: type[Payload]) -> str:
    return model.TYPE


def test_every_type_of_the_rule_exists_and_no_other() -> None:
    assert sorted(FACT_TYPES) == sorted(TYPES)
    assert len(TYPES) == 32


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_a_type_is_registered_under_its_name_in_its_first_version(model: type[Payload]) -> None:
    assert FACT_TYPES[model.TYPE] is model
    assert model.VERSION == 1


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_a_type_belongs_to_the_aggregate_that_its_name_says(model: type[Payload]) -> None:
    assert issubclass(model, AttemptPayload) == model.TYPE.startswith("attempt.")
    assert issubclass(model, RunPayload) == model.TYPE.startswith("run.")


def test_each_status_is_brought_by_the_fact_of_its_name() -> None:
    assert {model.TYPE: status for model, status in RUN_STATUS_AFTER.items()} == {
        f"run.{status.value}": status for status in RunStatus
    }
    assert {model.TYPE: status for model, status in ATTEMPT_STATUS_AFTER.items()} == {
        f"attempt.{status.value}": status for status in AttemptStatus
    }


def smallest(model: type[Payload]) -> dict[str, Any]:
    """Only what must be there."""
    return {name: example(field) for name, field in model.model_fields.items() if field.is_required()}


def example(field: FieldInfo, *, text: str = "x") -> Any:  # noqa: ANN401 - of the field's type
    """The largest value that a field takes, its texts made of one character."""
    kind, metadata = unpacked(field.annotation, list(field.metadata))
    if kind is str:
        longest = next(item.max_length for item in metadata if isinstance(item, StringConstraints))
        return text * (longest or 0)
    if kind is int:
        highest = [getattr(item, "le", None) for item in metadata] + [
            item.lt - 1 for item in metadata if getattr(item, "lt", None) is not None
        ]
        return next(number for number in highest if number is not None)
    if kind is bool:
        return False
    if kind is RetryPolicy:
        return RetryPolicy(16, True, True, Safety.DEDUPLICATED, 86_400_000, 86_400_000)  # noqa: FBT003 - all of them
    assert isinstance(kind, type)
    assert issubclass(kind, Enum)
    return max(kind, key=lambda word: len(word.value))


def unpacked(annotation: Any, metadata: list[Any]) -> tuple[Any, list[Any]]:  # noqa: ANN401 - a type as it is written
    """The type inside ``Annotated[...]`` and ``... | None``, with what bounds it."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        bounds = [bound for item in more for bound in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return unpacked(inner, metadata + bounds)
    if get_origin(annotation) in {Union, UnionType}:
        (inner,) = (item for item in get_args(annotation) if item is not NoneType)
        return unpacked(inner, metadata)
    return annotation, metadata


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_a_payload_is_closed(model: type[Payload]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        model.model_validate(smallest(model) | {"more": 1})


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_a_payload_is_frozen(model: type[Payload]) -> None:
    made = model.model_validate(smallest(model))
    for name in model.model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(made, name, None)


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_every_text_and_number_is_bounded(model: type[Payload]) -> None:
    for name, field in model.model_fields.items():
        kind, _ = unpacked(field.annotation, [])
        largest = smallest(model) | {name: example(field)}
        model.model_validate(largest)
        if kind is str:
            with pytest.raises(ValidationError):
                model.model_validate(largest | {name: example(field) + "x"})
        if kind is int:
            for beyond in (example(field) + 1, -1):
                with pytest.raises(ValidationError):
                    model.model_validate(largest | {name: beyond})


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_a_payload_takes_values_of_its_types_only(model: type[Payload]) -> None:
    for name, field in model.model_fields.items():
        kind, _ = unpacked(field.annotation, [])
        wrong: Any = 1 if kind is not int else "1"
        with pytest.raises(ValidationError):
            model.model_validate(smallest(model) | {name: wrong})


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_no_field_is_for_a_handle_a_process_a_command_an_environment_or_a_token(model: type[Payload]) -> None:
    # `observed`, `evidence` and the like are words of ours; what is looked for are places for anything else.
    allowed = {"provider_type", "evidence"}
    assert [name for name in model.model_fields if FORBIDDEN.search(name) and name not in allowed] == []


@pytest.mark.parametrize("model", MODELS, ids=by_name)
@pytest.mark.parametrize("character", ["x", "\U0001f600", "\x01", '"'], ids=["ascii", "emoji", "control", "quote"])
def test_the_largest_payload_fits(model: type[Payload], character: str) -> None:
    largest = model.model_validate({name: example(field, text=character) for name, field in model.model_fields.items()})
    text = encode_payload(largest)
    assert len(text.encode()) <= 16_384
    assert decode_payload(model.TYPE, 1, text) == largest


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_a_stored_payload_reads_as_what_was_written(model: type[Payload]) -> None:
    made = model.model_validate(smallest(model))
    text = encode_payload(made)
    assert json.loads(text).keys() <= model.model_fields.keys()
    assert decode_payload(model.TYPE, 1, text) == made


@pytest.mark.parametrize("model", MODELS, ids=by_name)
def test_every_type_says_what_it_means(model: type[Payload]) -> None:
    assert model.__doc__ is not None
    assert model.__doc__ != Payload.__doc__


def test_outcomes_carry_what_the_rule_asks_for() -> None:
    wanted = {"exit_code", "signal", "error_code", "error_summary"}
    for name in ("succeeded", "failed", "cancelled", "timed_out"):
        assert wanted <= FACT_TYPES[f"run.{name}"].model_fields.keys()
        assert wanted <= FACT_TYPES[f"attempt.{name}"].model_fields.keys()


@pytest.mark.parametrize("name", ["run.lost", "attempt.lost", "run.stop_confirmed"])
def test_what_nobody_reported_carries_its_evidence(name: str) -> None:
    model = FACT_TYPES[name]
    assert {"evidence", "provider_type"} <= model.model_fields.keys()
    assert model.model_fields["evidence"].is_required()


def test_the_words_of_payloads_are_these() -> None:
    assert [word.value for word in Evidence] == ["pre_start", "not_running", "attested"]
    assert [word.value for word in OutcomeKind] == ["succeeded", "failed", "cancelled", "timed_out"]


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (RunQueued(), "{}"),
        (RunLost(evidence=Evidence.PRE_START), '{"evidence":"pre_start"}'),
        (RunStopConfirmed(evidence=Evidence.ATTESTED, forced=True), '{"evidence":"attested","forced":true}'),
        (RunCancelled(reason=IntentKind.TIMEOUT, signal=9), '{"reason":"timeout","signal":9}'),
        (AttemptFailed(exit_code=0xFFFFFFFF), '{"exit_code":4294967295}'),
        (AttemptLateCallbackIgnored(sequence=2, reported="failed"), '{"reported":"failed","sequence":2}'),
        (
            RunCreated(
                task="t",
                policy=RetryPolicy(2, True, True, Safety.IDEMPOTENT, 1, 2),  # noqa: FBT003 - all of them
                execution_owner=ExecutionOwner.LEGACY,
                idempotency_key="k",
                retry_of_run_id=ID,
                deadline_at_ms=9,
                timeout_ms=1,
            ),
            (
                '{"deadline_at_ms":9,"execution_owner":"legacy","idempotency_key":"k","policy":{"backoff_max_ms":2,'
                '"backoff_ms":1,"max_attempts":2,"retry_on_failure":true,"retry_on_lost":true,"safety":"idempotent"},'
                f'"retry_of_run_id":"{ID}","task":"t","timeout_ms":1}}'
            ),
        ),
    ],
)
def test_payloads_are_stored_like_this(payload: Payload, text: str) -> None:
    assert encode_payload(payload) == text
    assert decode_payload(payload.TYPE, 1, text) == payload


def test_what_an_outcome_says_fits_its_fact_however_long_it_was() -> None:
    outcome = Outcome.failed(exit_code=1, error_code="\x01" * 10_000, error_summary="\x00\ud800" * 1_000_000)
    payload = AttemptFailed.model_validate(outcome.fields())
    assert payload.error_summary_length == 2_000_000
    assert len(encode_payload(payload).encode()) <= 16_384


def test_an_empty_error_text_is_none() -> None:
    # The column of the Attempt has no empty text either.
    assert Outcome.failed(error_code="", error_summary="").fields() == {}

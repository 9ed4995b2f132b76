"""
The fact: one immutable event of a Run's ledger, envelope and payload (R3).

A fact belongs to an aggregate (the Run, or one of its Attempts), where it has a version, and to the Run's one ledger,
where it has the next dense ``sequence`` and a hash that chains it to the one before. Its ``position`` is its place
among all facts of the database, known once it is stored.

``Fact`` follows the protocol of domain events of the ``eventsourcing`` package: it has an originator id and version,
and ``mutate`` rebuilds aggregates. What is stored under a type or version that this release does not know becomes an
``UnknownPayload``: kept, hashed and counted like any other, never dropped and never resolved by importing something
(R3.7).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import ClassVar, Final, TypeVar, cast

from runfacts.domain.actors import Actor
from runfacts.domain.canonical import canonical_json, chained_hash
from runfacts.domain.errors import InvalidValue
from runfacts.domain.limits import PAYLOAD_MAX
from runfacts.domain.payloads import FACT_TYPES, Payload

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_300_799_999
_SHARED_MAX: Final = 256

UPCASTERS: Final[dict[tuple[str, int], Callable[[dict[str, object]], dict[str, object]]]] = {}
"""For (type, version):
how a payload of that version becomes one of the next (R3.7). This is the first release: none is needed.
"""


UNKNOWN_TYPE: Final = "unknown type"
"""Why a payload is not understood whose type this release does not have."""
UNKNOWN_VERSION: Final = "unknown version"
"""Why a payload is not understood whose version is later than this release, or has no way to it."""
MALFORMED: Final = "malformed payload"
"""Why a payload is not understood that does not fit the model of its own type and version: it was changed."""


class UnknownPayload(Payload):
    """A payload of a type or version that this release does not know, as it is stored (R3.7)."""

    TYPE: ClassVar[str] = ""

    stored_type: str
    stored_version: int
    text: str
    reason: str = UNKNOWN_TYPE
    """Why it is not understood."""


_Aggregate = TypeVar("_Aggregate")


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact, as recorded (R3.1)."""

    run_id: str
    sequence: int
    """Its place in the Run's ledger: 1, 2, 3 …"""
    type: str
    schema_version: int
    project: str
    actor: Actor
    recorded_at_ms: int
    payload: Payload
    payload_text: str
    """The payload as it is stored: canonical JSON."""
    aggregate_id: str
    aggregate_version: int
    hash: str
    attempt_id: str | None = None
    dedupe_key: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    position: int | None = None
    """Its place among all facts of the database; None before it is stored."""

    @property
    def originator_id(self) -> str:
        """The aggregate's id, under the name that ``eventsourcing`` uses."""
        return self.aggregate_id

    @property
    def originator_version(self) -> int:
        """The aggregate's version, under the name that ``eventsourcing`` uses."""
        return self.aggregate_version

    @property
    def timestamp(self) -> datetime:
        """When it was recorded, in UTC; a time that no calendar has is the nearest that one has."""
        # Rebuilding an aggregate asks for it, and reading never fails on what was stored (R3.7).
        return _EPOCH + timedelta(milliseconds=min(max(self.recorded_at_ms, 0), _LAST_MS))

    @property
    def known(self) -> bool:
        """Whether this release knows the type and version."""
        # Not isinstance: pydantic makes that slow, and every fact of every replay is asked.
        return type(self.payload) is not UnknownPayload

    @property
    def of_attempt(self) -> bool:
        """Whether it belongs to an Attempt, not to the Run itself."""
        return self.aggregate_id != self.run_id

    def stored_at(self, position: int) -> None:
        """Learn the position that the database gave; once, by whoever wrote the fact and before anybody else has it."""
        object.__setattr__(self, "position", position)

    def computed_hash(self, previous: str) -> str:
        """Compute the hash anew, given the previous fact's (R3.1)."""
        return chained_hash(previous, envelope(self), self.payload_text)

    def mutate(self, aggregate: _Aggregate | None) -> _Aggregate | None:
        """Apply the fact to its aggregate, or begin one, as ``eventsourcing`` rebuilds aggregates."""
        from runfacts.domain.history import evolve

        return cast("_Aggregate | None", evolve(self, aggregate))


def envelope(fact: Fact) -> Mapping[str, str | int | None]:
    """Give the fields that the hash covers besides the payload, under the names that exports use (R3.1)."""
    return {
        "run_id": fact.run_id,
        "sequence": fact.sequence,
        "type": fact.type,
        "schema_version": fact.schema_version,
        "project": fact.project,
        "attempt_id": fact.attempt_id,
        "actor_type": str(fact.actor.type),
        "actor_id": fact.actor.id,
        "dedupe_key": fact.dedupe_key,
        "correlation_id": fact.correlation_id,
        "causation_id": fact.causation_id,
        "recorded_at_ms": fact.recorded_at_ms,
        "aggregate_id": fact.aggregate_id,
        "aggregate_version": fact.aggregate_version,
    }


def encode_payload(payload: Payload) -> str:
    """Give the canonical JSON of a payload; one that is too large is refused (``InvalidValue``, R3.6)."""
    text = canonical_json(payload.model_dump(mode="json", exclude_none=True))
    if len(text) * 4 > PAYLOAD_MAX and len(text.encode()) > PAYLOAD_MAX:
        raise InvalidValue("payload", f"of {payload.TYPE} is longer than {PAYLOAD_MAX} bytes")
    return text


def decode_payload(type_name: str, schema_version: int, text: str) -> Payload:
    """Read a stored payload: through the upcasters to today's version, or as ``UnknownPayload`` (R3.7). Never fails."""
    model = FACT_TYPES.get(type_name)
    if model is None:
        reason = UNKNOWN_TYPE
    elif schema_version != model.VERSION and not _leads_on(type_name, schema_version, model.VERSION):
        reason = UNKNOWN_VERSION
    else:
        try:
            if schema_version == model.VERSION:
                return _shared(model, text) if len(text) <= _SHARED_MAX else model.model_validate_json(text)
            raw = json.loads(text)
            for version in range(schema_version, model.VERSION):
                raw = UPCASTERS[type_name, version](raw)
            return model.model_validate_json(json.dumps(raw))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            # It does not fit its model, or an upcaster met what no release has written: it was changed after it was
            # written, and the hash chain names it.
            reason = MALFORMED
    # Not validated: it is kept as it is stored, also where that is no proper text.
    return UnknownPayload.model_construct(
        stored_type=type_name, stored_version=schema_version, text=text, reason=reason
    )


@lru_cache(maxsize=1_024)
def _shared(model: type[Payload], text: str) -> Payload:
    """Read a short payload. Most say one of very few things, and being frozen one object can say it for all."""
    return model.model_validate_json(text)


def _leads_on(type_name: str, schema_version: int, wanted: int) -> bool:
    """Whether upcasters lead from a version to a later one."""
    return 1 <= schema_version < wanted and all(
        (type_name, version) in UPCASTERS for version in range(schema_version, wanted)
    )

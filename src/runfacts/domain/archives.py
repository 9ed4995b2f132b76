"""
Archives: whole envelopes as JSON Lines, one fact a line, a Run's facts together and in order (R14.2).

A line has every field of a fact's envelope under its own name, the payload as an object, and ``run_version``: how many
facts the Run had when it was exported, so that a file that was cut off is known for one, even between two lines. The
position is told and not taken over: it is a place in one database.

``parse`` takes nothing on trust. A line whose hash does not fit the one before it is found by whoever follows the
chain; here is refused what no fact of this or a later release can be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from runfacts.domain.actors import ACTOR_ID_MAX, Actor, ActorType
from runfacts.domain.canonical import canonical_json
from runfacts.domain.facts import Fact, decode_payload, envelope
from runfacts.domain.limits import PAYLOAD_MAX
from runfacts.domain.texts import KEY_MAX, NAME_MAX, is_plain_name

LINE_MAX: Final = 131_072
"""Longest line of an archive, in bytes: more than any fact's, escaped in the longest way."""
_UUID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HASH: Final = re.compile("[0-9a-f]{64}")
_INTEGER_MAX: Final = (1 << 53) - 1

Line = dict[str, object]
"""One line of an archive, as a JSON object."""


class BadLine(ValueError):
    """A line is no fact; the message says why."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A Run came in, whole."""

    run_id: str
    version: int
    """Its version here: that of the archive, one more where ``run.imported`` was appended."""


@dataclass(frozen=True, slots=True)
class AlreadyImported:
    """A Run is recorded here with just these facts as its first ones; nothing was written."""

    run_id: str
    version: int
    """Its version here."""


@dataclass(frozen=True, slots=True)
class NotImported:
    """A Run, or a line that belongs to none, was refused; nothing of it was written."""

    run_id: str | None
    line: int
    """The line that it was refused for: 1, 2, 3 …"""
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a line says."""

    fact: Fact
    """Its position is its place in its Run: where it will stand here is not known yet."""
    run_version: int | None
    """How many facts of the Run the archive has, where it says so."""


def line_of(fact: Fact, run_version: int) -> Line:
    """Give the line of a fact. A payload that is no canonical JSON object, for somebody changed it, stays text."""
    line: Line = {"position": fact.position, **envelope(fact)}
    line["payload"] = _payload(fact.payload_text)
    line["hash"] = fact.hash
    line["run_version"] = run_version
    return line


def parse(text: bytes) -> Parsed:
    """Read a line (``BadLine``)."""
    try:
        read = json.loads(text.decode())
    except UnicodeDecodeError:
        raise BadLine("is no UTF-8 text") from None
    except (ValueError, RecursionError):
        raise BadLine("is no JSON") from None
    if not isinstance(read, dict):
        raise BadLine("is no JSON object")
    for name, (required, check) in _FIELDS.items():
        value = read.get(name)
        if value is None:
            if required:
                raise BadLine(f"has no {name}")
        elif not check(value):
            raise BadLine(f"has as {name} what no fact can have")
    unknown = read.keys() - _FIELDS.keys()
    if unknown:
        raise BadLine(f"has a field that this release does not know: {min(unknown)[:64]!r}")
    text_of_payload = _stored(read["payload"])
    return Parsed(
        Fact(
            run_id=read["run_id"],
            sequence=read["sequence"],
            type=read["type"],
            schema_version=read["schema_version"],
            project=read["project"],
            actor=Actor.recorded(read["actor_type"], read.get("actor_id")),
            recorded_at_ms=read["recorded_at_ms"],
            payload=decode_payload(read["type"], read["schema_version"], text_of_payload),
            payload_text=text_of_payload,
            aggregate_id=read["aggregate_id"],
            aggregate_version=read["aggregate_version"],
            hash=read["hash"],
            attempt_id=read.get("attempt_id"),
            dedupe_key=read.get("dedupe_key"),
            correlation_id=read.get("correlation_id"),
            causation_id=read.get("causation_id"),
            position=read["sequence"],
        ),
        read.get("run_version"),
    )


def _payload(text: str) -> object:
    try:
        read = json.loads(text)
        return read if isinstance(read, dict) and canonical_json(read) == text else text
    except (ValueError, TypeError, RecursionError):
        return text


def _stored(payload: object) -> str:
    """Give a payload as it is stored."""
    if isinstance(payload, str):
        text = payload
    else:
        try:
            text = canonical_json(payload) if isinstance(payload, dict) else ""
        except (TypeError, ValueError, RecursionError):
            raise BadLine("has a payload that has no canonical form") from None
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise BadLine("has a payload that is no text") from None
    if not 2 <= size <= PAYLOAD_MAX:  # noqa: PLR2004 - the shortest JSON object
        raise BadLine(f"has a payload that is not an object of at most {PAYLOAD_MAX} bytes")
    return text


def _whole(lowest: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and lowest <= value <= _INTEGER_MAX


def _name(longest: int) -> Callable[[object], bool]:
    return lambda value: is_plain_name(value, longest)


def _id(value: object) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _hash(value: object) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _actor_type(value: object) -> bool:
    return isinstance(value, str) and value in set(ActorType)


_FIELDS: Final[dict[str, tuple[bool, Callable[[Any], bool]]]] = {
    "position": (False, _whole(1)),
    "run_id": (True, _id),
    "sequence": (True, _whole(1)),
    "type": (True, _name(NAME_MAX)),
    "schema_version": (True, _whole(1)),
    "project": (True, _name(NAME_MAX)),
    "attempt_id": (False, _id),
    "actor_type": (True, _actor_type),
    "actor_id": (False, _name(ACTOR_ID_MAX)),
    "dedupe_key": (False, _name(KEY_MAX)),
    "correlation_id": (False, _name(KEY_MAX)),
    "causation_id": (False, _name(KEY_MAX)),
    "recorded_at_ms": (True, _whole(0)),
    "payload": (True, lambda value: isinstance(value, dict | str)),
    "aggregate_id": (True, _id),
    "aggregate_version": (True, _whole(1)),
    "hash": (True, _hash),
    "run_version": (False, _whole(1)),
}

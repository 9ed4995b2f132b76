"""What operators' verbs have in common: a reason, and how each knows its own repetition (R13.2)."""

from __future__ import annotations

from runfacts.domain.errors import DedupeConflict, InvalidValue
from runfacts.domain.facts import Fact
from runfacts.domain.texts import REASON_MAX, bounded


def reason_of(because: str) -> dict[str, str | int]:
    """Give the fields of a reason (``InvalidValue`` where there is none)."""
    if not because.strip():
        raise InvalidValue("because", "is empty: an operator's verb needs a reason")
    return bounded(because, REASON_MAX).fields("reason")


def require_same(recorded: Fact, run_id: str, reason: dict[str, str | int], **others: int) -> None:
    """See that a repeated verb says what was recorded (``DedupeConflict``, R13.2)."""
    said = recorded.payload.model_dump(exclude_none=True)
    if any(said.get(name) != value for name, value in {**reason, **others}.items()):
        raise DedupeConflict(run_id, recorded.dedupe_key or "")

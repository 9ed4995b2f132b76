"""
The tables of projections: views made of facts, and how far each of them is (R1.4, R14.1).

A projection may stand in several generations: the live one, which is read, one that is being built beside it, and
those that were replaced and wait to be swept. The row of ``projections`` is the checkpoint of a generation; whatever
changes the generation raises its ``version`` in the same transaction, so of two that do so at once one loses, and
every fact counts once.

Nothing here refers to current state: a view can be made from facts alone, wherever they are.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sqlalchemy import Index, PrimaryKeyConstraint, Table, and_, func, or_

from runfacts.domain.actors import ActorType
from runfacts.domain.lifecycle import TERMINAL_RUN, IntentKind
from runfacts.domain.payloads import Escalation
from runfacts.domain.projecting import ProjectionName, StopDelivery, StopEvidence
from runfacts.domain.texts import NAME_MAX
from runfacts.infrastructure.database.columns import (
    among,
    at_least,
    both_or_neither,
    check,
    lengths,
    number,
    optional,
    optional_number,
    or_null,
    required,
    texts,
)
from runfacts.infrastructure.database.tables import DIGEST_LENGTH, UUID_LENGTH, metadata
from runfacts.projections.statistics import COLUMNS


class GenerationState(StrEnum):
    """What a generation of a projection is for."""

    LIVE = "live"
    """It is read."""
    BUILDING = "building"
    """It is being built, and then read."""
    DROPPED = "dropped"
    """It is to be deleted."""


projections: Final = Table(
    "projections",
    metadata,
    required("projection"),
    number("generation"),
    required("state"),
    number("version"),
    number("position"),
    optional("hash"),
    number("facts"),
    number("unknown"),
    number("updated_at_ms"),
    PrimaryKeyConstraint("projection", "generation"),
    sqlite_strict=True,
)
"""Checkpoints: up to which fact, and that fact's hash (R3.9)."""
IS_LIVE: Final = among(projections.c.state, [GenerationState.LIVE])
Index(
    "uq_projections_live",
    projections.c.projection,
    unique=True,
    sqlite_where=IS_LIVE,
    postgresql_where=IS_LIVE,
)
lengths(projections, DIGEST_LENGTH, "hash")
at_least(projections, 1, "generation")
at_least(projections, 0, "version", "position", "facts", "unknown", "updated_at_ms")
check(
    projections,
    projection=among(projections.c.projection, ProjectionName),
    state=among(projections.c.state, GenerationState),
    checkpoint=or_(
        and_(projections.c.position == 0, projections.c.hash.is_(None)),
        and_(projections.c.position > 0, projections.c.hash.is_not(None)),
    ),
)

set_aside_facts: Final = Table(
    "set_aside_facts",
    metadata,
    required("projection"),
    number("generation"),
    number("position"),
    required("run_id"),
    number("sequence"),
    required("reason"),
    number("tries"),
    number("set_aside_at_ms"),
    PrimaryKeyConstraint("projection", "generation", "position"),
    sqlite_strict=True,
)
"""Facts that a generation could not take in, and those that came after such a one of their Run."""
Index(
    "ix_set_aside_facts_run",
    set_aside_facts.c.projection,
    set_aside_facts.c.generation,
    set_aside_facts.c.run_id,
    set_aside_facts.c.sequence,
)
texts(set_aside_facts, reason=NAME_MAX)
at_least(set_aside_facts, 1, "generation", "position", "tries")
check(set_aside_facts, projection=among(set_aside_facts.c.projection, ProjectionName))

statistics_runs: Final = Table(
    "statistics_runs",
    metadata,
    number("generation"),
    required("run_id"),
    number("sequence"),
    required("task"),
    number("created_at_ms"),
    optional("active_attempt_id"),
    optional_number("started_at_ms"),
    optional_number("requested_at_ms"),
    optional_number("lost_at_ms"),
    PrimaryKeyConstraint("generation", "run_id"),
    sqlite_strict=True,
)
"""What later facts of a Run need to know of earlier ones, and the last one that was taken in."""
at_least(statistics_runs, 1, "generation", "sequence")

statistics: Final = Table(
    "statistics",
    metadata,
    number("generation"),
    number("day_at_ms"),
    required("project"),
    required("task"),
    *(number(name) for name in COLUMNS),
    PrimaryKeyConstraint("generation", "day_at_ms", "project", "task"),
    sqlite_strict=True,
)
"""Totals of one task of one project on one day, which begins at ``day_at_ms`` (UTC)."""
at_least(statistics, 1, "generation")
at_least(statistics, 0, "day_at_ms", *COLUMNS)

stop_proofs: Final = Table(
    "stop_proofs",
    metadata,
    number("generation"),
    required("run_id"),
    number("sequence"),
    required("project"),
    optional("attempt_id"),
    required("kind"),
    required("requested_by_type"),
    optional("requested_by_id"),
    number("requested_at_ms"),
    optional("delivery"),
    optional("result"),
    optional("escalation"),
    optional_number("delivered_at_ms"),
    optional("status"),
    optional_number("ended_at_ms"),
    optional("evidence"),
    PrimaryKeyConstraint("generation", "run_id"),
    sqlite_strict=True,
)
"""What became of every request to stop."""
_s = stop_proofs.c
Index("ix_stop_proofs_requested", _s.generation, _s.requested_at_ms, _s.run_id)
lengths(stop_proofs, UUID_LENGTH, "run_id")
at_least(stop_proofs, 1, "generation", "sequence")
check(
    stop_proofs,
    kind=among(_s.kind, IntentKind),
    requested_by_type=among(_s.requested_by_type, ActorType),
    delivery=or_null(_s.delivery, among(_s.delivery, StopDelivery)),
    result=or_null(_s.result, func.length(_s.result) >= 1),
    escalation=or_null(_s.escalation, among(_s.escalation, Escalation)),
    status=or_null(_s.status, among(_s.status, TERMINAL_RUN)),
    evidence=or_null(_s.evidence, among(_s.evidence, StopEvidence)),
    ended=both_or_neither(_s.status, _s.ended_at_ms),
)

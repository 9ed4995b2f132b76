"""
Generations of projections: their checkpoints, and what they set aside (R14.1).

Whatever changes a generation begins with ``advance``: a compare-and-set of its row, which locks it. What was read of
the generation after its row is then what it still is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from runfacts.domain.feeds import Checkpoint
from runfacts.domain.projecting import ProjectionName
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE, constant, one_of
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.projection_tables import GenerationState, projections, set_aside_facts
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import facts
from runfacts.infrastructure.database.transactions import Reading, Transaction
from runfacts.projections.folding import Aside

_p = projections.c
_a = set_aside_facts.c
_INSERTS: Final[Mapping[str, Any]] = MappingProxyType({SQLITE: sqlite.insert, POSTGRESQL: postgresql.insert})
_ONE: Final = (_p.projection == bindparam("projection"), _p.generation == bindparam("generation"))
_OF_ONE: Final = (_a.projection == bindparam("projection"), _a.generation == bindparam("generation"))
_COLUMNS: Final = (
    _p.projection, _p.generation, _p.state, _p.version, _p.position, _p.hash, _p.facts, _p.unknown,
)  # fmt: skip

SELECT_GENERATIONS: Final = Statement("select_generations", select(*_COLUMNS).order_by(_p.projection, _p.generation))
SELECT_PROGRESS: Final = Statement(
    "select_projection_progress",
    select(
        _p.projection,
        _p.position,
        _p.state,
        select(func.max(facts.c.position)).scalar_subquery(),
    ).order_by(_p.projection, _p.generation),
)
INSERT_LIVE: Final = Statement(
    "insert_live_generation",
    {
        dialect: made(projections)
        .values({column.name: bindparam(column.name) for column in projections.c})
        .on_conflict_do_nothing()
        for dialect, made in _INSERTS.items()
    },
)
INSERT_GENERATION: Final = Statement(
    "insert_generation", insert(projections).values({column.name: bindparam(column.name) for column in projections.c})
)
ADVANCE: Final = Statement(
    "advance_projection",
    update(projections)
    .where(*_ONE, _p.version == bindparam("old_version"), _p.state == bindparam("state"))
    .values(
        version=_p.version + 1,
        position=bindparam("new_position"),
        hash=bindparam("new_hash"),
        facts=_p.facts + bindparam("more_facts"),
        unknown=_p.unknown + bindparam("more_unknown"),
        updated_at_ms=bindparam("now_ms"),
    ),
)
SET_STATE: Final = Statement(
    "set_generation_state",
    update(projections)
    .where(*_ONE, _p.state == bindparam("old_state"))
    .values(state=bindparam("new_state"), version=_p.version + 1),
)
DELETE_GENERATION: Final = Statement(
    "delete_generation", delete(projections).where(*_ONE, _p.state == constant(GenerationState.DROPPED.value))
)
SELECT_BLOCKED: Final = Statement(
    "select_blocked_runs", select(_a.run_id).distinct().where(*_OF_ONE, one_of(_a.run_id, "run_ids"))
)
INSERT_ASIDE: Final = Statement(
    "insert_set_aside",
    insert(set_aside_facts).values({column.name: bindparam(column.name) for column in set_aside_facts.c}),
)
DELETE_ASIDE: Final = Statement("delete_set_aside", delete(set_aside_facts).where(*_OF_ONE))
DELETE_ONE_ASIDE: Final = Statement(
    "delete_one_set_aside", delete(set_aside_facts).where(*_OF_ONE, _a.position == bindparam("position"))
)
TRIED_ASIDE: Final = Statement(
    "try_set_aside",
    update(set_aside_facts)
    .where(*_OF_ONE, _a.position == bindparam("position"))
    .values(tries=_a.tries + 1, reason=bindparam("reason")),
)
COUNT_ASIDE: Final = Statement("count_set_aside", select(func.count()).select_from(set_aside_facts).where(*_OF_ONE))
SELECT_ASIDE: Final = Statement(
    "select_set_aside",
    select(_a.position, _a.run_id, _a.sequence, _a.reason, _a.tries, _a.set_aside_at_ms)
    .where(*_OF_ONE, _a.position > bindparam("after"))
    .order_by(_a.position)
    .limit(bindparam("limit")),
)
SELECT_ASIDE_RUNS: Final = Statement(
    "select_set_aside_runs",
    select(_a.run_id)
    .distinct()
    .where(*_OF_ONE, _a.run_id > bindparam("after"))
    .order_by(_a.run_id)
    .limit(bindparam("limit")),
)
SELECT_ASIDE_OF_RUN: Final = Statement(
    "select_set_aside_of_run",
    select(_a.position).where(*_OF_ONE, _a.run_id == bindparam("run_id")).order_by(_a.sequence),
)


SELECT_HASH: Final = Statement(
    "select_fact_hash", select(facts.c.hash).where(facts.c.position == bindparam("position"))
)


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation of a projection, as its row says."""

    projection: ProjectionName
    number: int
    state: GenerationState
    version: int
    checkpoint: Checkpoint | None
    facts: int
    unknown: int

    @property
    def position(self) -> int:
        """Up to where facts are in it."""
        return 0 if self.checkpoint is None else self.checkpoint.position

    @property
    def key(self) -> dict[str, object]:
        """Its key, as parameters."""
        return {"projection": self.projection.value, "generation": self.number}


def read_generations(reading: Reading, projection: ProjectionName) -> list[Generation]:
    """Read all generations of a projection."""
    return [
        Generation(
            projection,
            row[1],
            GenerationState(row[2]),
            row[3],
            None if row[5] is None else Checkpoint(row[4], row[5]),
            row[6],
            row[7],
        )
        for row in reading.rows(SELECT_GENERATIONS)
        if row[0] == projection.value
    ]


def live_of(generations: Sequence[Generation]) -> Generation | None:
    """Give the one that is read, if there is one yet."""
    return next((one for one in generations if one.state is GenerationState.LIVE), None)


def still_holds(reading: Reading, one: Generation) -> bool:
    """Whether the fact of its checkpoint is still there: otherwise the database is not what it was (R3.9)."""
    if one.checkpoint is None:
        return True
    row = reading.row(SELECT_HASH, {"position": one.checkpoint.position})
    return row is not None and row[0] == one.checkpoint.hash


def new_row(projection: ProjectionName, number: int, state: GenerationState, now_ms: int) -> dict[str, object]:
    """Give the row of a generation that has taken in nothing."""
    return {
        "projection": projection.value,
        "generation": number,
        "state": state.value,
        "version": 0,
        "position": 0,
        "hash": None,
        "facts": 0,
        "unknown": 0,
        "updated_at_ms": now_ms,
    }


def advance(
    transaction: Transaction, one: Generation, *, to: Checkpoint | None, facts: int, unknown: int, now_ms: int
) -> None:
    """Say that a generation has taken in facts up to a checkpoint (``LostRace``: it is not what was read of it)."""
    changed = transaction.run(
        ADVANCE,
        {
            **one.key,
            "old_version": one.version,
            "state": one.state.value,
            "new_position": 0 if to is None else to.position,
            "new_hash": None if to is None else to.hash,
            "more_facts": facts,
            "more_unknown": unknown,
            "now_ms": now_ms,
        },
    )
    if changed != 1:
        raise LostRace(ADVANCE.name)


def put_aside(transaction: Transaction, one: Generation, aside: Sequence[Aside], now_ms: int) -> None:
    """Keep facts that were set aside."""
    transaction.run_many(
        INSERT_ASIDE,
        [
            {
                **one.key,
                "position": item.position,
                "run_id": item.run_id,
                "sequence": item.sequence,
                "reason": item.reason,
                "tries": 1,
                "set_aside_at_ms": now_ms,
            }
            for item in aside
        ],
    )

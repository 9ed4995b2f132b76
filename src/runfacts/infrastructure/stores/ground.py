"""
The ground of a decision: all that a command must read before it decides, in one statement (R4.1).

The time that decides, the Run's version and hash, and the execution of the Attempt that the command names, if it
names one. With a kept history of the same version nothing else is read; otherwise the facts that are missing are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Integer, Select, bindparam, func, literal_column, select

from runfacts.domain.facts import Fact
from runfacts.domain.history import History
from runfacts.infrastructure.database.dialects import POSTGRESQL, SQLITE
from runfacts.infrastructure.database.errors import LostRace
from runfacts.infrastructure.database.statements import Statement
from runfacts.infrastructure.database.tables import executions, facts, runs
from runfacts.infrastructure.database.transactions import Reading
from runfacts.infrastructure.stores.executions import Execution
from runfacts.infrastructure.stores.facts import FACT_COLUMNS, fact_of, replayed

_Columns = Select[tuple[int, int, str, str, str, str, int, int]]


def _ground(now: ColumnElement[int]) -> _Columns:
    return (
        select(
            now,
            runs.c.version,
            runs.c.head_hash,
            executions.c.run_id,
            executions.c.lease_token_digest,
            executions.c.callback_token_digest,
            executions.c.callback_sequence,
            executions.c.gated,
        )
        .join_from(runs, executions, executions.c.attempt_id == bindparam("attempt_id"), isouter=True)
        .where(runs.c.run_id == bindparam("run_id"))
    )


SELECT_GROUND: Final = Statement(
    "select_ground",
    {SQLITE: _ground(literal_column("0", Integer)), POSTGRESQL: _ground(func.runfacts_now_ms(type_=Integer))},
)
SELECT_FACTS_AFTER: Final = Statement(
    "select_facts_after",
    select(*FACT_COLUMNS)
    .where(facts.c.run_id == bindparam("run_id"), facts.c.sequence > bindparam("after"))
    .order_by(facts.c.sequence),
)


@dataclass(frozen=True, slots=True)
class Ground:
    """What a command reads first."""

    now_ms: int
    version: int
    head_hash: str
    execution: Execution | None


def read_ground(reading: Reading, run_id: str, attempt_id: str | None) -> Ground | None:
    """Read what a decision stands on; None where there is no such Run."""
    row = reading.row(SELECT_GROUND, {"run_id": run_id, "attempt_id": attempt_id})
    if row is None:
        return None
    now_ms = reading.clock.wall_ms() if reading.dialect == SQLITE else row[0]
    execution = None if row[3] is None else Execution(row[3], row[4], row[5], row[6], bool(row[7]))
    return Ground(now_ms, row[1], row[2], execution)


def require_current(reading: Reading, history: History) -> None:
    """See that nothing was recorded since the history was read (``LostRace``).

    For whoever holds a row against it that was read later: on PostgreSQL each statement sees what is committed by
    then, and the row may be ahead of the history.
    """
    ground = read_ground(reading, history.run_id, None)
    if ground is None or ground.version != history.version:
        raise LostRace("read")


def read_facts_after(reading: Reading, run_id: str, after: int) -> tuple[Fact, ...]:
    """Give a Run's facts above a sequence, by sequence."""
    return tuple(fact_of(row) for row in reading.rows(SELECT_FACTS_AFTER, {"run_id": run_id, "after": after}))


def brought_up_to(reading: Reading, run_id: str, ground: Ground, kept: History | None) -> History:
    """Give the Run's history at least as of ``ground``: the kept one, if it is the beginning of what is recorded.

    Raises ``DatabaseCorrupt`` where what is recorded makes no history.
    """
    if kept is not None and kept.version == ground.version and kept.head_hash == ground.head_hash:
        return kept
    if kept is not None and kept.version < ground.version:
        missing = read_facts_after(reading, run_id, kept.version)
        if missing and missing[0].computed_hash(kept.head_hash) == missing[0].hash:
            return replayed(run_id, missing, kept)
    return replayed(run_id, read_facts_after(reading, run_id, 0))

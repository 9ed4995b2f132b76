"""Rows of the tables of projections, and what each constraint is to refuse (R1.4, R14.1)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table

from runfacts.infrastructure.database.projection_tables import (
    projections,
    set_aside_facts,
    statistics,
    statistics_runs,
    stop_proofs,
)
from runfacts.projections.statistics import COLUMNS

Row = dict[str, Any]
RUN = "01890000-0000-7000-8000-000000000001"
DIGEST = "d" * 64

# Beside the live generation, of which there is one.
CHECKPOINT: Row = {
    "projection": "statistics",
    "generation": 7,
    "state": "building",
    "version": 1,
    "position": 5,
    "hash": DIGEST,
    "facts": 5,
    "unknown": 0,
    "updated_at_ms": 1_000,
}
SET_ASIDE: Row = {
    "projection": "statistics",
    "generation": 1,
    "position": 5,
    "run_id": RUN,
    "sequence": 2,
    "reason": "ValueError",
    "tries": 1,
    "set_aside_at_ms": 1_000,
}
RUN_SEEN: Row = {
    "generation": 1,
    "run_id": RUN,
    "sequence": 2,
    "task": "t",
    "created_at_ms": 1_000,
    "active_attempt_id": None,
    "started_at_ms": None,
    "requested_at_ms": None,
    "lost_at_ms": None,
}
TOTALS: Row = {"generation": 1, "day_at_ms": 0, "project": "p", "task": "t"} | dict.fromkeys(COLUMNS, 0)
STOP: Row = {
    "generation": 1,
    "run_id": RUN,
    "sequence": 2,
    "project": "p",
    "attempt_id": None,
    "kind": "user",
    "requested_by_type": "user",
    "requested_by_id": None,
    "requested_at_ms": 1_000,
    "delivery": "dispatched",
    "result": "already_exited",
    "escalation": "none",
    "delivered_at_ms": 2_000,
    "status": "cancelled",
    "ended_at_ms": 3_000,
    "evidence": "reported",
}
BASES: dict[str, Row] = {
    "projections": CHECKPOINT,
    "set_aside_facts": SET_ASIDE,
    "statistics_runs": RUN_SEEN,
    "statistics": TOTALS,
    "stop_proofs": STOP,
}

REFUSED: dict[str, tuple[Table, dict[str, list[Row]]]] = {
    "projections": (
        projections,
        {
            "hash": [{"hash": ""}, {"hash": "d" * 63}],
            "generation": [{"generation": 0}],
            "version": [{"version": -1}],
            "facts": [{"facts": -1}],
            "unknown": [{"unknown": -1}],
            "updated_at_ms": [{"updated_at_ms": -1}],
            "projection": [{"projection": "whim"}],
            "state": [{"state": "sleeping"}],
            "checkpoint": [{"hash": None}, {"position": 0}],
        },
    ),
    "set_aside_facts": (
        set_aside_facts,
        {
            "reason": [{"reason": ""}, {"reason": "r" * 201}],
            "generation": [{"generation": 0}],
            "position": [{"position": 0}],
            "tries": [{"tries": 0}],
            "projection": [{"projection": "whim"}],
        },
    ),
    "statistics_runs": (statistics_runs, {"generation": [{"generation": 0}], "sequence": [{"sequence": 0}]}),
    "statistics": (
        statistics,
        {"generation": [{"generation": 0}], "day_at_ms": [{"day_at_ms": -1}]}
        | {name: [{name: -1}] for name in COLUMNS},
    ),
    "stop_proofs": (
        stop_proofs,
        {
            "run_id": [{"run_id": "x" * 35}],
            "generation": [{"generation": 0}],
            "sequence": [{"sequence": 0}],
            "kind": [{"kind": "whim"}],
            "requested_by_type": [{"requested_by_type": "whim"}],
            "delivery": [{"delivery": "whim"}],
            "result": [{"result": ""}],
            "escalation": [{"escalation": "whim"}],
            "status": [{"status": "running"}],
            "evidence": [{"evidence": "whim"}],
            "ended": [{"status": None}, {"ended_at_ms": None}],
        },
    ),
}
# PostgreSQL goes by name, and a position below 0 is in no shape that ``checkpoint`` knows.
REFUSED_BY_SQLITE: dict[str, dict[str, list[Row]]] = {"projections": {"position": [{"position": -1, "hash": None}]}}

"""Every table there is: importing ``metadata`` from here makes sure that all modules with tables have been read."""

from __future__ import annotations

from runfacts.infrastructure.database.cancellation_tables import cancellation_dispatches
from runfacts.infrastructure.database.projection_tables import (
    projections,
    set_aside_facts,
    statistics,
    statistics_runs,
    stop_proofs,
)
from runfacts.infrastructure.database.recovery_tables import commands, recovery_claims, workers
from runfacts.infrastructure.database.tables import attempts, executions, facts, ledger_meta, metadata, runs

__all__ = [
    "attempts",
    "cancellation_dispatches",
    "commands",
    "executions",
    "facts",
    "ledger_meta",
    "metadata",
    "projections",
    "recovery_claims",
    "runs",
    "set_aside_facts",
    "statistics",
    "statistics_runs",
    "stop_proofs",
    "workers",
]

"""The ledger: facts, runs, attempts, executions and the triggers that keep facts as they are."""

from __future__ import annotations

from alembic import op

from runfacts.infrastructure.database.migrations import run_frozen

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Run the SQL that was frozen with this revision."""
    run_frozen(op.get_bind(), revision)

"""Recovery: claims, workers and commands; and executions say when they were seen last and when they ended."""

from __future__ import annotations

from alembic import op

from runfacts.infrastructure.database.migrations import run_frozen

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Run the SQL that was frozen with this revision."""
    run_frozen(op.get_bind(), revision)

"""Projections: their checkpoints, their views and what they set aside."""

from __future__ import annotations

from alembic import op

from runfacts.infrastructure.database.migrations import run_frozen

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Run the SQL that was frozen with this revision."""
    run_frozen(op.get_bind(), revision)

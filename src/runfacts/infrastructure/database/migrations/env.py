"""How Alembic runs the revisions: inside the transaction that ``schema.upgrade`` has opened, which alone commits."""

from __future__ import annotations

from alembic import context

from runfacts.infrastructure.database.schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()

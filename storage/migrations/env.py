"""Runs the migrations on the connection that ``storage.migrate`` hands over."""

from __future__ import annotations

from alembic import context

from storage.migrate import is_ours
from storage.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    include_object=is_ours,
)
with context.begin_transaction():
    context.run_migrations()

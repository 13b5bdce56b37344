"""Brings our tables to the schema of this version and leaves all others alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Engine, insert, inspect, select

from storage import schema
from storage.errors import NewerSchema
from storage.masking import mask_url

if TYPE_CHECKING:
    from alembic.config import Config

MIGRATIONS: Final = Path(__file__).parent / "migrations"


def stored_revision(connection: Connection) -> str | None:
    """Return the revision of our tables, None where there are none."""
    if not inspect(connection).has_table(schema.VERSION_TABLE):
        return None
    return connection.execute(select(schema.version.c.version_num)).scalar_one_or_none()


def ensure_schema(
    engine: Engine,
    *,
    migrations: Path = MIGRATIONS,
    before_upgrade: Callable[[], object] = lambda: None,
) -> None:
    """Create our tables in a fresh database, upgrade older ones; current ones cost one SELECT.

    All in one transaction, so that a killed upgrade leaves the old schema. Two processes may
    do it at once on SQLite; on PostgreSQL the later one fails and succeeds when run again.

    Raises:
        NewerSchema: If the tables come from a later version.
    """
    with engine.connect() as connection:
        found = stored_revision(connection)
        if found == schema.HEAD_REVISION:
            return
        if found is not None:
            require_known(connection, found, migrations=migrations)
    if found is not None:
        before_upgrade()
    with engine.execution_options(autotune_write=True).begin() as connection:
        revision = stored_revision(connection)
        if revision is None:
            _create(connection)
        elif revision != schema.HEAD_REVISION:
            _upgrade(connection, revision, migrations)


def require_known(connection: Connection, revision: str, *, migrations: Path = MIGRATIONS) -> None:
    """Return if this version can read, or upgrade, tables of this revision.

    Raises:
        NewerSchema: If it does not know the revision.
    """
    if revision == schema.HEAD_REVISION:
        return
    from alembic.script import ScriptDirectory  # 0.6 s, and hardly ever needed.

    scripts = ScriptDirectory.from_config(alembic_config(connection, migrations))
    if revision not in {script.revision for script in scripts.walk_revisions()}:
        raise NewerSchema(mask_url(connection.engine.url.render_as_string()), revision)


def is_ours(
    _item: Any, name: str | None, kind: str, _reflected: bool, _compare_to: Any
) -> bool:  # The signature is alembic's `include_object`.
    """Return False for tables of others, Optuna's in the first place."""
    return kind != "table" or (name or "").startswith(schema.TABLE_PREFIX)


def alembic_config(connection: Connection, migrations: Path = MIGRATIONS) -> Config:
    """Return the configuration by which alembic finds our migrations and the connection."""
    from alembic.config import Config  # 0.6 s, and hardly ever needed.

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _create(connection: Connection) -> None:
    schema.metadata.create_all(connection)
    schema.version.create(connection, checkfirst=True)
    connection.execute(insert(schema.version).values(version_num=schema.HEAD_REVISION))


def _upgrade(connection: Connection, revision: str, migrations: Path) -> None:
    from alembic import command  # 0.6 s, and hardly ever needed.

    require_known(connection, revision, migrations=migrations)
    command.upgrade(alembic_config(connection, migrations), "head")

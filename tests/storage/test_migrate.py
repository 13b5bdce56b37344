from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, insert, make_url, update
from sqlalchemy.schema import CreateTable

from storage import migrate, schema
from storage.database import open_database
from storage.errors import NewerSchema
from storage.repository import open_repository

_NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "9998"
down_revision = "{head}"


def upgrade() -> None:
    op.add_column("autotune_trial", sa.Column("note", sa.Text()))
    table = "autotune_nowhere" if {broken} else "autotune_study"
    op.add_column(table, sa.Column("note", sa.Text()))
"""


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    opened = create_engine(url)
    yield opened
    opened.dispose()


def differences(connection: Connection) -> list[object]:
    options = {
        "version_table": schema.VERSION_TABLE,
        "include_object": migrate.is_ours,
        "compare_type": True,
    }
    context = MigrationContext.configure(connection, opts=options)
    return list(compare_metadata(context, schema.metadata))


def _sql(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
        return dict(found.fetchall())


def test_the_migrations_lead_to_the_metadata(engine: Engine) -> None:
    with engine.begin() as connection:
        command.upgrade(migrate.alembic_config(connection), "head")
        assert migrate.stored_revision(connection) == schema.HEAD_REVISION
        assert differences(connection) == []


def test_a_fresh_database_is_at_the_head(url: str, engine: Engine) -> None:
    open_database(url).dispose()
    with engine.connect() as connection:
        assert migrate.stored_revision(connection) == schema.HEAD_REVISION
        assert differences(connection) == []


def test_the_head_is_the_newest_migration(engine: Engine) -> None:
    with engine.connect() as connection:
        scripts = ScriptDirectory.from_config(migrate.alembic_config(connection))
    assert scripts.get_heads() == [schema.HEAD_REVISION]


def test_tables_of_optuna_are_left_alone(url: str, tmp_path: Path) -> None:
    optuna.storages.RDBStorage(url).engine.dispose()
    theirs = _sql(tmp_path / "study.db")
    open_database(url).dispose()
    ours_and_theirs = _sql(tmp_path / "study.db")
    assert theirs.items() <= ours_and_theirs.items()
    added = ours_and_theirs.keys() - theirs.keys()
    assert {name for name in added if "autotune_" not in name} == set()


def _next_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, broken: bool = False
) -> Path:
    migrations = tmp_path / "100%" / "migrations"
    shutil.copytree(migrate.MIGRATIONS, migrations)
    (migrations / "versions" / "9998_notes.py").write_text(
        _NEXT.format(broken=broken, head=schema.HEAD_REVISION)
    )
    monkeypatch.setattr(schema, "HEAD_REVISION", "9998")
    return migrations


def test_an_older_database_is_upgraded_with_its_content(
    url: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_repository(url) as repository:
        repository.open_study("kept", fingerprint={}, spec={})
    migrate.ensure_schema(engine, migrations=_next_revision(tmp_path, monkeypatch))
    with engine.connect() as connection:
        assert migrate.stored_revision(connection) == "9998"
        rows = connection.exec_driver_sql("SELECT name, note FROM autotune_study").all()
    assert rows == [("kept", None)]


def as_first_released(engine: Engine) -> None:
    """Make a database as revision 0001 left it, with a study that has a trial and samples."""
    with engine.begin() as connection:
        command.upgrade(migrate.alembic_config(connection), "0001")
        connection.execute(insert(schema.study).values(**_study_values()))
        begun = {"phase": "search", "fidelity": "restart", "candidate": "{}", "started_at": "then"}
        known = {"study_id": 1, "number": 0, "state": "complete", "told": True}
        connection.execute(insert(schema.trial).values(**known, **begun))
        row = {"study_id": 1, "number": 0, "name": "sent_s", "data": b"\0"}
        connection.execute(insert(schema.sample).values(**row))


def test_the_first_schema_is_upgraded_by_who_writes(
    url: str, engine: Engine, tmp_path: Path
) -> None:
    as_first_released(engine)
    before = _sql(tmp_path / "study.db")
    with open_repository(url) as repository:
        assert [trial.number for trial in repository.trials(1)] == [0]
    after = _sql(tmp_path / "study.db")
    assert before.items() <= after.items()
    assert "autotune_lease" in after.keys() - before.keys()
    with engine.connect() as connection:
        assert migrate.stored_revision(connection) == schema.HEAD_REVISION
        assert differences(connection) == []


def test_the_first_schema_is_read_as_it_is(url: str, engine: Engine, tmp_path: Path) -> None:
    as_first_released(engine)
    before = (tmp_path / "study.db").read_bytes()
    with open_repository(url, create=False) as repository:
        assert [trial.number for trial in repository.trials(1)] == [0]
    assert (tmp_path / "study.db").read_bytes() == before


def test_a_failed_upgrade_leaves_the_old_schema(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_database(url)
    before = _sql(tmp_path / "study.db")
    migrations = _next_revision(tmp_path, monkeypatch, broken=True)
    with pytest.raises(Exception, match="autotune_nowhere"):
        migrate.ensure_schema(engine, migrations=migrations)
    engine.dispose()
    assert _sql(tmp_path / "study.db") == before


def test_a_newer_database_is_refused_untouched(url: str, engine: Engine, tmp_path: Path) -> None:
    open_database(url).dispose()
    with engine.begin() as connection:
        connection.execute(update(schema.version).values(version_num="9999"))
    before = _sql(tmp_path / "study.db")
    with pytest.raises(NewerSchema, match="'9999'") as caught:
        open_database(url)
    assert caught.value.hint.startswith("Upgrade vllm-autotune")
    assert _sql(tmp_path / "study.db") == before


def test_an_empty_version_table_is_filled(url: str, engine: Engine) -> None:
    schema.version.create(engine)
    open_database(url).dispose()
    with engine.begin() as connection:
        assert migrate.stored_revision(connection) == schema.HEAD_REVISION
        connection.execute(insert(schema.study).values(**_study_values()))


def _study_values() -> dict[str, str]:
    texts = dict.fromkeys(("name", "created_at", "updated_at", "state"), "x")
    return {**texts, "fingerprint": "{}", "spec": "{}"}


def test_the_tables_can_be_written_for_postgresql() -> None:
    dialect = make_url("postgresql://").get_dialect()()
    statements = [
        str(CreateTable(table).compile(dialect=dialect)) for table in schema.metadata.sorted_tables
    ]
    assert all(f"CREATE TABLE {schema.TABLE_PREFIX}" in statement for statement in statements)
    assert any("BYTEA" in statement for statement in statements)

"""Our tables. They share a database with Optuna's, so every name starts with ``autotune_``.

JSON is kept as text, written and read by ``storage.codec``; times are UTC in ISO 8601 with
microseconds, so that they sort as text.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

TABLE_PREFIX: Final = "autotune_"
MAX_NAME_LENGTH: Final = 1000

VERSION_TABLE: Final = "autotune_alembic_version"
HEAD_REVISION: Final = "0002"
"""The newest revision under ``migrations/versions``; a test keeps the two equal."""

READABLE: Final = frozenset({"0001", HEAD_REVISION})
"""Revisions whose studies are read as they are: they lack only what controllers need."""

metadata = MetaData()

study = Table(
    "autotune_study",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(MAX_NAME_LENGTH), nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("updated_at", String(32), nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("verdict", Text),
    UniqueConstraint("name", name="autotune_study_name_key"),
)

trial = Table(
    "autotune_trial",
    metadata,
    Column(
        "study_id", Integer, ForeignKey("autotune_study.id", ondelete="CASCADE"), primary_key=True
    ),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("phase", String(32), nullable=False),
    Column("fidelity", String(16), nullable=False),
    Column("candidate", Text, nullable=False),
    Column("replicate_of", Integer),
    Column("started_at", String(32), nullable=False),
    Column("finished_at", String(32)),
    Column("timings", Text),
    Column("metrics", Text),
    Column("intervals", Text),
    Column("engine", Text),
    Column("diagnosis", Text),
    Column("failure_class", String(32)),
    Column("failure_evidence", Text),
    Column("outcome", Text),
    Column("told", Boolean, nullable=False),
    Column("log_path", Text),
)

sample = Table(
    "autotune_sample",
    metadata,
    Column("study_id", Integer, primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("name", String(200), primary_key=True),
    Column("data", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["study_id", "number"],
        ["autotune_trial.study_id", "autotune_trial.number"],
        ondelete="CASCADE",
    ),
)

event = Table(
    "autotune_event",
    metadata,
    Column("id", Integer, primary_key=True),
    Column(
        "study_id",
        Integer,
        ForeignKey("autotune_study.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("at", String(32), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("detail", Text, nullable=False),
)

lease = Table(
    "autotune_lease",
    metadata,
    Column("resource", String(MAX_NAME_LENGTH + 100), primary_key=True),
    Column("owner", String(32), nullable=False),
    Column("host", String(255), nullable=False),
    Column("machine", String(128), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("started_ticks", BigInteger, nullable=False),
    Column("since", String(32), nullable=False),
    # Seconds since 1970 by the clock of the database.
    Column("heartbeat_s", Double, nullable=False),
    Column("expiry_s", Double, nullable=False),
)

# Apart from the others: to alembic its own table is no part of the model.
version = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False, primary_key=True),
)
